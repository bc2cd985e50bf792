//! Integer arithmetic that reports an overflow with the operator's name instead of wrapping.

use thiserror::Error;

/// A size of `op` does not fit 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{op}: a size does not fit 64 bits")]
pub struct SizeOverflow {
    /// The operator whose size overflowed.
    pub op: &'static str,
}

/// Product of `factors`.
///
/// # Errors
/// [`SizeOverflow`] naming `op`.
pub fn product(op: &'static str, factors: &[u64]) -> Result<u64, SizeOverflow> {
    factors.iter().try_fold(1_u64, |total, &factor| total.checked_mul(factor)).ok_or(SizeOverflow { op })
}

/// Sum of `terms`.
///
/// # Errors
/// [`SizeOverflow`] naming `op`.
pub fn sum(op: &'static str, terms: &[u64]) -> Result<u64, SizeOverflow> {
    terms.iter().try_fold(0_u64, |total, &term| total.checked_add(term)).ok_or(SizeOverflow { op })
}

/// `value` rounded up to a multiple of `quantum`.
///
/// # Errors
/// [`SizeOverflow`] naming `op`.
pub fn round_up(op: &'static str, value: u64, quantum: u64) -> Result<u64, SizeOverflow> {
    crate::units::round_up(value, quantum).ok_or(SizeOverflow { op })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_an_error_with_the_ops_name() {
        assert_eq!(product("conv", &[1 << 40, 1 << 23]), Ok(1 << 63));
        assert_eq!(product("conv", &[1 << 40, 1 << 24]), Err(SizeOverflow { op: "conv" }));
        assert_eq!(sum("sum", &[u64::MAX, 1]), Err(SizeOverflow { op: "sum" }));
        assert_eq!(round_up("pad", u64::MAX, 2), Err(SizeOverflow { op: "pad" }));
        assert_eq!(round_up("pad", 5, 4), Ok(8));
    }
}
