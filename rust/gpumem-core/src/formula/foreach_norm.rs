//! `_foreach_norm` (used by `clip_grad_norm_`): one partial norm per tensor and chunk.
//!
//! Measured on the virtual GPU (torch 2.14.1) for 1 to 400 tensors, fp32 and bf16, orders 1, 2 and infinity. Other orders
//! take the slow path: one `linalg_vector_norm` per tensor.

use super::checked::{SizeOverflow, product};
use super::{Arguments, FormulaError, Stages, temporary};
use crate::target::Target;

/// Elements of a tensor that one block handles.
const CHUNK_ELEMS: u64 = 65_536;

/// Partial norms of `tensors` tensors whose largest has `largest_elems` elements; requested before the results, freed
/// after them. `itemsize` is the tensors'; 16-bit ones are accumulated in fp32.
///
/// # Errors
/// [`SizeOverflow`].
pub fn foreach_norm_scratch_bytes(tensors: u64, largest_elems: u64, itemsize: u64) -> Result<u64, SizeOverflow> {
    product("_foreach_norm", &[itemsize.max(4), tensors, largest_elems.div_ceil(CHUNK_ELEMS)])
}

/// `foreach_norm [tensors, largest_elems, itemsize]`. Stages: request (before the results); free (after them).
///
/// # Errors
/// [`FormulaError`].
pub fn foreach_norm(arguments: &mut Arguments<'_>, _target: &Target) -> Result<Stages, FormulaError> {
    let bytes = foreach_norm_scratch_bytes(arguments.size()?, arguments.size()?, arguments.size()?)?;
    let steps = temporary(&[bytes]);
    let (request, release) = steps.split_at(1);
    Ok(vec![request.to_vec(), release.to_vec()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_lists() {
        // torch._foreach_norm on the virtual GPU: first allocation.
        for (tensors, largest, itemsize, measured) in [
            (1, 10, 4, 4),
            (5, 10, 4, 20),
            (1, 65_536, 4, 4),
            (1, 65_537, 4, 8),
            (2, 200_000, 4, 32),
            (2, 200_000, 2, 32),
            (3, 1_000_000, 4, 192),
            (100, 70_000, 4, 800),
            (400, 64, 4, 1600),
        ] {
            assert_eq!(foreach_norm_scratch_bytes(tensors, largest, itemsize), Ok(measured), "{tensors} x {largest}");
        }
    }
}
