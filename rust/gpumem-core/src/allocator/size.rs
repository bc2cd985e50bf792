//! Sizes: the allocator's constants and its two rounding rules.
//!
//! Source of every number: facts/allocator.md sections 1, 3 and 4 (torch 2.14.1
//! `c10/core/AllocatorConfig.h`, checked against the real `libc10_cuda`).

use super::conf::AllocConf;
use crate::units::MIB;

/// Size quantum of a block, in bytes.
pub(super) const MIN_BLOCK_BYTES: u64 = 512;
/// Rounded sizes up to this come from the small pool; also the split threshold of the large pool.
pub(super) const SMALL_LIMIT_BYTES: u64 = MIB;
/// Segment taken from the driver for every small-pool miss, and granule of small expandable ranges.
pub(super) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// Rounded sizes strictly below this share a large segment.
pub(super) const MID_LIMIT_BYTES: u64 = 10 * MIB;
/// Segment quantum at and above [`MID_LIMIT_BYTES`].
pub(super) const LARGE_ROUND_BYTES: u64 = 2 * MIB;
/// Requests of this many bytes or more fail at once (facts/allocator.md section 2).
pub(super) const REQUEST_CEILING_BYTES: u64 = 1 << 60;
/// Number of sizes for which `roundup_power2_divisions` can differ: one per power of two from 1 MiB.
pub(super) const DIVISION_SLOTS: usize = 16;

/// The settings as the allocator uses them: in bytes, with the defaults filled in.
#[derive(Debug, Clone)]
pub(super) struct Knobs {
    pub(super) expandable_segments: bool,
    pub(super) max_split_bytes: u64,
    pub(super) max_non_split_rounding_bytes: u64,
    pub(super) divisions: Option<[u64; DIVISION_SLOTS]>,
    pub(super) garbage_collection_threshold: f64,
    pub(super) large_segment_bytes: u64,
    pub(super) memory_fraction: f64,
    pub(super) throw_on_cudamalloc_oom: bool,
}

impl Knobs {
    pub(super) fn new(conf: &AllocConf) -> Self {
        let divisions = *conf.roundup_power2_divisions();
        Self {
            expandable_segments: conf.expandable_segments(),
            max_split_bytes: conf.max_split_size_mb().map_or(u64::MAX, |mb| mb.saturating_mul(MIB)),
            max_non_split_rounding_bytes: conf.max_non_split_rounding_mb().saturating_mul(MIB),
            divisions: divisions.iter().any(|&d| d > 1).then_some(divisions),
            garbage_collection_threshold: conf.garbage_collection_threshold(),
            large_segment_bytes: conf.large_segment_size_mb() * MIB,
            memory_fraction: conf.per_process_memory_fraction(),
            throw_on_cudamalloc_oom: conf.throw_on_cudamalloc_oom(),
        }
    }

    /// Bytes of the block a request needs (facts/allocator.md section 3). `requested` is below
    /// [`REQUEST_CEILING_BYTES`], so nothing here can overflow.
    #[inline]
    pub(super) fn block_bytes(&self, requested: u64) -> u64 {
        if let Some(divisions) = &self.divisions {
            let octave = requested.max(1).ilog2().saturating_sub(MIB.ilog2()) as usize;
            let division = divisions[octave.min(DIVISION_SLOTS - 1)];
            if division > 1 && requested > MIN_BLOCK_BYTES * division {
                return round_up_to_division(requested, division);
            }
        }
        requested.max(1).next_multiple_of(MIN_BLOCK_BYTES)
    }

    /// Bytes asked of `cudaMalloc` when a block of `size` bytes is not in the cache (section 4).
    pub(super) fn segment_bytes(&self, size: u64) -> u64 {
        if size <= SMALL_LIMIT_BYTES {
            SMALL_SEGMENT_BYTES
        } else if size < MID_LIMIT_BYTES {
            self.large_segment_bytes
        } else {
            size.next_multiple_of(LARGE_ROUND_BYTES)
        }
    }
}

/// The next of the `division` equal steps between two powers of two. `division` is a power of two.
fn round_up_to_division(requested: u64, division: u64) -> u64 {
    if requested.is_power_of_two() {
        return requested;
    }
    let floor = 1 << requested.ilog2();
    match floor >> division.ilog2() {
        0 => floor << 1,
        step => requested.next_multiple_of(step),
    }
}

/// `fraction` of `bytes` in double precision, truncated: thresholds.
pub(super) fn fraction_of(bytes: u64, fraction: f64) -> u64 {
    to_bytes(fraction * to_double(bytes))
}

/// `fraction` of `bytes` in double precision, rounded to the nearest: the memory limit. Measured on torch 2.14.1 at
/// products a little below a multiple of 2 MiB; facts/allocator.md section 8 still says truncated.
pub(super) fn nearest_fraction_of(bytes: u64, fraction: f64) -> u64 {
    to_bytes((fraction * to_double(bytes)).round())
}

#[expect(clippy::cast_precision_loss, reason = "PyTorch computes these products in double precision too")]
fn to_double(bytes: u64) -> f64 {
    bytes as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a saturating cast: the product of a fraction and a u64 is a u64"
)]
fn to_bytes(value: f64) -> u64 {
    value as u64
}
