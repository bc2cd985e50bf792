//! The only place that knows how big a KiB is.

use std::fmt::{self, Write};

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

/// A size in an error or an assumption: `22.35 GiB (24,000,000,000 bytes)`, as `gpumem.units.format_bytes` and reports
/// write it; `{:#}` leaves the exact bytes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let unit =
            [("TiB", GIB * KIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)].into_iter().find(|unit| bytes >= unit.1);
        let Some((name, unit)) = unit else { return write!(f, "{bytes} bytes") };
        // Hundredths, a half to the even one as Python rounds, in integers.
        let (exact, unit) = (u128::from(bytes) * 100, u128::from(unit));
        let (floor, rest) = (exact / unit, 2 * (exact % unit));
        let hundredths = floor + u128::from(rest > unit || (rest == unit && floor % 2 == 1));
        let (whole, part) = (hundredths / 100, hundredths % 100);
        write!(f, "{}.{part:02} {name}", Grouped(whole))?;
        if f.alternate() { Ok(()) } else { write!(f, " ({} bytes)", Grouped(bytes.into())) }
    }
}

/// A number with a comma between thousands.
struct Grouped(u128);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// `value` rounded up to a multiple of `quantum`; `None` when that exceeds `u64`.
#[must_use]
pub const fn round_up(value: u64, quantum: u64) -> Option<u64> {
    value.checked_next_multiple_of(quantum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_in_reports() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (16_000, "15.62 KiB (16,000 bytes)"),
            (1536, "1.50 KiB (1,536 bytes)"),
            (24_000_000_000, "22.35 GiB (24,000,000,000 bytes)"),
            (401_000_000, "382.42 MiB (401,000,000 bytes)"),
            (u64::MAX, "16,777,216.00 TiB (18,446,744,073,709,551,615 bytes)"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
            let short = text.split(" (").next().unwrap();
            assert_eq!(format!("{:#}", Bytes(bytes)), short);
        }
    }
}
