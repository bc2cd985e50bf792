//! Snapshots: the segments and their blocks, and an allocator rebuilt from them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::block::{Block, BlockId, NONE, State, StreamId};
use super::caching::Allocator;
use super::conf::AllocConf;
use super::driver::Driver;
use super::pool::{LARGE_POOL, SMALL_POOL};

/// State of a block, with the names of `torch.cuda.memory_snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Handed out.
    ActiveAllocated,
    /// Freed, but still in use by another stream.
    ActivePendingFree,
    /// Cached.
    Inactive,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes of the block.
    pub size_bytes: u64,
    /// Bytes the program asked for; that of the last user when the block is not handed out.
    pub requested_bytes: u64,
    /// What the block is doing.
    pub state: BlockState,
}

/// Memory obtained from the driver: one `cudaMalloc`, or one run of mapped memory in an expandable range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes of the segment.
    pub total_bytes: u64,
    /// Handle of the stream its blocks belong to.
    pub stream: u64,
    /// Whether it serves requests of more than 1 MiB.
    pub is_large: bool,
    /// Whether it is part of an expandable range.
    pub is_expandable: bool,
    /// Its blocks by address, without gaps.
    pub blocks: Vec<SegmentBlock>,
}

/// Why an allocator could not be rebuilt from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// Expandable ranges do not tell in a snapshot how far they reach.
    #[error("segment {address:#x} is expandable: only ordinary segments can be restored")]
    Expandable {
        /// Address of the segment.
        address: u64,
    },
    /// A snapshot does not tell which streams a pending block waits for.
    #[error("block {address:#x} waits for another stream: only settled blocks can be restored")]
    Pending {
        /// Address of the block.
        address: u64,
    },
    /// Blocks must follow each other from the segment's start to its end.
    #[error("the blocks of segment {address:#x} do not cover it")]
    Gap {
        /// Address of the segment.
        address: u64,
    },
    /// The device is too small for the segments.
    #[error("segment {address:#x} does not fit into the device")]
    Capacity {
        /// Address of the segment.
        address: u64,
    },
}

impl Allocator {
    /// The segments by address. Address space without memory is not shown.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Segment> {
        let mapped = |index: u32| index != NONE && self.blocks[index].state != State::Unmapped;
        let mut segments: Vec<Segment> = self
            .blocks
            .iter()
            .filter(|&(index, block)| mapped(index) && !mapped(block.prev))
            .map(|(index, block)| {
                let mut blocks = Vec::new();
                let mut index = index;
                while mapped(index) {
                    blocks.push(segment_block(&self.blocks[index]));
                    index = self.blocks[index].next;
                }
                Segment {
                    address: block.address,
                    total_bytes: blocks.iter().map(|block| block.size_bytes).sum(),
                    stream: block.stream.0,
                    is_large: !self.pools[block.pool as usize].is_small,
                    is_expandable: block.is_expandable(),
                    blocks,
                }
            })
            .collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// An allocator that starts with these segments in its default pools, and the handles of the blocks that are
    /// handed out, in the order they are listed. Statistics start as if each block had just been handed out.
    ///
    /// # Errors
    /// [`RestoreError`] for what a snapshot does not tell, for gaps, and when the device is too small.
    pub fn restore(
        conf: &AllocConf,
        driver: Driver,
        segments: &[Segment],
    ) -> Result<(Self, Vec<BlockId>), RestoreError> {
        let mut allocator = Self::new(conf, driver);
        let mut handed_out = Vec::new();
        for segment in segments {
            allocator.restore_segment(segment, &mut handed_out)?;
        }
        Ok((allocator, handed_out))
    }

    fn restore_segment(&mut self, segment: &Segment, handed_out: &mut Vec<BlockId>) -> Result<(), RestoreError> {
        let address = segment.address;
        if segment.is_expandable {
            return Err(RestoreError::Expandable { address });
        }
        let end = segment.blocks.iter().try_fold(address, |at, block| {
            (block.address == at && block.size_bytes > 0).then(|| at.checked_add(block.size_bytes)).flatten()
        });
        if segment.blocks.is_empty() || end != address.checked_add(segment.total_bytes) {
            return Err(RestoreError::Gap { address });
        }
        let placed = self.driver.adopt(address, segment.total_bytes).ok_or(RestoreError::Capacity { address })?;
        let small = !segment.is_large;
        self.stats.segment.increase(small, 1);
        self.stats.reserved_bytes.increase(small, segment.total_bytes);
        if segment.total_bytes >= self.knobs.max_split_bytes {
            self.stats.oversize_segments.increase(1);
        }
        let pool = if small { SMALL_POOL } else { LARGE_POOL };
        let whole = Block::new(placed, segment.total_bytes, StreamId(segment.stream), pool);
        let mut prev = NONE;
        for block in &segment.blocks {
            let part = Block { prev, ..whole.part(block.address - address, block.size_bytes) };
            prev = self.restore_block(&part, block, segment.blocks.len() > 1)?;
            if block.state == BlockState::ActiveAllocated {
                handed_out.push(BlockId(prev));
            }
        }
        Ok(())
    }

    fn restore_block(&mut self, part: &Block, block: &SegmentBlock, is_split: bool) -> Result<u32, RestoreError> {
        let pool = part.pool;
        let small = pool == SMALL_POOL;
        let state = match block.state {
            BlockState::ActiveAllocated => State::Allocated,
            BlockState::Inactive => State::Free,
            BlockState::ActivePendingFree => return Err(RestoreError::Pending { address: block.address }),
        };
        let index = self.blocks.splice(Block { requested: block.requested_bytes, state, ..*part });
        if state == State::Allocated {
            self.stats.hand_out(small, block.size_bytes, block.requested_bytes);
            if block.size_bytes >= self.knobs.max_split_bytes {
                self.stats.oversize_allocations.increase(1);
            }
        } else {
            self.pools[pool as usize].insert(index, &mut self.blocks[index]);
            if is_split {
                self.stats.inactive_split.increase(small, 1);
                self.stats.inactive_split_bytes.increase(small, block.size_bytes);
            }
        }
        Ok(index)
    }
}

fn segment_block(block: &Block) -> SegmentBlock {
    SegmentBlock {
        address: block.address,
        size_bytes: block.size,
        requested_bytes: block.requested,
        state: match block.state {
            State::Allocated => BlockState::ActiveAllocated,
            State::Pending => BlockState::ActivePendingFree,
            State::Free | State::Unmapped | State::Vacant => BlockState::Inactive,
        },
    }
}
