//! The free blocks of one pool, in the order the search needs: (stream, size, order).

use super::block::StreamId;
use super::size::MIN_BLOCK_BYTES;

/// A free block as its set knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) size: u64,
    /// Decides between equal sizes: see [`TieBreak`](super::driver::TieBreak).
    pub(super) order: u64,
    pub(super) block: u32,
}

/// A place in the set: which stream, which of its size classes, which entry there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    stream: usize,
    class: usize,
    entry: usize,
}

/// Free blocks ordered by (stream, size, order). Streams never mix in a search, so each has its own entries.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeSet {
    streams: Vec<(StreamId, SizeClasses)>,
}

/// Classes per power of two.
const STEPS: usize = 4;
/// From 512 bytes; sizes of 1.75 TiB and more share the last class.
const CLASSES: usize = 128;

/// Entries by size, a quarter of a power of two to a class, so that a change moves a few neighbours only.
#[derive(Debug, Clone)]
struct SizeClasses {
    /// Bit `c` is set when class `c` has entries.
    occupied: u128,
    /// Each sorted by (size, order).
    classes: Box<[Vec<Entry>; CLASSES]>,
}

impl SizeClasses {
    fn new() -> Self {
        Self { occupied: 0, classes: Box::new([const { Vec::new() }; CLASSES]) }
    }

    /// The first class above `class` that has entries.
    #[inline]
    fn next_class(&self, class: usize) -> Option<usize> {
        let above = self.occupied & (u128::MAX - 1).checked_shl(u32::try_from(class).ok()?)?;
        (above != 0).then_some(above.trailing_zeros() as usize)
    }
}

/// Grows with the size; `size` is that of a block.
#[inline]
fn class_of(size: u64) -> usize {
    let octave = size.ilog2();
    // The two bits below the leading one.
    let step = usize::from(size & (1 << (octave - 1)) != 0) * 2 + usize::from(size & (1 << (octave - 2)) != 0);
    let class = (octave - MIN_BLOCK_BYTES.ilog2()) as usize * STEPS + step;
    class.min(CLASSES - 1)
}

/// The first entry not below (size, order).
#[inline]
fn lower_bound(entries: &[Entry], size: u64, order: u64) -> usize {
    // As one number: two instructions and no branch.
    let place = |size: u64, order: u64| (u128::from(size) << u64::BITS) | u128::from(order);
    let wanted = place(size, order);
    entries.partition_point(|entry| place(entry.size, entry.order) < wanted)
}

impl FreeSet {
    #[inline]
    fn find_stream(&self, stream: StreamId) -> Result<usize, usize> {
        match self.streams.first() {
            Some((first, _)) if *first == stream => Ok(0),
            _ => self.streams.binary_search_by_key(&stream, |(id, _)| *id),
        }
    }

    /// Adds a block.
    #[inline]
    pub(super) fn insert(&mut self, stream: StreamId, entry: Entry) {
        let stream = self.find_stream(stream).unwrap_or_else(|at| {
            self.streams.insert(at, (stream, SizeClasses::new()));
            at
        });
        let sizes = &mut self.streams[stream].1;
        let class = class_of(entry.size);
        let entries = &mut sizes.classes[class];
        let at = lower_bound(entries, entry.size, entry.order);
        entries.insert(at, entry);
        sizes.occupied |= 1 << class;
    }

    /// Removes a block that is in the set.
    #[inline]
    pub(super) fn remove(&mut self, stream: StreamId, size: u64, order: u64) {
        if let Ok(stream) = self.find_stream(stream) {
            let class = class_of(size);
            let entry = lower_bound(&self.streams[stream].1.classes[class], size, order);
            self.take(Position { stream, class, entry });
        }
    }

    /// Removes the block at `position`.
    #[inline]
    pub(super) fn take(&mut self, position: Position) -> u32 {
        let sizes = &mut self.streams[position.stream].1;
        let entries = &mut sizes.classes[position.class];
        let taken = entries.remove(position.entry);
        if entries.is_empty() {
            sizes.occupied &= !(1 << position.class);
        }
        taken.block
    }

    /// The smallest block of `stream` with at least `size` bytes, the first of equals.
    #[inline]
    pub(super) fn best_fit(&self, stream: StreamId, size: u64) -> Option<(Position, Entry)> {
        let stream = self.find_stream(stream).ok()?;
        let sizes = &self.streams[stream].1;
        let class = class_of(size);
        let entry = lower_bound(&sizes.classes[class], size, 0);
        if let Some(&found) = sizes.classes[class].get(entry) {
            return Some((Position { stream, class, entry }, found));
        }
        let class = sizes.next_class(class)?;
        sizes.classes[class].first().map(|&found| (Position { stream, class, entry: 0 }, found))
    }

    /// The next larger block of the same stream.
    pub(super) fn next(&self, position: Position) -> Option<(Position, Entry)> {
        let sizes = &self.streams[position.stream].1;
        let entry = position.entry + 1;
        if let Some(&found) = sizes.classes[position.class].get(entry) {
            return Some((Position { entry, ..position }, found));
        }
        let class = sizes.next_class(position.class)?;
        sizes.classes[class].first().map(|&found| (Position { class, entry: 0, ..position }, found))
    }

    /// The blocks of `stream` below `size` bytes, largest first.
    pub(super) fn below(&self, stream: StreamId, size: u64) -> impl Iterator<Item = Entry> {
        let classes = self.find_stream(stream).map_or(&[][..], |stream| &self.streams[stream].1.classes[..]);
        classes.iter().flatten().rev().copied().filter(move |entry| entry.size < size)
    }

    /// Every block in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.streams.iter().flat_map(|(_, sizes)| sizes.classes.iter().flatten().copied())
    }
}
