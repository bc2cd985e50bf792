//! The allocator: hand out, split, free and merge.

use super::block::{Arena, Block, BlockId, NONE, State, StreamId};
use super::conf::AllocConf;
use super::driver::Driver;
use super::events::Events;
use super::expandable::Range;
use super::oom::{OomKind, OutOfMemory};
use super::pool::{LARGE_POOL, Pool, SMALL_POOL};
use super::private_pool::{PoolId, PrivatePool};
use super::size::{Knobs, MIN_BLOCK_BYTES, REQUEST_CEILING_BYTES, SMALL_LIMIT_BYTES, nearest_fraction_of};
use super::stats::Stats;

/// `PyTorch`'s native CUDA caching allocator of one device, without the device.
///
/// The rules are those of torch 2.14.1 (facts/allocator.md); the same calls give the same addresses,
/// statistics and segments as the real `libc10_cuda`.
#[derive(Debug, Clone)]
pub struct Allocator {
    pub(super) knobs: Knobs,
    pub(super) driver: Driver,
    pub(super) blocks: Arena,
    pub(super) pools: Vec<Pool>,
    pub(super) private_pools: Vec<PrivatePool>,
    /// Private pools that requests go to, newest last.
    pub(super) redirections: Vec<usize>,
    /// Private pools whose free blocks may serve a request that would otherwise fail.
    pub(super) overflow_pools: Vec<PoolId>,
    pub(super) events: Events,
    pub(super) ranges: Vec<Range>,
    /// Reserved bytes a memory fraction allows.
    pub(super) limit_bytes: Option<u64>,
    pub(super) stats: Stats,
    /// Whether blocks are counted, or segments and reserved bytes alone.
    counts_blocks: bool,
}

/// A request on its way through the allocator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) requested: u64,
    /// Rounded size: what the block must hold.
    pub(super) size: u64,
    /// What is asked of the driver on a miss.
    pub(super) segment: u64,
    pub(super) stream: StreamId,
    pub(super) pool: u32,
}

impl Allocator {
    /// An empty allocator on a device.
    #[must_use]
    pub fn new(conf: &AllocConf, driver: Driver) -> Self {
        let mut allocator = Self {
            knobs: Knobs::new(conf),
            driver,
            blocks: Arena::default(),
            pools: vec![Pool::new(true, None), Pool::new(false, None)],
            private_pools: Vec::new(),
            redirections: Vec::new(),
            overflow_pools: Vec::new(),
            events: Events::default(),
            ranges: Vec::new(),
            limit_bytes: None,
            stats: Stats::default(),
            counts_blocks: true,
        };
        allocator.set_memory_fraction(conf.per_process_memory_fraction());
        allocator
    }

    /// Leaves the statistics of blocks at zero, for callers that ask about reserved bytes alone: they are a sixth of the
    /// work. What the allocator does is the same.
    #[must_use]
    pub(crate) fn without_block_statistics(mut self) -> Self {
        self.counts_blocks = false;
        self
    }

    /// Replaces all settings of a running allocator; the memory fraction in force stays.
    ///
    /// `torch.cuda.memory._set_allocator_settings` also puts keys it is not given back to their default, except that
    /// it leaves `large_segment_size_mb` as it was (measured on torch 2.14.1).
    pub fn reconfigure(&mut self, conf: &AllocConf) {
        self.knobs = Knobs::new(conf);
    }

    /// Limits reserved memory to a share of the device's total; 1 or more is no limit
    /// (`torch.cuda.set_per_process_memory_fraction`).
    pub fn set_memory_fraction(&mut self, fraction: f64) {
        self.limit_bytes = (fraction < 1.0).then(|| nearest_fraction_of(self.driver.total_bytes(), fraction));
    }

    /// Serves a request of `requested_bytes` on `stream`.
    ///
    /// Zero bytes give [`BlockId::NULL`] and change nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`] when `PyTorch` would raise `torch.OutOfMemoryError`. The allocator stays usable: the cache
    /// has been released as far as possible, as the real one does.
    #[inline]
    pub fn alloc(&mut self, requested_bytes: u64, stream: StreamId) -> Result<BlockId, OutOfMemory> {
        if requested_bytes == 0 {
            return Ok(BlockId::NULL);
        }
        if requested_bytes >= REQUEST_CEILING_BYTES {
            return Err(self.too_large(requested_bytes));
        }
        self.process_events();
        let size = self.knobs.block_bytes(requested_bytes);
        let pool = self.pool_for(size);
        let block = match self.take_free(pool, stream, size, self.knobs.expandable_segments) {
            Some(block) => block,
            None => self.obtain(requested_bytes, size, stream, pool)?,
        };
        self.hand_out(block, size, requested_bytes);
        Ok(BlockId(block))
    }

    /// Frees a block. [`BlockId::NULL`] is ignored.
    ///
    /// # Panics
    /// When the block is not handed out: freed twice, or from another allocator.
    #[inline]
    pub fn free(&mut self, block: BlockId) {
        let BlockId(index) = block;
        if index == NONE {
            return;
        }
        let freed = &self.blocks[index];
        assert!(freed.state == State::Allocated, "block {index} freed but not handed out");
        let (size, has_uses) = (freed.size, freed.has_uses);
        if self.counts_blocks {
            let small = self.pools[freed.pool as usize].is_small;
            self.stats.free(small, size);
            if size >= self.knobs.max_split_bytes {
                self.stats.oversize_allocations.decrease(1);
            }
        }
        if has_uses {
            self.defer_free(index);
        } else {
            self.return_block(index);
        }
    }

    /// Address of a block that is handed out; 0 for [`BlockId::NULL`].
    #[must_use]
    pub fn address(&self, block: BlockId) -> u64 {
        if block == BlockId::NULL { 0 } else { self.blocks[block.0].address }
    }

    /// Bytes of the block behind a handle: at least the rounded request; 0 for [`BlockId::NULL`].
    #[must_use]
    pub fn block_bytes(&self, block: BlockId) -> u64 {
        if block == BlockId::NULL { 0 } else { self.blocks[block.0].size }
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sets every peak to the current value.
    pub fn reset_peaks(&mut self) {
        self.stats.reset_peaks();
    }

    /// The driver below.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Segments and mapped memory of all pools, in bytes.
    #[inline]
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.stats.reserved_bytes.all.current
    }

    #[inline]
    fn pool_for(&self, size: u64) -> u32 {
        let small = size <= SMALL_LIMIT_BYTES;
        match self.redirections.last() {
            None => {
                if small {
                    SMALL_POOL
                } else {
                    LARGE_POOL
                }
            }
            Some(&private) => self.private_pools[private].pool(small),
        }
    }

    #[inline]
    fn should_split(&self, pool: &Pool, block: u64, size: u64) -> bool {
        let remaining = block - size;
        if pool.no_split {
            false
        } else if pool.is_small || self.knobs.expandable_segments {
            remaining >= MIN_BLOCK_BYTES
        } else {
            size < self.knobs.max_split_bytes && remaining > SMALL_LIMIT_BYTES
        }
    }

    /// Marks a block that is in no set as handed out, after splitting off its tail if it is long enough.
    #[inline]
    fn hand_out(&mut self, index: u32, size: u64, requested: u64) {
        let block = &self.blocks[index];
        let pool = block.pool as usize;
        let small = self.pools[pool].is_small;
        let (was_split, expandable) = (block.is_split(), block.is_expandable());
        if self.should_split(&self.pools[pool], block.size, size) {
            let remaining = block.size - size;
            let tail = Block { requested: 0, prev: index, state: State::Free, ..block.part(size, remaining) };
            let tail = self.blocks.splice(tail);
            self.blocks[index].next = tail;
            self.blocks[index].size = size;
            self.pools[pool].insert(tail, &mut self.blocks[tail]);
            if !expandable && self.counts_blocks {
                if was_split {
                    self.stats.inactive_split_bytes.decrease(small, size);
                } else {
                    self.stats.inactive_split_bytes.increase(small, remaining);
                    self.stats.inactive_split.increase(small, 1);
                }
            }
        } else if was_split && !expandable && self.counts_blocks {
            self.stats.inactive_split_bytes.decrease(small, block.size);
            self.stats.inactive_split.decrease(small, 1);
        }
        let block = &mut self.blocks[index];
        block.state = State::Allocated;
        block.requested = requested;
        let size = block.size;
        if self.counts_blocks {
            self.stats.hand_out(small, size, requested);
            if size >= self.knobs.max_split_bytes {
                self.stats.oversize_allocations.increase(1);
            }
        }
    }

    /// Returns a freed block to its pool, merged with its free neighbours.
    #[inline]
    pub(super) fn return_block(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        block.state = State::Free;
        let (size, requested, pool) = (block.size, block.requested, block.pool as usize);
        let (prev, next) = (block.prev, block.next);
        let before = self.merge(index, prev);
        let after = self.merge(index, next);
        let block = &mut self.blocks[index];
        self.pools[pool].insert(index, block);
        if self.counts_blocks {
            let small = self.pools[pool].is_small;
            if !block.is_expandable() {
                let (merged, split) = (block.size, block.is_split());
                self.stats.replace_inactive_split(small, [before, after], split.then_some(merged));
            }
            self.stats.deactivate(small, size, requested);
        }
    }

    /// Lets `keep` absorb its neighbour `other` when that is in the same condition: both free, or both without
    /// memory. Returns the bytes absorbed.
    #[inline]
    pub(super) fn merge(&mut self, keep: u32, other: u32) -> u64 {
        if other == NONE || self.blocks[other].state != self.blocks[keep].state {
            return 0;
        }
        let absorbed = &self.blocks[other];
        let size = absorbed.size;
        let pool = &mut self.pools[absorbed.pool as usize];
        if absorbed.state == State::Unmapped {
            pool.remove_unmapped(other, absorbed);
        } else {
            pool.remove(absorbed);
        }
        self.blocks.absorb(keep, other);
        size
    }

    #[cold]
    fn too_large(&self, requested_bytes: u64) -> OutOfMemory {
        self.out_of_memory(OomKind::TooLarge, requested_bytes, requested_bytes)
    }

    pub(super) fn out_of_memory(&self, kind: OomKind, requested_bytes: u64, segment_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            kind,
            requested_bytes,
            segment_bytes,
            allocated_bytes: self.stats.allocated_bytes.all.current,
            reserved_bytes: self.reserved_bytes(),
            private_pool_free_bytes: self.private_pool_free_bytes(),
            free_bytes: self.driver.free_bytes(),
            total_bytes: self.driver.total_bytes(),
            limit_bytes: self.limit_bytes,
            expandable_segments: self.knobs.expandable_segments,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Requests of so many KiB, and frees of one of those that are there.
    fn calls() -> impl Strategy<Value = Vec<(bool, u64, prop::sample::Index)>> {
        prop::collection::vec((any::<bool>(), 1_u64..40_000, any::<prop::sample::Index>()), 1..120)
    }

    fn settings() -> impl Strategy<Value = AllocConf> {
        let texts = ["", "max_split_size_mb:30", "expandable_segments:True", "roundup_power2_divisions:4"];
        prop::sample::select(texts.to_vec()).prop_map(|text| text.parse().unwrap())
    }

    proptest! {
        #[test]
        fn without_block_statistics_all_else_is_the_same(calls in calls(), conf in settings(), capacity_mib in 50_u64..400) {
            let driver = Driver::new(capacity_mib << 20, capacity_mib << 20);
            let mut counting = Allocator::new(&conf, driver.clone());
            let mut silent = Allocator::new(&conf, driver).without_block_statistics();
            let mut held: Vec<(BlockId, BlockId)> = Vec::new();
            for (is_free, kib, which) in calls {
                if is_free && !held.is_empty() {
                    let (one, other) = held.swap_remove(which.index(held.len()));
                    counting.free(one);
                    silent.free(other);
                } else {
                    match (counting.alloc(kib << 10, StreamId(0)), silent.alloc(kib << 10, StreamId(0))) {
                        (Ok(one), Ok(other)) => held.push((one, other)),
                        (Err(_), Err(_)) => {}
                        (one, other) => prop_assert!(false, "{:?} and {:?}", one, other),
                    }
                }
                prop_assert_eq!(counting.stats().reserved_bytes, silent.stats().reserved_bytes);
                prop_assert_eq!(counting.stats().num_alloc_retries, silent.stats().num_alloc_retries);
            }
            for (one, other) in held {
                prop_assert_eq!(counting.address(one), silent.address(other));
                prop_assert_eq!(counting.block_bytes(one), silent.block_bytes(other));
            }
            prop_assert_eq!(silent.stats().allocated_bytes.all.peak, 0);
        }
    }
}
