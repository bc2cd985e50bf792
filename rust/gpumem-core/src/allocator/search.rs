//! Finding a block: in the cache, or through the driver and the failure chain.

use super::block::{Block, NONE, State, StreamId};
use super::caching::{Allocator, Request};
use super::free_set::{Entry, Position};
use super::oom::{OomKind, OutOfMemory};
use super::size::fraction_of;

impl Allocator {
    /// Whether free blocks age and are collected (facts/allocator.md section 8).
    #[inline]
    pub(super) fn collects_garbage(&self) -> bool {
        self.limit_bytes.is_some() && self.knobs.garbage_collection_threshold > 0.0
    }

    /// Takes the best-fitting block out of a pool's free set (section 5); with `use_expandable` off, as if there
    /// were no expandable ones.
    #[inline]
    pub(super) fn take_free(&mut self, pool: u32, stream: StreamId, size: u64, use_expandable: bool) -> Option<u32> {
        if self.collects_garbage() {
            self.pools[pool as usize].searches += 1;
        }
        let best = self.pools[pool as usize].free.best_fit(stream, size)?;
        let (position, found) = if !self.blocks[best.1.block].is_expandable() {
            best
        } else if use_expandable {
            self.prefer_middle(pool, best)
        } else {
            self.skip_expandable(pool, best)?
        };
        let found_bytes = found.size;
        let max_split = self.knobs.max_split_bytes;
        let too_large_to_share = size < max_split && found_bytes >= max_split;
        let too_large_to_waste =
            size >= max_split && found_bytes >= size.saturating_add(self.knobs.max_non_split_rounding_bytes);
        if too_large_to_share || too_large_to_waste {
            return None;
        }
        Some(self.pools[pool as usize].free.take(position))
    }

    fn skip_expandable(&self, pool: u32, first: (Position, Entry)) -> Option<(Position, Entry)> {
        let free = &self.pools[pool as usize].free;
        let mut found = first;
        while self.blocks[found.1.block].is_expandable() {
            found = free.next(found.0)?;
        }
        Some(found)
    }

    /// Among expandable blocks, one that can grow counts with the size it can grow to, so that holes in the middle
    /// are filled first.
    fn prefer_middle(&self, pool: u32, first: (Position, Entry)) -> (Position, Entry) {
        let free = &self.pools[pool as usize].free;
        let mut found = first;
        while let Some(next) = free.next(found.0) {
            let (block, after) = (&self.blocks[found.1.block], &self.blocks[next.1.block]);
            if !block.is_expandable() || self.reach(after) >= self.reach(block) {
                break;
            }
            found = next;
        }
        found
    }

    fn reach(&self, block: &Block) -> u64 {
        let next = block.next;
        let growth =
            if next != NONE && self.blocks[next].state == State::Unmapped { self.blocks[next].size } else { 0 };
        block.size + growth
    }

    /// Serves a cache miss: garbage collection, the driver, then the failure chain (section 8).
    #[cold]
    #[inline(never)]
    pub(super) fn obtain(
        &mut self,
        requested: u64,
        size: u64,
        stream: StreamId,
        pool: u32,
    ) -> Result<u32, OutOfMemory> {
        let request = Request { requested, size, segment: self.knobs.segment_bytes(size), stream, pool };
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(block) = self.try_driver(&request)? {
            return Ok(block);
        }
        if let Some(block) = self.take_overflow(&request) {
            return Ok(block);
        }
        if self.release_available(&request) {
            if let Some(block) = self.try_driver(&request)? {
                return Ok(block);
            }
        }
        self.empty_cache();
        self.stats.num_alloc_retries += 1;
        if let Some(block) = self.try_driver(&request)? {
            return Ok(block);
        }
        self.stats.num_ooms += 1;
        Err(self.out_of_memory(OomKind::Exhausted, requested, request.segment))
    }

    /// One attempt at the driver; `None` when out of memory, an error when the attempt is refused beforehand.
    fn try_driver(&mut self, request: &Request) -> Result<Option<u32>, OutOfMemory> {
        let wanted = self.reserved_bytes().saturating_add(request.segment);
        if self.limit_bytes.is_some_and(|limit| wanted > limit) {
            return Ok(None);
        }
        if self.knobs.throw_on_cudamalloc_oom
            && wanted > fraction_of(self.driver.total_bytes(), self.knobs.memory_fraction)
        {
            self.stats.num_oom_rejections += 1;
            return Err(self.out_of_memory(OomKind::Rejected, request.requested, request.segment));
        }
        let block = if self.knobs.expandable_segments { self.grow_range(request) } else { self.new_segment(request) };
        if block.is_some() {
            if let Some(owner) = self.pools[request.pool as usize].owner {
                self.private_pools[owner].device_allocs += 1;
            }
        }
        Ok(block)
    }

    /// `cudaMalloc` of a segment. The block is in no free set yet.
    fn new_segment(&mut self, request: &Request) -> Option<u32> {
        let placed = self.driver.malloc(request.segment)?;
        let small = self.pools[request.pool as usize].is_small;
        self.stats.segment.increase(small, 1);
        self.stats.reserved_bytes.increase(small, request.segment);
        self.stats.num_device_alloc += 1;
        if request.segment >= self.knobs.max_split_bytes {
            self.stats.oversize_segments.increase(1);
        }
        Some(self.blocks.insert(Block::new(placed, request.segment, request.stream, request.pool)))
    }
}
