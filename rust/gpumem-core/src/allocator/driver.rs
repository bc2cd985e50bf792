//! The driver below the allocator: how many bytes it can hand out, and where.

use std::collections::VecDeque;

use crate::units::{MIB, round_up};

/// Granularity of `cudaMalloc`: what a segment takes from the device is a multiple of this
/// (facts/allocator.md section 16 item 2).
const DEVICE_PAGE_BYTES: u64 = 2 * MIB;
/// Where segments start; arbitrary, and the same as the reference harness uses
/// (`shared/vgpu/allocator_harness/fakecudart.cpp`), so that addresses can be compared.
const SEGMENT_BASE: u64 = 0x7f00_0000_0000;
/// Where expandable ranges start; arbitrary, as above.
const RANGE_BASE: u64 = 0x2000_0000_0000;
/// Address gap after every expandable range; arbitrary, as above.
const RANGE_GAP_BYTES: u64 = 1 << 40;
/// Total of [`Driver::unlimited`]: larger than any device, small enough that address arithmetic cannot overflow.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// How `cudaMalloc` chooses addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Placement {
    Ascending,
    Descending,
    Scripted(VecDeque<u64>),
}

/// Which of several free blocks of one stream and one size is used first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TieBreak {
    /// The one in the oldest segment or range, and within it the one at the lowest address: torch 2.14.1.
    ///
    /// Measured on its `libc10_cuda` with descending addresses (`tests/allocator_real.rs`); it is the order of the
    /// `registration_counter` in `c10/core/CachingDeviceAllocator.h`, which torch 2.9.1 does not have.
    #[default]
    SegmentAge,
    /// The one at the lowest address: versions without that counter, so every recorded trace at hand.
    Address,
}

/// A new piece of address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) address: u64,
    /// Its place in the order of [`TieBreak`]; grows with the address inside the piece.
    pub(super) order: u64,
}

/// Something the allocator asked of the driver, and got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverCall {
    /// `cudaMalloc` of a segment.
    Malloc {
        /// Address of the segment.
        address: u64,
        /// Bytes asked for.
        bytes: u64,
    },
    /// `cudaFree` of a segment.
    Free {
        /// Address of the segment.
        address: u64,
        /// Bytes of the segment.
        bytes: u64,
    },
    /// Memory mapped into an expandable range.
    Map {
        /// Address of the first byte.
        address: u64,
        /// Bytes mapped.
        bytes: u64,
    },
    /// Memory unmapped from an expandable range.
    Unmap {
        /// Address of the first byte.
        address: u64,
        /// Bytes unmapped.
        bytes: u64,
    },
}

/// Device memory as the allocator sees it: a number of bytes behind `cudaMalloc`.
#[derive(Debug, Clone)]
pub struct Driver {
    capacity_bytes: u64,
    total_bytes: u64,
    used_bytes: u64,
    placement: Placement,
    tie_break: TieBreak,
    next_order: u64,
    next_segment: u64,
    next_range: u64,
    calls: Option<Vec<DriverCall>>,
}

impl Driver {
    /// A device that can hand out `capacity_bytes` in all (its total less the CUDA context and whatever
    /// else lives there) and reports `total_bytes` as `totalGlobalMem`, of which memory fractions are taken.
    #[must_use]
    pub fn new(capacity_bytes: u64, total_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            total_bytes: total_bytes.min(UNLIMITED_BYTES),
            used_bytes: 0,
            placement: Placement::Ascending,
            tie_break: TieBreak::default(),
            next_order: 0,
            next_segment: SEGMENT_BASE,
            next_range: RANGE_BASE,
            calls: None,
        }
    }

    /// A device that never runs out: for questions about peaks alone.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(UNLIMITED_BYTES, UNLIMITED_BYTES)
    }

    /// Hands out segments at descending addresses instead of ascending ones.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.placement = Placement::Descending;
        self
    }

    /// Hands out segments at these addresses, in order; used to replay a recorded trace. When the list is
    /// exhausted the driver is out of memory.
    #[must_use]
    pub fn scripted(mut self, addresses: impl IntoIterator<Item = u64>) -> Self {
        self.placement = Placement::Scripted(addresses.into_iter().collect());
        self
    }

    /// Chooses the rule for ties, which differs between torch versions.
    #[must_use]
    pub fn with_tie_break(mut self, tie_break: TieBreak) -> Self {
        self.tie_break = tie_break;
        self
    }

    /// Keeps a list of the calls that succeeded, to be read with [`Self::calls`].
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.calls = Some(Vec::new());
        self
    }

    /// The calls that succeeded, oldest first; empty unless [`Self::recording`].
    #[must_use]
    pub fn calls(&self) -> &[DriverCall] {
        self.calls.as_deref().unwrap_or_default()
    }

    fn record(&mut self, call: DriverCall) {
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    /// Bytes `cudaMalloc` can hand out in all.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// `totalGlobalMem` of the device, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes `cudaMemGetInfo` would report as free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.capacity_bytes - self.used_bytes
    }

    /// Enters a new piece of address space into the order of ties.
    fn place(&mut self, address: u64, bytes: u64) -> Option<Placed> {
        let next_order = self.next_order.checked_add(bytes)?;
        let order = match self.tie_break {
            TieBreak::SegmentAge => std::mem::replace(&mut self.next_order, next_order),
            TieBreak::Address => address,
        };
        Some(Placed { address, order })
    }

    /// `cudaMalloc`: where the new segment is, or `None` when out of memory.
    pub(super) fn malloc(&mut self, bytes: u64) -> Option<Placed> {
        let paged = round_up(bytes, DEVICE_PAGE_BYTES)?;
        if paged > self.free_bytes() {
            return None;
        }
        let address = match &mut self.placement {
            Placement::Ascending => {
                let address = self.next_segment;
                self.next_segment = address.checked_add(paged)?;
                address
            }
            Placement::Descending => {
                self.next_segment = self.next_segment.checked_sub(paged)?;
                self.next_segment
            }
            Placement::Scripted(addresses) => addresses.pop_front()?,
        };
        let placed = self.place(address, bytes)?;
        self.used_bytes += paged;
        self.record(DriverCall::Malloc { address, bytes });
        Some(placed)
    }

    /// Counts a segment that already exists at an address of its own (a restored snapshot).
    pub(super) fn adopt(&mut self, address: u64, bytes: u64) -> Option<Placed> {
        let paged = round_up(bytes, DEVICE_PAGE_BYTES).filter(|&paged| paged <= self.free_bytes())?;
        let placed = self.place(address, bytes)?;
        self.used_bytes += paged;
        Some(placed)
    }

    /// `cudaFree` of a segment.
    pub(super) fn free(&mut self, address: u64, bytes: u64) {
        self.record(DriverCall::Free { address, bytes });
        self.used_bytes -= bytes.next_multiple_of(DEVICE_PAGE_BYTES);
    }

    /// `cuMemAddressReserve`: address space only.
    pub(super) fn reserve_range(&mut self, bytes: u64) -> Option<Placed> {
        let address = self.next_range;
        self.next_range = address.checked_add(bytes)?.checked_add(RANGE_GAP_BYTES)?;
        self.place(address, bytes)
    }

    /// `cuMemCreate` and `cuMemMap` of whole granules, all of them or none.
    pub(super) fn map(&mut self, address: u64, bytes: u64) -> bool {
        let fits = bytes <= self.free_bytes();
        if fits {
            self.record(DriverCall::Map { address, bytes });
            self.used_bytes += bytes;
        }
        fits
    }

    /// `cuMemUnmap` and `cuMemRelease`.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) {
        self.record(DriverCall::Unmap { address, bytes });
        self.used_bytes -= bytes;
    }
}
