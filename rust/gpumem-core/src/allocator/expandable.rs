//! Expandable segments: address ranges that memory is mapped into (facts/allocator.md section 10).

use super::block::{Block, NONE, State, StreamId};
use super::caching::{Allocator, Request};
use super::size::SMALL_SEGMENT_BYTES;

/// A reserved address range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) address: u64,
    /// Memory is mapped and unmapped in multiples of this.
    pub(super) granule: u64,
}

impl Allocator {
    /// Extends the stream's mapped memory until one free block holds `request.size` bytes, and takes that block.
    /// What was mapped before the driver ran out stays mapped and free.
    pub(super) fn grow_range(&mut self, request: &Request) -> Option<u32> {
        let mut block = match self.find_growable(request.pool, request.stream, request.size) {
            Some(block) => block,
            None => self.reserve_range(request.pool, request.stream)?,
        };
        if self.blocks[block].state == State::Unmapped {
            let bytes = self.blocks[block].size.min(request.size);
            self.map(block, bytes)?;
        }
        while self.blocks[block].size < request.size {
            let missing = request.size - self.blocks[block].size;
            let next = self.blocks[block].next;
            if next == NONE {
                return None;
            }
            let bytes = self.blocks[next].size.min(missing);
            self.map(next, bytes)?;
            block = next;
        }
        self.pools[request.pool as usize].remove(&self.blocks[block]);
        Some(block)
    }

    /// The first place, by address, where consecutive free and unmapped blocks sum to `size`.
    fn find_growable(&self, pool: u32, stream: StreamId, size: u64) -> Option<u32> {
        let unmapped = &self.pools[pool as usize].unmapped;
        unmapped.range((stream, 0, 0)..=(stream, u64::MAX, NONE)).find_map(|&(_, _, block)| {
            let prev = self.blocks[block].prev;
            let start = if prev != NONE && self.blocks[prev].is_available() { prev } else { block };
            self.has_room(start, size).then_some(start)
        })
    }

    fn has_room(&self, start: u32, size: u64) -> bool {
        let mut room = 0;
        let mut block = start;
        while room < size && block != NONE && self.blocks[block].is_available() {
            room += self.blocks[block].size;
            block = self.blocks[block].next;
        }
        room >= size
    }

    /// Reserves address space for an eighth more than the device's memory, so that pages can move to the end.
    fn reserve_range(&mut self, pool: u32, stream: StreamId) -> Option<u32> {
        let total = self.driver.total_bytes();
        let granule =
            if self.pools[pool as usize].is_small { SMALL_SEGMENT_BYTES } else { self.knobs.large_segment_bytes };
        let size = (total + total / 8).next_multiple_of(granule);
        let placed = self.driver.reserve_range(size)?;
        let range = u32::try_from(self.ranges.len()).ok()?;
        self.ranges.push(Range { address: placed.address, granule });
        let block = Block { range, state: State::Unmapped, ..Block::new(placed, size, stream, pool) };
        let block = self.blocks.insert(block);
        self.pools[pool as usize].insert_unmapped(block, &self.blocks[block]);
        Some(block)
    }

    /// Maps the first `bytes` of an unmapped block, in whole granules, and merges it with its free neighbours.
    /// The block then covers the merged bytes and is in the free set.
    fn map(&mut self, index: u32, bytes: u64) -> Option<()> {
        let block = &self.blocks[index];
        let (pool, size) = (block.pool as usize, block.size);
        let mapped = bytes.next_multiple_of(self.ranges[block.range as usize].granule);
        if !self.driver.map(block.address, mapped) {
            return None;
        }
        self.pools[pool].remove_unmapped(index, block);
        if mapped < size {
            let rest = Block { prev: index, ..block.part(mapped, size - mapped) };
            let rest = self.blocks.splice(rest);
            self.blocks[index].next = rest;
            self.blocks[index].size = mapped;
            self.pools[pool].insert_unmapped(rest, &self.blocks[rest]);
        }
        self.blocks[index].state = State::Free;
        let (prev, next) = (self.blocks[index].prev, self.blocks[index].next);
        self.merge(index, prev);
        self.merge(index, next);
        self.pools[pool].insert(index, &mut self.blocks[index]);
        self.stats.reserved_bytes.increase(self.pools[pool].is_small, mapped);
        self.stats.num_device_alloc += 1;
        Some(())
    }

    /// Unmaps the whole granules inside a free block; what lies in granules shared with others stays free.
    pub(super) fn unmap(&mut self, index: u32) {
        let block = &self.blocks[index];
        let Range { address: base, granule } = self.ranges[block.range as usize];
        let (pool, start, end) = (block.pool as usize, block.address, block.address + block.size);
        let first = base + (start - base).next_multiple_of(granule);
        let last = base + (end - base) / granule * granule;
        if first >= last {
            return;
        }
        self.pools[pool].remove(block);
        if first > start {
            let head = Block { next: index, ..block.part(0, first - start) };
            let head = self.blocks.splice(head);
            self.pools[pool].insert(head, &mut self.blocks[head]);
            self.blocks[index].prev = head;
        }
        if last < end {
            let block = &self.blocks[index];
            let tail = Block { prev: index, ..block.part(last - start, end - last) };
            let tail = self.blocks.splice(tail);
            self.pools[pool].insert(tail, &mut self.blocks[tail]);
            self.blocks[index].next = tail;
        }
        let block = &self.blocks[index];
        let (prev, next) = (block.prev, block.next);
        self.blocks[index] = Block { state: State::Unmapped, ..block.part(first - start, last - first) };
        self.driver.unmap(first, last - first);
        self.merge(index, prev);
        self.merge(index, next);
        self.pools[pool].insert_unmapped(index, &self.blocks[index]);
        self.stats.reserved_bytes.decrease(self.pools[pool].is_small, last - first);
        self.stats.num_device_free += 1;
        self.count_device_free(pool);
        if !self.blocks[index].is_split() {
            self.pools[pool].remove_unmapped(index, &self.blocks[index]);
            self.blocks.vacate(index);
        }
    }
}
