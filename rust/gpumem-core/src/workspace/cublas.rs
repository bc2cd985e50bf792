//! cuBLAS and cuBLASLt workspaces inside `PyTorch`'s counters (facts/workspaces.md section 2).
//!
//! A workspace belongs to one (cuBLAS handle, stream): training holds two, one made by the first matrix product of the
//! forward thread and one by the first of the autograd thread. They live until the process ends.

use thiserror::Error;

use crate::target::{Capability, Stack, Version};
use crate::units::{KIB, MIB};

/// 2 x 4 MiB + 8 x 16 KiB: the default before Hopper (function called on torch 2.14.1; P #95668 on an A10G).
pub const DEFAULT_BYTES: u64 = 2 * 4 * MIB + 8 * 16 * KIB;
/// The default from Hopper on (function called on torch 2.14.1 for 9.0, 10.0, 10.3, 11.0, 12.0 and 12.1).
pub const LARGE_BYTES: u64 = 32 * MIB;
/// cuBLASLt's own default (measured on torch 2.14.1; torch 2.4 source CUDABlas.cpp:182-207).
pub const LT_DEFAULT_BYTES: u64 = MIB;

/// `PyTorch` allocates cuBLAS's workspace itself from here on (torch 2.0 source; nothing visible in 1.13).
const WORKSPACE_IN_PYTORCH: Version = Version::new(2, 0);
/// Blackwell got 32 MiB with P #175344 (February 2026): in 2.11 or 2.12. The earlier is taken, so that no release is
/// under-estimated.
const BLACKWELL_LARGE: Version = Version::new(2, 11);
/// Capability 11.0 followed with P #189312 (July 2026): 2.14 at the latest.
const SM110_LARGE: Version = Version::new(2, 14);
/// cuBLASLt shares cuBLAS's workspace by default since P #168175 (merged between November 2025 and January 2026): 2.11
/// at the latest; the later is taken, since sharing needs less.
const LT_UNIFIED_BY_DEFAULT: Version = Version::new(2, 11);
/// `TORCH_CUBLASLT_UNIFIED_WORKSPACE` exists since P #151163 (April 2025).
const LT_UNIFIED_OPTION: Version = Version::new(2, 8);

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

/// `CUBLAS_WORKSPACE_CONFIG` could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot read CUBLAS_WORKSPACE_CONFIG '{text}': expected ':KiB:count' pairs such as ':4096:8'")]
pub struct InvalidWorkspaceConfig {
    /// The value given.
    pub text: String,
}

/// Bytes of one workspace under a `CUBLAS_WORKSPACE_CONFIG` of `:KiB:count[:KiB:count...]`.
///
/// Measured on torch 2.14.1: `:4096:8` is 32 MiB, `:16:8` is 131,072 bytes, `:0:0` allocates nothing.
///
/// # Errors
/// [`InvalidWorkspaceConfig`] when the text is not a list of pairs or the sum exceeds 64 bits.
pub fn parse_workspace_config(text: &str) -> Result<u64, InvalidWorkspaceConfig> {
    let invalid = || InvalidWorkspaceConfig { text: text.to_owned() };
    let numbers = text
        .strip_prefix(':')
        .ok_or_else(invalid)?
        .split(':')
        .map(|part| part.parse::<u64>().map_err(|_| invalid()))
        .collect::<Result<Vec<_>, _>>()?;
    if numbers.len() % 2 != 0 {
        return Err(invalid());
    }
    numbers
        .chunks_exact(2)
        .try_fold(0_u64, |total, pair| {
            let bytes = pair[0].checked_mul(pair[1])?.checked_mul(KIB)?;
            total.checked_add(bytes)
        })
        .ok_or_else(invalid)
}

/// How cuBLASLt (addmm with a one-dimensional bias, scaled products, fused epilogues) gets its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LtWorkspace {
    /// A fresh buffer for each call, freed at its end.
    PerCall {
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// The cuBLAS workspace of the same handle and stream is used: nothing extra.
    SharedWithCublas,
    /// One buffer per (handle, stream), kept like cuBLAS's own.
    Persistent {
        /// Bytes of the buffer; 1 MiB is served by the small-block pool.
        bytes: u64,
    },
}

/// cuBLASLt's workspace.
///
/// `unified` is `TORCH_CUBLASLT_UNIFIED_WORKSPACE` when set; `size_kib` is `CUBLASLT_WORKSPACE_SIZE` when set.
/// Releases between 2.4 and 2.11 were read in pull requests only; there the per-call buffer of 2.4 is assumed.
///
/// # Errors
/// [`InvalidWorkspaceConfig`] when `size_kib` KiB exceed 64 bits.
pub fn lt_workspace(
    stack: &Stack,
    unified: Option<bool>,
    size_kib: Option<u64>,
) -> Result<LtWorkspace, InvalidWorkspaceConfig> {
    let bytes = match size_kib {
        None => LT_DEFAULT_BYTES,
        Some(kib) => kib.checked_mul(KIB).ok_or_else(|| InvalidWorkspaceConfig { text: kib.to_string() })?,
    };
    let on_by_default = stack.torch >= LT_UNIFIED_BY_DEFAULT;
    let shared = stack.torch >= LT_UNIFIED_OPTION && unified.unwrap_or(on_by_default);
    Ok(match (shared, on_by_default) {
        (true, _) => LtWorkspace::SharedWithCublas,
        // Measured on 2.14.1 with TORCH_CUBLASLT_UNIFIED_WORKSPACE=0.
        (false, true) => LtWorkspace::Persistent { bytes },
        // torch 2.4 source, CUDABlas.cpp:390.
        (false, false) => LtWorkspace::PerCall { bytes },
    })
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
        assert_eq!(bytes(12, 0, "2.12"), 33_554_432);
        assert_eq!(bytes(11, 0, "2.12"), 8_519_680);
    }

    #[test]
    fn workspace_config() {
        assert_eq!(parse_workspace_config(":4096:8"), Ok(33_554_432));
        assert_eq!(parse_workspace_config(":16:8"), Ok(131_072));
        assert_eq!(parse_workspace_config(":0:0"), Ok(0));
        assert_eq!(parse_workspace_config(":4096:2:16:8"), Ok(DEFAULT_BYTES));
        for text in ["", "4096:8", ":4096", ":a:b", ":4096:8:", ":18446744073709551615:2"] {
            assert_eq!(parse_workspace_config(text), Err(InvalidWorkspaceConfig { text: text.to_owned() }), "{text}");
        }
    }

    #[test]
    fn lt_history() {
        let lt = |stack: &str, unified| lt_workspace(&Stack::parse(stack).unwrap(), unified, None).unwrap();
        assert_eq!(lt("2.4", None), LtWorkspace::PerCall { bytes: MIB });
        assert_eq!(lt("2.4", Some(true)), LtWorkspace::PerCall { bytes: MIB });
        assert_eq!(lt("2.9", Some(true)), LtWorkspace::SharedWithCublas);
        assert_eq!(lt("2.14", None), LtWorkspace::SharedWithCublas);
        assert_eq!(lt("2.14", Some(false)), LtWorkspace::Persistent { bytes: MIB });
        let sized = lt_workspace(&Stack::MEASURED, Some(false), Some(64)).unwrap();
        assert_eq!(sized, LtWorkspace::Persistent { bytes: 64 * KIB });
    }
}
