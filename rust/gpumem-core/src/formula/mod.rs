//! Scratch that a kernel requests and that depends on the GPU, or not polynomially on the batch.
//!
//! Extraction records such a call as a *formula*: a kind and integer arguments (sizes, strides, flags), each a polynomial
//! in the batch. For one batch and one target the formula answers with the allocations and frees of each of its stages,
//! in CUDA's order. One small file per family of `ATen` ops; [`expand`] is the only table of kinds.

pub mod arguments;
pub mod attention;
pub mod batch_norm;
pub mod checked;
pub mod convolution;
pub mod cub;
pub mod embedding;
pub mod foreach_norm;
pub mod grouped_mm;
pub mod layer_norm;
pub mod library;
pub mod reduce;
pub mod reduction_scratch;
pub mod select;
pub mod sorting;

use thiserror::Error;

use crate::target::Target;
pub use arguments::Arguments;
pub use checked::SizeOverflow;

/// One allocation or free of a formula. Slots are local to one call of the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Request bytes (zero bytes are no request).
    Alloc {
        /// Names the allocation for a later `Free`; never freed = persistent.
        slot: u8,
        /// Requested bytes.
        bytes: u64,
    },
    /// Request bytes that the caller can do without: cuDNN goes on to a plan with less workspace.
    TryAlloc {
        /// As in [`Step::Alloc`].
        slot: u8,
        /// Requested bytes.
        bytes: u64,
    },
    /// Request the bytes of an allocation of the trace anew: a kernel replaces an output it had requested before.
    Renew {
        /// Names the former request for a later `Free`.
        slot: u8,
        /// Index into [`crate::spec::ModelSpec::allocations`]; its end frees the new request.
        allocation: u32,
    },
    /// End the allocation of this slot.
    Free {
        /// The slot to free; freeing a slot of zero bytes does nothing.
        slot: u8,
    },
}

/// The steps of each stage.
pub type Stages = Vec<Vec<Step>>;

/// Why a formula has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormulaError {
    /// No formula has this name (a spec of a newer gpumem).
    #[error("unknown formula '{kind}'")]
    UnknownKind {
        /// The name.
        kind: String,
    },
    /// Too few, too many or impossible arguments.
    #[error("formula '{kind}' cannot use its arguments: {reason}")]
    Arguments {
        /// The formula.
        kind: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A size does not fit 64 bits.
    #[error(transparent)]
    Overflow(#[from] SizeOverflow),
}

type Formula = fn(&mut Arguments<'_>, &Target) -> Result<Stages, FormulaError>;

/// Every kind that extraction may record, with what computes it and how its bytes are reported.
const KINDS: &[(&str, Formula)] = &[
    ("batch_norm_channels_last", batch_norm::batch_norm_channels_last),
    (convolution::KIND, convolution::conv_workspace),
    ("cub_scan", cub::cub_scan),
    ("cublas_workspace", library::cublas_workspace),
    ("cublas_workspace_of_a_call", library::cublas_workspace_of_a_call),
    ("cudnn_attention_workspace", library::cudnn_attention_workspace),
    ("efficient_backward", attention::efficient_backward),
    ("embedding_backward", embedding::embedding_backward),
    ("flash_backward", attention::flash_backward),
    ("flash_forward_split", attention::flash_forward_split),
    ("foreach_norm", foreach_norm::foreach_norm),
    ("foreach_norm_packed", foreach_norm::foreach_norm_packed),
    ("grouped_mm", grouped_mm::grouped_mm),
    ("layer_norm_backward", layer_norm::layer_norm_backward),
    ("nonzero", select::nonzero),
    ("radix_sort", cub::radix_sort),
    ("randperm", sorting::randperm),
    ("reduce", reduction_scratch::reduce),
    ("segmented_sort", sorting::segmented_sort),
    ("select_unique", select::select_unique),
];

/// Index of a kind in the table.
///
/// # Errors
/// [`FormulaError::UnknownKind`].
pub fn kind_index(kind: &str) -> Result<usize, FormulaError> {
    KINDS.iter().position(|(name, _)| *name == kind).ok_or_else(|| FormulaError::UnknownKind { kind: kind.to_owned() })
}

/// Which arguments of a kind are indices into [`crate::spec::ModelSpec::allocations`] (or negative).
#[must_use]
pub fn allocation_arguments(kind: &str) -> &'static [usize] {
    match kind {
        "layer_norm_backward" => &layer_norm::ALLOCATION_ARGUMENTS,
        _ => &[],
    }
}

/// The stages of one call.
///
/// # Errors
/// [`FormulaError`] when the arguments are not those of this kind, or a size overflows.
pub fn expand(kind: usize, arguments: &[i64], target: &Target) -> Result<Stages, FormulaError> {
    let (name, formula) = KINDS[kind];
    let mut arguments = Arguments::new(name, arguments);
    let stages = formula(&mut arguments, target)?;
    arguments.finish()?;
    Ok(stages)
}

/// Requests that end when the call ends, first requested first freed; the usual shape of kernel scratch.
#[must_use]
pub fn temporary(sizes: &[u64]) -> Vec<Step> {
    let slots = 0_u8..;
    let allocs = slots.clone().zip(sizes).map(|(slot, &bytes)| Step::Alloc { slot, bytes });
    allocs.chain(slots.zip(sizes).map(|(slot, _)| Step::Free { slot })).collect()
}
