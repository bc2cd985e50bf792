//! The free blocks of one pool, in the order the search needs: (stream, size, order).

use super::block::StreamId;

/// A free block as its set knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) size: u64,
    /// Decides between equal sizes: see [`TieBreak`](super::driver::TieBreak).
    pub(super) order: u64,
    pub(super) block: u32,
}

/// A place in the set: which stream, and which of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    stream: usize,
    entry: usize,
}

#[derive(Debug, Clone)]
struct StreamEntries {
    stream: StreamId,
    /// Sorted by (size, order).
    entries: Vec<Entry>,
}

/// Free blocks ordered by (stream, size, order). Streams never mix in a search, so each has a sorted
/// vector of its own: a binary search and one short move per change, and no allocation once warm.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeSet {
    streams: Vec<StreamEntries>,
}

impl FreeSet {
    #[inline]
    fn find_stream(&self, stream: StreamId) -> Result<usize, usize> {
        match self.streams.first() {
            Some(first) if first.stream == stream => Ok(0),
            _ => self.streams.binary_search_by_key(&stream, |entries| entries.stream),
        }
    }

    /// Adds a block.
    pub(super) fn insert(&mut self, stream: StreamId, entry: Entry) {
        let stream = self.find_stream(stream).unwrap_or_else(|at| {
            self.streams.insert(at, StreamEntries { stream, entries: Vec::new() });
            at
        });
        let entries = &mut self.streams[stream].entries;
        let at = lower_bound(entries, entry.size, entry.order);
        entries.insert(at, entry);
    }

    /// Removes a block that is in the set.
    pub(super) fn remove(&mut self, stream: StreamId, size: u64, order: u64) {
        if let Ok(stream) = self.find_stream(stream) {
            let entries = &mut self.streams[stream].entries;
            let at = lower_bound(entries, size, order);
            debug_assert!(entries.get(at).is_some_and(|found| (found.size, found.order) == (size, order)));
            entries.remove(at);
        }
    }

    /// Removes the block at `position`.
    pub(super) fn take(&mut self, position: Position) -> u32 {
        self.streams[position.stream].entries.remove(position.entry).block
    }

    /// The smallest block of `stream` with at least `size` bytes, the first of equals.
    #[inline]
    pub(super) fn best_fit(&self, stream: StreamId, size: u64) -> Option<Position> {
        let stream = self.find_stream(stream).ok()?;
        let entry = lower_bound(&self.streams[stream].entries, size, 0);
        (entry < self.streams[stream].entries.len()).then_some(Position { stream, entry })
    }

    /// The next larger block of the same stream.
    pub(super) fn next(&self, position: Position) -> Option<Position> {
        let entry = position.entry + 1;
        (entry < self.streams[position.stream].entries.len()).then_some(Position { entry, ..position })
    }

    /// The entry at `position`.
    #[inline]
    pub(super) fn at(&self, position: Position) -> Entry {
        self.streams[position.stream].entries[position.entry]
    }

    /// The blocks of `stream` below `size` bytes, largest first.
    pub(super) fn below(&self, stream: StreamId, size: u64) -> impl Iterator<Item = Entry> {
        let entries = self.find_stream(stream).map_or(&[][..], |stream| &self.streams[stream].entries);
        entries[..lower_bound(entries, size, 0)].iter().rev().copied()
    }

    /// Every block in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.streams.iter().flat_map(|stream| stream.entries.iter().copied())
    }
}

#[inline]
fn lower_bound(entries: &[Entry], size: u64, order: u64) -> usize {
    entries.partition_point(|entry| (entry.size, entry.order) < (size, order))
}
