//! A range of addresses that belongs to nobody else and that nothing can be read from or written to.

use std::ptr;

use crate::accounts::GRANULARITY_BYTES;

/// Sizes that are tried, largest first: expandable segments reserve a multiple of the card's memory each, and some
/// machines limit the addresses of a process.
const SIZES: [usize; 5] = [1 << 44, 1 << 42, 1 << 40, 1 << 38, 1 << 36];

/// The reserved range: first address and the one after the last, both multiples of [`GRANULARITY_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Reservation {
    /// Reserve as much as the machine gives; none if it gives nothing.
    pub(crate) fn make() -> Option<Self> {
        SIZES.into_iter().find_map(|bytes| {
            // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of ours.
            let at = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    bytes,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if at == libc::MAP_FAILED {
                return None;
            }
            let start = (at as u64).checked_next_multiple_of(GRANULARITY_BYTES)?;
            let end = (at as u64).checked_add(bytes as u64)? / GRANULARITY_BYTES * GRANULARITY_BYTES;
            Some(Self { start, end })
        })
    }

    /// Whether `address` lies in it.
    pub(crate) const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_large_and_aligned() {
        let range = Reservation::make().unwrap();
        assert!(range.end - range.start >= (1 << 36) - 2 * GRANULARITY_BYTES);
        assert_eq!((range.start % GRANULARITY_BYTES, range.end % GRANULARITY_BYTES), (0, 0));
        assert!(range.contains(range.start) && !range.contains(range.end));
    }
}
