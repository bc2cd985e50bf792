//! Scratch of the fused attention kernels as formulas (sizes: [`crate::workspace::attention`]).

use super::{Arguments, FormulaError, Stages, Step};
use crate::target::Target;
use crate::workspace::attention::{AttentionShape, efficient, flash};

fn alloc(slot: u8, bytes: u64) -> Step {
    Step::Alloc { slot, bytes }
}

fn free(slot: u8) -> Step {
    Step::Free { slot }
}

/// `flash_forward_split [batch, heads, seq_q, seq_k, head_dim]`, without dropout. Stages: request the accumulators of
/// log-sum-exp and output; free them, output's first.
///
/// # Errors
/// [`FormulaError`].
pub fn flash_forward_split(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let (batch, heads, seq_q, seq_k, head_dim) =
        (arguments.size()?, arguments.size()?, arguments.size()?, arguments.size()?, arguments.size()?);
    let shape = AttentionShape { batch, heads, seq_q, seq_k, head_dim, head_dim_v: head_dim };
    Ok(match flash::forward_split_scratch(shape, false, target.gpu)? {
        None => vec![vec![], vec![]],
        Some(scratch) => {
            vec![vec![alloc(0, scratch.rows_bytes), alloc(1, scratch.vectors_bytes)], vec![free(1), free(0)]]
        }
    })
}

/// `flash_backward [batch, heads, seq_q, head_dim]`. Stages: request row sums and the accumulator of the query gradient;
/// free them, the accumulator first.
///
/// # Errors
/// [`FormulaError`].
pub fn flash_backward(arguments: &mut Arguments<'_>, _target: &Target) -> Result<Stages, FormulaError> {
    let (batch, heads, seq_q, head_dim) = (arguments.size()?, arguments.size()?, arguments.size()?, arguments.size()?);
    let shape = AttentionShape { batch, heads, seq_q, seq_k: seq_q, head_dim, head_dim_v: head_dim };
    let scratch = flash::backward_scratch(shape)?;
    Ok(vec![vec![alloc(0, scratch.rows_bytes), alloc(1, scratch.vectors_bytes)], vec![free(1), free(0)]])
}

/// `efficient_backward [batch, heads, seq_q, seq_k, head_dim, head_dim_v, itemsize, dropout]`. Stages: request, free.
///
/// # Errors
/// [`FormulaError`].
pub fn efficient_backward(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let shape = AttentionShape {
        batch: arguments.size()?,
        heads: arguments.size()?,
        seq_q: arguments.size()?,
        seq_k: arguments.size()?,
        head_dim: arguments.size()?,
        head_dim_v: arguments.size()?,
    };
    let dtype = match arguments.size()? {
        4 => efficient::AttentionDtype::F32,
        2 => efficient::AttentionDtype::Half,
        _ => return Err(arguments.invalid("an element has 2 or 4 bytes")),
    };
    let dropout = arguments.flag()?;
    let bytes = efficient::backward_workspace_bytes(shape, dtype, dropout, target.gpu)?;
    Ok(vec![vec![alloc(0, bytes)], vec![free(0)]])
}
