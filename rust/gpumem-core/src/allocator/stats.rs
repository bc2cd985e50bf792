//! Statistics, as `torch.cuda.memory_stats` names them (facts/allocator.md section 11).

use serde::{Deserialize, Serialize};

/// One counter: its value now and its peak since the last reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stat {
    /// Value now.
    pub current: u64,
    /// Largest value since the start or the last [`Stats::reset_peaks`].
    pub peak: u64,
}

impl Stat {
    #[inline]
    pub(super) fn increase(&mut self, amount: u64) {
        self.current += amount;
        if self.current > self.peak {
            self.peak = self.current;
        }
    }

    #[inline]
    pub(super) fn decrease(&mut self, amount: u64) {
        self.current -= amount;
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// A counter for the whole device and for its small and large pools. Peaks are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PoolStat {
    /// Both kinds of pool.
    pub all: Stat,
    /// Blocks of at most 1 MiB.
    pub small_pool: Stat,
    /// The others.
    pub large_pool: Stat,
}

impl PoolStat {
    #[inline]
    fn scoped(&mut self, small: bool) -> &mut Stat {
        if small { &mut self.small_pool } else { &mut self.large_pool }
    }

    #[inline]
    pub(super) fn increase(&mut self, small: bool, amount: u64) {
        self.all.increase(amount);
        self.scoped(small).increase(amount);
    }

    #[inline]
    pub(super) fn decrease(&mut self, small: bool, amount: u64) {
        self.all.decrease(amount);
        self.scoped(small).decrease(amount);
    }

    /// One net change, so that the peak never sees an intermediate value.
    #[inline]
    fn replace(&mut self, small: bool, gone: u64, added: u64) {
        if added >= gone {
            self.increase(small, added - gone);
        } else {
            self.decrease(small, gone - added);
        }
    }

    fn reset_peak(&mut self) {
        self.all.reset_peak();
        self.small_pool.reset_peak();
        self.large_pool.reset_peak();
    }
}

/// Everything the allocator counts. Fields ending in `_bytes` are bytes, the others are counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Blocks handed out and not freed by the program.
    pub allocation: PoolStat,
    /// Cached plus used segments obtained by `cudaMalloc`; expandable memory is not counted here.
    pub segment: PoolStat,
    /// Blocks handed out, or freed but still in use by another stream.
    pub active: PoolStat,
    /// Free blocks that are a part of a segment.
    pub inactive_split: PoolStat,
    /// Whole blocks handed out: `torch.cuda.memory_allocated`.
    pub allocated_bytes: PoolStat,
    /// Segments and mapped memory: `torch.cuda.memory_reserved`.
    pub reserved_bytes: PoolStat,
    /// Bytes of the active blocks.
    pub active_bytes: PoolStat,
    /// Bytes of the free blocks that are a part of a segment.
    pub inactive_split_bytes: PoolStat,
    /// Bytes the program asked for, of the active blocks.
    pub requested_bytes: PoolStat,
    /// Blocks handed out of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Driver calls repeated after the cache was released.
    pub num_alloc_retries: u64,
    /// Out-of-memory errors raised.
    pub num_ooms: u64,
    /// Requests refused before the driver was asked (`throw_on_cudamalloc_oom`).
    pub num_oom_rejections: u64,
    /// Times the cache release waited for all streams.
    pub num_sync_all_streams: u64,
    /// `cudaMalloc` and map calls that succeeded.
    pub num_device_alloc: u64,
    /// `cudaFree` and unmap calls.
    pub num_device_free: u64,
}

impl Stats {
    /// A block of `size` bytes is handed out for a request of `requested` bytes.
    #[inline]
    pub(super) fn hand_out(&mut self, small: bool, size: u64, requested: u64) {
        self.allocation.increase(small, 1);
        self.allocated_bytes.increase(small, size);
        self.active.increase(small, 1);
        self.active_bytes.increase(small, size);
        self.requested_bytes.increase(small, requested);
    }

    /// The program frees a block.
    #[inline]
    pub(super) fn free(&mut self, small: bool, size: u64) {
        self.allocation.decrease(small, 1);
        self.allocated_bytes.decrease(small, size);
    }

    /// A freed block returns to its pool.
    #[inline]
    pub(super) fn deactivate(&mut self, small: bool, size: u64, requested: u64) {
        self.active.decrease(small, 1);
        self.active_bytes.decrease(small, size);
        self.requested_bytes.decrease(small, requested);
    }

    /// A free block that is a part of a segment (or not: `None`) takes the place of the ones it `absorbed`; zero
    /// stands for no block.
    #[inline]
    pub(super) fn replace_inactive_split(&mut self, small: bool, absorbed: [u64; 2], merged: Option<u64>) {
        let gone = absorbed.iter().map(|&bytes| u64::from(bytes > 0)).sum();
        let gone_bytes = absorbed[0] + absorbed[1];
        self.inactive_split.replace(small, gone, u64::from(merged.is_some()));
        self.inactive_split_bytes.replace(small, gone_bytes, merged.unwrap_or(0));
    }

    /// Sets every peak to the current value (`torch.cuda.reset_peak_memory_stats`).
    pub fn reset_peaks(&mut self) {
        for stat in [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ] {
            stat.reset_peak();
        }
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }
}
