//! cuBLAS's workspace inside `PyTorch`'s counters (facts/workspaces.md section 2).
//!
//! A workspace belongs to one (cuBLAS handle, stream): training holds two, one made by the first matrix product of the
//! forward thread and one by the first of the autograd thread. They live until the process ends.

use crate::target::{Capability, Stack, Version};
use crate::units::{KIB, MIB};

/// 2 x 4 MiB + 8 x 16 KiB: the default before Hopper (function called on torch 2.14.1; P #95668 on an A10G).
pub const DEFAULT_BYTES: u64 = 2 * 4 * MIB + 8 * 16 * KIB;
/// The default from Hopper on (function called on torch 2.14.1 for 9.0, 10.0, 10.3, 11.0, 12.0 and 12.1).
pub const LARGE_BYTES: u64 = 32 * MIB;

/// `PyTorch` allocates cuBLAS's workspace itself from here on (torch 2.0 source; nothing visible in 1.13).
const WORKSPACE_IN_PYTORCH: Version = Version::new(2, 0);
/// Blackwell got 32 MiB with P #175344 (8,519,680 bytes with 2.11.0 and 32 MiB with 2.12.0 on a virtual B200).
const BLACKWELL_LARGE: Version = Version::new(2, 12);
/// Capability 11.0 followed with P #189312 (July 2026): 2.14 at the latest.
const SM110_LARGE: Version = Version::new(2, 14);

/// Bytes of one cuBLAS workspace when `CUBLAS_WORKSPACE_CONFIG` is not set.
#[must_use]
pub fn default_workspace_bytes(capability: Capability, stack: &Stack) -> u64 {
    if stack.torch < WORKSPACE_IN_PYTORCH {
        return 0;
    }
    let large_since = match capability.major {
        0..=8 => return DEFAULT_BYTES,
        9 => WORKSPACE_IN_PYTORCH,
        11 => SM110_LARGE,
        _ => BLACKWELL_LARGE,
    };
    if stack.torch >= large_since { LARGE_BYTES } else { DEFAULT_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(major: u32, minor: u32, stack: &str) -> u64 {
        default_workspace_bytes(Capability::new(major, minor), &Stack::parse(stack).unwrap())
    }

    #[test]
    fn defaults_by_capability_in_2_14() {
        // facts/workspaces.md section 2, table (function called on torch 2.14.1).
        for (major, minor) in [(7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9)] {
            assert_eq!(bytes(major, minor, "2.14"), 8_519_680, "{major}.{minor}");
        }
        for (major, minor) in [(9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)] {
            assert_eq!(bytes(major, minor, "2.14"), 33_554_432, "{major}.{minor}");
        }
    }

    #[test]
    fn history() {
        assert_eq!(bytes(8, 0, "1.13"), 0);
        assert_eq!(bytes(9, 0, "1.13"), 0);
        assert_eq!(bytes(8, 6, "2.0"), 8_519_680);
        assert_eq!(bytes(9, 0, "2.0"), 33_554_432);
        assert_eq!(bytes(10, 0, "2.9"), 8_519_680);
        assert_eq!(bytes(10, 0, "2.11"), 8_519_680);
        assert_eq!(bytes(10, 0, "2.12"), 33_554_432);
        assert_eq!(bytes(12, 0, "2.12"), 33_554_432);
        assert_eq!(bytes(11, 0, "2.12"), 8_519_680);
    }
}
