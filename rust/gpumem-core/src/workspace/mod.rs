//! Buffers of libraries and kernels: bytes a step takes that are no tensor of the program.

pub mod attention;
pub mod conv;
pub mod cublas;

use crate::target::Range;

/// Where a workspace figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceSource {
    /// A rule fitted to the library's answers for this GPU family, data type and layout; `Range` brackets them.
    FittedRule,
    /// The family, stack or case was never queried: a wide guess.
    Guess,
}

/// Bytes of one call's temporary buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workspace {
    /// The bytes, before the allocator's rounding.
    pub bytes: Range,
    /// Where they come from.
    pub source: WorkspaceSource,
}
