//! The target of an estimate: the card, the software stack, and what the driver takes before `PyTorch` does.

pub mod context;
pub mod conv_answers;
pub mod gpu;
pub mod machine;
pub mod stack;
pub mod throughput;

pub use context::context_bytes;
pub use conv_answers::{ConvAnswers, ConvIntegers, ConvLibrary, ConvWorkspaces};
pub use gpu::{Capability, Evidence, Gpu, GpuFamily, Sourced};
pub use machine::{End, LibraryWorkspaces, Target};
pub use stack::{Stack, Version};
pub use throughput::{Throughput, Unit};

use thiserror::Error;

/// A byte count that is not exactly known: two ends and the value to show.
///
/// `low_bytes <= likely_bytes <= high_bytes`; all three are equal when the count is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// No less than this is expected.
    pub low_bytes: u64,
    /// The best single answer.
    pub likely_bytes: u64,
    /// No more than this is expected; searches for a fitting plan use this end.
    pub high_bytes: u64,
}

impl Range {
    /// A count known exactly.
    #[must_use]
    pub const fn exact(bytes: u64) -> Self {
        Self { low_bytes: bytes, likely_bytes: bytes, high_bytes: bytes }
    }

    /// Whether the three ends are one value.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.low_bytes == self.high_bytes
    }

    /// Whether `bytes` lies within both ends.
    #[must_use]
    pub const fn contains(&self, bytes: u64) -> bool {
        self.low_bytes <= bytes && bytes <= self.high_bytes
    }
}

/// Why a target could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TargetError {
    /// No profile has this name.
    #[error("unknown GPU '{name}'{}", suggestions(.nearest))]
    UnknownGpu {
        /// The name asked for.
        name: String,
        /// Canonical names that are spelled most like it, nearest first.
        nearest: Vec<String>,
    },
    /// The stack text is not `[torch-]MAJOR.MINOR[.PATCH][+cuXYZ]`.
    #[error("cannot read stack '{text}': expected something like 'torch-2.14+cu130' or '2.4'")]
    InvalidStack {
        /// The text given.
        text: String,
    },
    /// No table says anything about these versions.
    #[error("nothing is known about {stack}: torch 1.3 to 2.14 with CUDA 10 to 13 are")]
    UnknownStack {
        /// The stack asked for.
        stack: String,
        /// The nearest that is known.
        nearest: String,
    },
    /// The embedded GPU table is malformed (a defect of this build).
    #[error("GPU table: {reason}")]
    InvalidGpuTable {
        /// What is wrong with it.
        reason: String,
    },
}

fn suggestions(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(", ")) }
}
