//! Where in the reserved range of addresses a segment lies.
//!
//! The driver's choice is not documented, and it decides ties in the caching allocator's best fit
//! (`facts/virtual_vs_real.md`, difference 1), so the order is a setting; bottom-up is the default.

use std::collections::BTreeMap;

use crate::accounts::GRANULARITY_BYTES;

/// Which gap a segment goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lowest gap that is large enough.
    BottomUp,
    /// The highest gap that is large enough.
    TopDown,
    /// The first gap above a random place; the number is the seed.
    Random(u64),
}

/// What a range of addresses is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Memory from `cudaMalloc`.
    Memory,
    /// Addresses alone, from `cuMemAddressReserve`.
    Addresses,
    /// Another process's memory, from `cudaIpcOpenMemHandle`.
    Shared,
}

/// A range in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// First address.
    pub(crate) start: u64,
    /// Length in bytes, a multiple of [`GRANULARITY_BYTES`].
    pub(crate) bytes: u64,
    /// The device that asked for it.
    pub(crate) device: usize,
    /// What it is for.
    pub(crate) purpose: Purpose,
}

impl Range {
    const fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The addresses from `start` to `end` and which are in use.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    start: u64,
    end: u64,
    order: Order,
    ranges: BTreeMap<u64, Range>,
}

impl AddressSpace {
    /// All of `start..end` is free.
    pub(crate) const fn new(start: u64, end: u64, order: Order) -> Self {
        Self { start, end, order, ranges: BTreeMap::new() }
    }

    /// A free range of `bytes` (a multiple of [`GRANULARITY_BYTES`]) at a multiple of `alignment`, or none.
    pub(crate) fn place(&mut self, bytes: u64, alignment: u64, device: usize, purpose: Purpose) -> Option<u64> {
        let alignment = alignment.max(GRANULARITY_BYTES);
        if bytes == 0 || !alignment.is_power_of_two() {
            return None;
        }
        let start = match self.order {
            Order::BottomUp => self.lowest(self.start, bytes, alignment),
            Order::TopDown => self.highest(bytes, alignment),
            Order::Random(state) => {
                let (next, offset) = self.random_offset(state);
                self.order = Order::Random(next);
                self.lowest(self.start + offset, bytes, alignment).or_else(|| self.lowest(self.start, bytes, alignment))
            }
        }?;
        self.ranges.insert(start, Range { start, bytes, device, purpose });
        Some(start)
    }

    /// The range that holds `address`.
    pub(crate) fn holding(&self, address: u64) -> Option<&Range> {
        self.ranges.range(..=address).next_back().map(|(_, range)| range).filter(|range| address < range.end())
    }

    /// Free the range that begins at `address`, if it is one of this purpose.
    pub(crate) fn release(&mut self, address: u64, purpose: Purpose) -> Option<Range> {
        self.ranges.get(&address).filter(|range| range.purpose == purpose)?;
        self.ranges.remove(&address)
    }

    fn lowest(&self, from: u64, bytes: u64, alignment: u64) -> Option<u64> {
        let from = self.holding(from).map_or(from, Range::end);
        let mut at = from.checked_next_multiple_of(alignment)?;
        for (_, range) in self.ranges.range(from..) {
            if at.checked_add(bytes)? <= range.start {
                return Some(at);
            }
            at = at.max(range.end().checked_next_multiple_of(alignment)?);
        }
        (at.checked_add(bytes)? <= self.end).then_some(at)
    }

    fn highest(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let fits = |lower: u64, upper: u64| {
            let at = upper.checked_sub(bytes)? / alignment * alignment;
            (at >= lower).then_some(at)
        };
        let mut upper = self.end;
        for range in self.ranges.values().rev() {
            if let Some(at) = fits(range.end(), upper) {
                return Some(at);
            }
            upper = range.start;
        }
        fits(self.start, upper)
    }

    /// The next state of a linear congruential generator (Knuth's MMIX constants), and a place in the lower half.
    const fn random_offset(&self, state: u64) -> (u64, u64) {
        let next = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let half = (self.end - self.start) / 2;
        (next, (next >> 20) % (half + 1) / GRANULARITY_BYTES * GRANULARITY_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB2: u64 = GRANULARITY_BYTES;
    const START: u64 = 64 * MIB2;

    fn space(order: Order) -> AddressSpace {
        AddressSpace::new(START, START + 8 * MIB2, order)
    }

    fn place(space: &mut AddressSpace, pieces: u64) -> Option<u64> {
        space.place(pieces * MIB2, 1, 0, Purpose::Memory).map(|at| (at - START) / MIB2)
    }

    #[test]
    fn bottom_up_takes_the_lowest_gap_that_is_large_enough() {
        let mut space = space(Order::BottomUp);
        assert_eq!([2, 1, 3].map(|pieces| place(&mut space, pieces)), [Some(0), Some(2), Some(3)]);
        assert!(space.release(START, Purpose::Memory).is_some());
        assert_eq!(place(&mut space, 3), None);
        assert_eq!(place(&mut space, 2), Some(0));
        assert_eq!(place(&mut space, 2), Some(6));
        assert_eq!(place(&mut space, 1), None);
    }

    #[test]
    fn top_down_takes_the_highest_gap_that_is_large_enough() {
        let mut space = space(Order::TopDown);
        assert_eq!([2, 1, 3].map(|pieces| place(&mut space, pieces)), [Some(6), Some(5), Some(2)]);
        assert!(space.release(START + 6 * MIB2, Purpose::Memory).is_some());
        assert_eq!(place(&mut space, 1), Some(7));
        assert_eq!(place(&mut space, 2), Some(0));
        assert_eq!(place(&mut space, 2), None);
    }

    #[test]
    fn random_places_never_overlap_and_fill_the_space() {
        for seed in 0..50 {
            let mut space = space(Order::Random(seed));
            let mut taken: Vec<u64> = (0..8).filter_map(|_| place(&mut space, 1)).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..8).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn alignment_is_kept_and_a_range_answers_for_its_addresses() {
        let mut space = AddressSpace::new(START + MIB2, START + 64 * MIB2, Order::BottomUp);
        let at = space.place(MIB2, 16 * MIB2, 1, Purpose::Addresses).unwrap();
        assert_eq!(at % (16 * MIB2), 0);
        assert_eq!(space.holding(at + MIB2 - 1).map(|range| range.device), Some(1));
        assert_eq!(space.holding(at + MIB2), None);
        assert_eq!(space.release(at, Purpose::Memory), None);
        assert!(space.release(at, Purpose::Addresses).is_some());
    }

    #[test]
    fn impossible_requests_are_refused() {
        let mut space = space(Order::BottomUp);
        assert_eq!(space.place(u64::MAX / MIB2 * MIB2, 1, 0, Purpose::Memory), None);
        assert_eq!(space.place(0, 1, 0, Purpose::Memory), None);
        assert_eq!(space.place(MIB2, 3 * MIB2, 0, Purpose::Memory), None);
    }
}
