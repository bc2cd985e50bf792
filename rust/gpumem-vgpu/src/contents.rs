//! Small values that the host put on a device, until a kernel could have changed them.
//!
//! Nothing is computed, so a device's memory reads as zeros. But what the host wrote and nobody touched since is known,
//! and programs rely on it where no kernel is between: sizes that processes compare before they train together, lengths
//! copied there and back. Any kernel may write anywhere, so one kernel ends all of this knowledge.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Larger writes are data and not values; they are forgotten.
const LARGEST_BYTES: usize = 64 << 10;
/// With more pieces than this the program is loading a model and not comparing values.
const MOST_PIECES: usize = 1024;

static KNOWN: Mutex<Contents> = Mutex::new(Contents { pieces: BTreeMap::new() });
/// Whether [`KNOWN`] has anything: a launch looks at this alone.
static ANY: AtomicBool = AtomicBool::new(false);

/// Pieces that do not overlap, by address.
#[derive(Debug)]
struct Contents {
    pieces: BTreeMap<usize, Vec<u8>>,
}

impl Contents {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.forget(at, bytes.len());
        if bytes.is_empty() || bytes.len() > LARGEST_BYTES {
            return;
        }
        if self.pieces.len() >= MOST_PIECES {
            self.pieces.clear();
        }
        self.pieces.insert(at, bytes.to_vec());
    }

    /// The part of the pieces between `at` and `at + length`, as offset and bytes.
    fn parts(&self, at: usize, length: usize) -> Vec<(usize, Vec<u8>)> {
        let end = at.saturating_add(length);
        self.overlapping(at, end)
            .filter_map(|start| {
                let piece = self.pieces.get(&start)?;
                let (from, to) = (start.max(at), (start + piece.len()).min(end));
                Some((from - at, piece.get(from - start..to - start)?.to_vec()))
            })
            .collect()
    }

    /// Cut `at..at + length` out of the pieces.
    fn forget(&mut self, at: usize, length: usize) {
        let end = at.saturating_add(length);
        let starts: Vec<usize> = self.overlapping(at, end).collect();
        for start in starts {
            let Some(mut piece) = self.pieces.remove(&start) else { continue };
            if start + piece.len() > end {
                self.pieces.insert(end, piece.split_off(end - start));
            }
            if start < at {
                piece.truncate(at - start);
                self.pieces.insert(start, piece);
            }
        }
    }

    fn overlapping(&self, at: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        let first = at.saturating_sub(LARGEST_BYTES);
        self.pieces.range(first..end).filter(move |(start, piece)| *start + piece.len() > at).map(|(start, _)| *start)
    }
}

fn known() -> MutexGuard<'static, Contents> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any value is known.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The host wrote `bytes` to the device address `at`.
pub(crate) fn write(at: usize, bytes: &[u8]) {
    if bytes.len() <= LARGEST_BYTES {
        ANY.store(true, Ordering::Relaxed);
    } else if !ANY.load(Ordering::Relaxed) {
        return;
    }
    known().write(at, bytes);
}

/// `length` bytes were copied from one device address to another.
pub(crate) fn copy(to: usize, from: usize, length: usize) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let mut known = known();
    let parts = known.parts(from, length);
    known.forget(to, length);
    for (offset, bytes) in parts {
        known.write(to + offset, &bytes);
    }
}

/// Something unknown was written to `length` bytes at `at`.
pub(crate) fn forget(at: usize, length: usize) {
    if ANY.load(Ordering::Relaxed) {
        known().forget(at, length);
    }
}

/// A kernel ran.
pub(crate) fn forget_all() {
    if ANY.swap(false, Ordering::Relaxed) {
        known().pieces.clear();
    }
}

/// What is known of `length` bytes at `at`: offsets and bytes; all else reads as zeros.
pub(crate) fn read(at: usize, length: usize) -> Vec<(usize, Vec<u8>)> {
    if ANY.load(Ordering::Relaxed) { known().parts(at, length) } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Contents {
        let mut contents = Contents { pieces: BTreeMap::new() };
        contents.write(100, &[1, 2, 3, 4]);
        contents.write(104, &[5, 6]);
        contents
    }

    #[test]
    fn a_read_sees_the_parts_it_covers() {
        assert_eq!(contents().parts(102, 3), [(0, vec![3, 4]), (2, vec![5])]);
        assert_eq!(contents().parts(90, 11), [(10, vec![1])]);
        assert_eq!(contents().parts(106, 10), []);
        assert_eq!(contents().parts(0, usize::MAX).len(), 2);
    }

    #[test]
    fn a_write_replaces_what_it_covers() {
        let mut contents = contents();
        contents.write(102, &[9, 9, 9]);
        assert_eq!(contents.parts(100, 6), [(0, vec![1, 2]), (2, vec![9, 9, 9]), (5, vec![6])]);
        contents.write(101, &vec![0; LARGEST_BYTES + 1]);
        assert_eq!(contents.parts(100, 6), [(0, vec![1])]);
    }

    #[test]
    fn the_middle_of_a_piece_can_be_forgotten() {
        let mut contents = contents();
        contents.forget(101, 2);
        assert_eq!(contents.parts(100, 4), [(0, vec![1]), (3, vec![4])]);
    }

    #[test]
    fn many_pieces_are_dropped() {
        let mut contents = contents();
        for index in 0..2 * MOST_PIECES {
            contents.write(1000 + 10 * index, &[1]);
        }
        assert!(contents.pieces.len() <= MOST_PIECES);
    }
}
