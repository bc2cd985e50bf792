//! Everything that can go wrong in the core. "Does not fit" is not an error: it is a report.

use thiserror::Error;

use crate::allocator::ConfError;
use crate::formula::FormulaError;
use crate::target::TargetError;
use crate::units::Bytes;

/// An error of the core.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// The target is unknown or unreadable.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The allocator's configuration is refused.
    #[error(transparent)]
    AllocConf(#[from] ConfError),
    /// A scratch formula got arguments it cannot use.
    #[error("{op} in '{layer}': {source}")]
    Formula {
        /// ATen op that recorded the formula.
        op: String,
        /// Module path of the layer.
        layer: String,
        /// What the formula found.
        source: FormulaError,
    },
    /// A size is negative or above 64 bits at this batch.
    #[error("the size of an allocation of {op} in '{layer}' is not a byte count at batch {batch}")]
    SizeOverflow {
        /// ATen op that allocates.
        op: String,
        /// Module path of the layer.
        layer: String,
        /// The batch size asked for.
        batch: u64,
    },
    /// Traces of two batch sizes have different events.
    #[error(
        "the sequence of allocations changes with the batch: at batch {first} and {second} event {position} differs \
         (op {op} in '{layer}')"
    )]
    BatchDependent {
        /// The first batch traced.
        first: u64,
        /// The other one.
        second: u64,
        /// Index of the first differing event.
        position: usize,
        /// ATen op last recorded before it.
        op: String,
        /// Its layer.
        layer: String,
    },
    /// A size is no polynomial of degree two or less in the batch.
    #[error(
        "the size of an allocation of {op} in '{layer}' is not a polynomial in the batch: {sizes:?} bytes at {batches:?}"
    )]
    NotPolynomial {
        /// ATen op that allocates.
        op: String,
        /// Its layer.
        layer: String,
        /// The batches traced.
        batches: Vec<u64>,
        /// The sizes seen.
        sizes: Vec<i64>,
    },
    /// The spec holds one batch size only and another was asked for.
    #[error("this spec was traced for batch {traced} only, batch {asked} was asked for")]
    OnlyBatch {
        /// The batch it holds.
        traced: u64,
        /// The batch asked for.
        asked: u64,
    },
    /// A batch of zero.
    #[error("batch must be at least 1")]
    ZeroBatch,
    /// The spec's text or content is damaged.
    #[error("damaged spec: {reason}")]
    InvalidSpec {
        /// What is wrong.
        reason: String,
    },
    /// The spec has another schema version.
    #[error("spec schema {found} is not supported (this build reads schema {supported})")]
    SchemaVersion {
        /// Version in the text.
        found: u32,
        /// Version of this build.
        supported: u32,
    },
    /// The budget leaves nothing for `PyTorch`.
    #[error("the budget {} does not hold the CUDA context of {}", Bytes(*.budget_bytes), Bytes(*.context_bytes))]
    BudgetBelowContext {
        /// The budget.
        budget_bytes: u64,
        /// The context.
        context_bytes: u64,
    },
    /// Not even one sample fits.
    #[error("one sample needs up to {} on the device, the budget is {}", Bytes(*.smallest_bytes), Bytes(*.budget_bytes))]
    NothingFits {
        /// The budget.
        budget_bytes: u64,
        /// Device bytes at batch 1, upper end.
        smallest_bytes: u64,
    },
    /// There is no largest batch.
    #[error("even batch {tried} fits: the bytes of this loop do not grow with the batch")]
    Unbounded {
        /// The largest batch that was tried.
        tried: u64,
    },
    /// Traces of checkpointed regions cannot be joined.
    #[error("checkpoint variant {variant} cannot be joined with the others: {reason}")]
    Regions {
        /// Number of the variant.
        variant: usize,
        /// Why.
        reason: String,
    },
    /// The library that was to say the workspaces of convolutions cannot be asked.
    #[error("{reason}")]
    ConvLibrary {
        /// Why.
        reason: String,
    },
    /// A largest batch was asked for without a limit.
    #[error("a largest batch needs a GPU or a budget")]
    NoBudget,
}

impl Error {
    /// Whether a size does not fit 64 bits: such a loop fits no card.
    #[must_use]
    pub const fn is_overflow(&self) -> bool {
        matches!(self, Self::SizeOverflow { .. } | Self::Formula { source: FormulaError::Overflow(_), .. })
    }
}
