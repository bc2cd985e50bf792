//! A history that `PyTorch` recorded, run through the allocator: does every address come out as recorded?
//!
//! Taken from the record: requests, frees, and where the driver placed each new segment. Which block a request gets,
//! how large a new segment is and which ones are given back is the allocator's answer, compared event by event.

use thiserror::Error;

use super::block::{BlockId, StreamId};
use super::caching::Allocator;
use super::conf::AllocConf;
use super::driver::{Driver, DriverCall, TieBreak};
use super::snapshot::{BlockState, RestoreError, Segment};

/// One entry of `torch.cuda.memory._snapshot()["device_traces"]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEvent {
    /// A block was handed out.
    Alloc {
        /// Its address.
        address: u64,
        /// Bytes that the program asked for.
        bytes: u64,
        /// Its stream.
        stream: u64,
    },
    /// A block came back.
    Free {
        /// Its address.
        address: u64,
    },
    /// A request could not be served.
    OutOfMemory {
        /// Bytes of the block that was looked for.
        bytes: u64,
        /// Its stream.
        stream: u64,
    },
    /// The driver gave or took a segment.
    Driver(DriverCall),
}

/// A layout: address of the segment, address and bytes of the block, whether it is handed out; by address.
pub type Layout = Vec<(u64, u64, u64, bool)>;

/// A recorded history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The segments before the first event.
    pub initial: Vec<Segment>,
    /// The events, oldest first.
    pub events: Vec<RecordedEvent>,
    /// The layout after the last one.
    pub last: Layout,
}

/// What was compared, and the peaks of the replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Requests, each at its recorded address.
    pub allocations: u64,
    /// Frees.
    pub frees: u64,
    /// Segments taken.
    pub segments: u64,
    /// Segments given back.
    pub segment_frees: u64,
    /// Requests for which the cache had to be released.
    pub retries: u64,
    /// Requests that failed, as recorded.
    pub out_of_memory: u64,
    /// Most bytes asked for at once.
    pub requested_peak_bytes: u64,
    /// Most bytes of blocks at once.
    pub allocated_peak_bytes: u64,
    /// Most bytes of segments at once.
    pub reserved_peak_bytes: u64,
}

/// The first place at which the replay is not the record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// The starting state cannot be rebuilt.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// A request that was served is not served here.
    #[error("event {event}: no room for {bytes} bytes, which were served")]
    NoRoom {
        /// Position of the event.
        event: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A request that failed is served here.
    #[error("event {event}: {bytes} bytes are served, which was out of memory")]
    Room {
        /// Position of the event.
        event: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Another block was chosen.
    #[error("event {event}: {bytes} bytes at {ours:#x}, recorded {recorded:#x}")]
    Address {
        /// Position of the event.
        event: usize,
        /// Bytes asked for.
        bytes: u64,
        /// Address here.
        ours: u64,
        /// Address in the record.
        recorded: u64,
    },
    /// Segments were taken or given back otherwise.
    #[error("event {event}: {ours:?} of the driver, recorded {recorded:?}")]
    Segments {
        /// Position of the event.
        event: usize,
        /// The call here at the first difference.
        ours: Option<DriverCall>,
        /// The call in the record.
        recorded: Option<DriverCall>,
    },
    /// A free of something that is not handed out.
    #[error("event {event}: {address:#x} is freed and was not handed out")]
    NotHandedOut {
        /// Position of the event.
        event: usize,
        /// The address.
        address: u64,
    },
    /// All events are equal, the blocks at the end are not.
    #[error("another layout at the end than recorded")]
    Layout,
}

impl History {
    /// Where the driver placed the segments, in order.
    #[must_use]
    pub fn segment_addresses(&self) -> Vec<u64> {
        let taken = self.events.iter().filter_map(|event| match event {
            RecordedEvent::Driver(DriverCall::Malloc { address, .. }) => Some(*address),
            _ => None,
        });
        taken.collect()
    }

    /// Whether the first thing recorded is that segments were released: a call of `empty_cache`.
    #[must_use]
    pub fn opens_with_release(&self) -> bool {
        matches!(self.events.first(), Some(RecordedEvent::Driver(DriverCall::Free { .. })))
    }

    /// Runs the history.
    ///
    /// # Arguments
    /// `capacity_bytes`: what the driver hands out in all. `tie_break`: the rule of the `PyTorch` that recorded it.
    ///
    /// # Errors
    /// [`ReplayError`] at the first difference.
    pub fn replay(&self, capacity_bytes: u64, tie_break: TieBreak) -> Result<Replayed, ReplayError> {
        let driver = Driver::new(capacity_bytes, capacity_bytes)
            .scripted(self.segment_addresses())
            .with_tie_break(tie_break)
            .recording();
        let (mut allocator, live) = Allocator::restore(&AllocConf::default(), driver, &self.initial)?;
        let blocks = live.into_iter().map(|block| (allocator.address(block), block)).collect();
        if self.opens_with_release() {
            allocator.empty_cache();
        }
        let mut player = Player { allocator, blocks, calls: Vec::new(), counts: Replayed::default() };
        player.blocks.sort_unstable();
        for (position, event) in self.events.iter().enumerate() {
            player.play(position, *event)?;
        }
        player.compare_calls(self.events.len())?;
        if layout(&player.allocator) != self.last {
            return Err(ReplayError::Layout);
        }
        Ok(player.finished())
    }
}

struct Player {
    allocator: Allocator,
    /// Handed-out blocks by address.
    blocks: Vec<(u64, BlockId)>,
    /// Recorded calls of the driver so far.
    calls: Vec<DriverCall>,
    counts: Replayed,
}

impl Player {
    fn play(&mut self, event: usize, recorded: RecordedEvent) -> Result<(), ReplayError> {
        match recorded {
            RecordedEvent::Driver(call) => {
                self.calls.push(call);
                match call {
                    DriverCall::Malloc { .. } => self.counts.segments += 1,
                    _ => self.counts.segment_frees += 1,
                }
            }
            RecordedEvent::Alloc { address, bytes, stream } => {
                let served = self.allocator.alloc(bytes, StreamId(stream));
                let block = served.map_err(|_| ReplayError::NoRoom { event, bytes })?;
                let ours = self.allocator.address(block);
                if ours != address {
                    return Err(ReplayError::Address { event, bytes, ours, recorded: address });
                }
                self.compare_calls(event)?;
                let at = self.blocks.partition_point(|&(other, _)| other < address);
                self.blocks.insert(at, (address, block));
                self.counts.allocations += 1;
            }
            RecordedEvent::Free { address } => {
                let at = self.blocks.binary_search_by_key(&address, |&(other, _)| other);
                let at = at.map_err(|_| ReplayError::NotHandedOut { event, address })?;
                self.allocator.free(self.blocks.remove(at).1);
                self.counts.frees += 1;
            }
            RecordedEvent::OutOfMemory { bytes, stream } => {
                if self.allocator.alloc(bytes, StreamId(stream)).is_ok() {
                    return Err(ReplayError::Room { event, bytes });
                }
                self.compare_calls(event)?;
                self.counts.out_of_memory += 1;
            }
        }
        Ok(())
    }

    fn compare_calls(&self, event: usize) -> Result<(), ReplayError> {
        let ours = self.allocator.driver().calls();
        if ours == self.calls {
            return Ok(());
        }
        let at = ours.iter().zip(&self.calls).take_while(|(mine, theirs)| mine == theirs).count();
        Err(ReplayError::Segments { event, ours: ours.get(at).copied(), recorded: self.calls.get(at).copied() })
    }

    fn finished(self) -> Replayed {
        let stats = self.allocator.stats();
        Replayed {
            retries: stats.num_alloc_retries,
            requested_peak_bytes: stats.requested_bytes.all.peak,
            allocated_peak_bytes: stats.allocated_bytes.all.peak,
            reserved_peak_bytes: stats.reserved_bytes.all.peak,
            ..self.counts
        }
    }
}

fn layout(allocator: &Allocator) -> Layout {
    let segments = allocator.snapshot();
    let blocks = segments.iter().flat_map(|segment| {
        segment
            .blocks
            .iter()
            .map(|block| (segment.address, block.address, block.size_bytes, block.state == BlockState::ActiveAllocated))
    });
    blocks.collect()
}
