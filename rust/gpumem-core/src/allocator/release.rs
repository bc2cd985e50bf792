//! Giving memory back to the driver (facts/allocator.md section 8).

use super::caching::{Allocator, Request};
use super::free_set::Entry;
use super::pool::{LARGE_POOL, SMALL_POOL};
use super::size::fraction_of;

impl Allocator {
    /// Waits for all pending frees and returns every cached whole segment to the driver (`torch.cuda.empty_cache`).
    pub fn empty_cache(&mut self) {
        self.synchronize_events();
        self.release_pool_blocks(LARGE_POOL);
        self.release_pool_blocks(SMALL_POOL);
        self.release_private_pools();
    }

    /// Returns the free whole segments of one pool, and unmaps what it can of the expandable ones.
    pub(super) fn release_pool_blocks(&mut self, pool: u32) {
        let blocks = &self.blocks;
        let (expandable, segments): (Vec<u32>, Vec<u32>) = self.pools[pool as usize]
            .free
            .iter()
            .map(|entry| entry.block)
            .filter(|&block| blocks[block].is_expandable() || !blocks[block].is_split())
            .partition(|&block| blocks[block].is_expandable());
        for block in segments {
            self.release_segment(block);
        }
        for block in expandable {
            self.unmap(block);
        }
    }

    /// With `max_split_size`: releases a cached block of the request's stream that is large enough on its own, or
    /// else as many oversize ones as make up its size, largest first. `true` when enough was released.
    pub(super) fn release_available(&mut self, request: &Request) -> bool {
        let max_split = self.knobs.max_split_bytes;
        if max_split == u64::MAX {
            return false;
        }
        let wanted = request.size.max(max_split);
        let free = &self.pools[request.pool as usize].free;
        if let Some((_, Entry { block, .. })) = free.best_fit(request.stream, wanted) {
            if !self.blocks[block].is_expandable() {
                self.release_segment(block);
                return true;
            }
        }
        let mut released = 0;
        let mut oversize = Vec::new();
        for entry in free.below(request.stream, wanted).take_while(|entry| entry.size >= max_split) {
            if released >= wanted {
                break;
            }
            if !self.blocks[entry.block].is_expandable() {
                released += entry.size;
                oversize.push(entry.block);
            }
        }
        for block in oversize {
            self.release_segment(block);
        }
        released >= wanted
    }

    /// Releases the large segments that have not been used for longest, until reserved memory is below the
    /// threshold: pass after pass, every unsplit block at least as old as the average of those left.
    pub(super) fn collect_garbage(&mut self) {
        let Some(limit) = self.limit_bytes else { return };
        let threshold = fraction_of(limit, self.knobs.garbage_collection_threshold);
        let Some(target) = self.reserved_bytes().checked_sub(threshold).filter(|&excess| excess > 0) else { return };
        let pool = &self.pools[LARGE_POOL as usize];
        let (searches, blocks) = (pool.searches, &self.blocks);
        let mut candidates: Vec<(u32, u64)> = pool
            .free
            .iter()
            .filter(|entry| !blocks[entry.block].is_split())
            .map(|entry| (entry.block, searches - blocks[entry.block].inserted_at))
            .collect();
        let mut total_age: u64 = candidates.iter().map(|&(_, age)| age).sum();
        let mut count = candidates.len() as u64;
        candidates.retain(|&(block, _)| !blocks[block].is_expandable());
        let mut reclaimed = 0;
        while reclaimed < target && count > 0 {
            // `age >= total_age / count` in exact arithmetic, for the average at the start of the pass.
            let (pass_age, pass_count) = (total_age, count);
            let is_old = |age: u64| age.saturating_mul(pass_count) >= pass_age;
            let before = candidates.len();
            for &(block, age) in candidates.iter().filter(|&&(_, age)| is_old(age)) {
                reclaimed += self.blocks[block].size;
                total_age -= age;
                count -= 1;
                self.release_segment(block);
            }
            candidates.retain(|&(_, age)| !is_old(age));
            if candidates.len() == before {
                break;
            }
        }
    }

    /// `cudaFree` of a segment that one free block covers.
    fn release_segment(&mut self, index: u32) {
        let block = &self.blocks[index];
        let (pool, size) = (block.pool as usize, block.size);
        self.driver.free(block.address, size);
        self.pools[pool].remove(block);
        self.blocks.vacate(index);
        let small = self.pools[pool].is_small;
        self.stats.segment.decrease(small, 1);
        self.stats.reserved_bytes.decrease(small, size);
        self.stats.num_device_free += 1;
        if size >= self.knobs.max_split_bytes {
            self.stats.oversize_segments.decrease(1);
        }
        self.count_device_free(pool);
    }
}
