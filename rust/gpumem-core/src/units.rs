//! The only place that knows how big a KiB is.

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

/// `value` rounded up to a multiple of `quantum`; `None` when that exceeds `u64`.
#[must_use]
pub const fn round_up(value: u64, quantum: u64) -> Option<u64> {
    value.checked_next_multiple_of(quantum)
}
