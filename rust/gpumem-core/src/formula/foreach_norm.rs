//! `_foreach_norm` (used by `clip_grad_norm_`): one partial norm per tensor and chunk.
//!
//! Measured on the virtual GPU (torch 2.14.1) for 1 to 400 tensors, fp32 and bf16, orders 1, 2 and infinity. Other orders
//! take the slow path: one `linalg_vector_norm` per tensor.

use super::checked::{SizeOverflow, product};
use super::{Arguments, FormulaError, Stages, Step, temporary};
use crate::target::Target;

/// Elements of a tensor that one block handles.
const CHUNK_ELEMS: u64 = 65_536;
/// Bytes of where a tensor's chunks begin.
const PLACE_BYTES: u64 = 8;

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

/// Where the chunks of each tensor begin, and partial norms of all chunks; as above otherwise.
///
/// # Errors
/// [`SizeOverflow`].
pub fn foreach_norm_packed_bytes(itemsize: u64, elems: &[u64]) -> Result<[u64; 2], SizeOverflow> {
    let chunks = elems.iter().map(|elems| elems.div_ceil(CHUNK_ELEMS)).fold(0, u64::saturating_add);
    let places = u64::try_from(elems.len()).unwrap_or(u64::MAX).saturating_add(1);
    Ok([product("_foreach_norm", &[PLACE_BYTES, places])?, product("_foreach_norm", &[itemsize.max(4), chunks])?])
}

/// `foreach_norm_packed [itemsize, elems of each tensor]`: torch 2.15 and later. Stages: request; free.
///
/// # Errors
/// [`FormulaError`].
pub fn foreach_norm_packed(arguments: &mut Arguments<'_>, _target: &Target) -> Result<Stages, FormulaError> {
    let itemsize = arguments.size()?;
    let elems = arguments.sizes(arguments.rest().len())?;
    let [places, norms] = foreach_norm_packed_bytes(itemsize, &elems)?;
    let request = vec![Step::Alloc { slot: 0, bytes: places }, Step::Alloc { slot: 1, bytes: norms }];
    Ok(vec![request, vec![Step::Free { slot: 1 }, Step::Free { slot: 0 }]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_lists_of_2_15() {
        // The same calls with torch 2.15.0 on the virtual GPU: the first two allocations.
        for (elems, itemsize, measured) in
            [(vec![10], 4, [16, 4]), (vec![65_537, 10], 4, [24, 12]), (vec![200_000, 10, 10], 2, [32, 24])]
        {
            assert_eq!(foreach_norm_packed_bytes(itemsize, &elems), Ok(measured), "{elems:?}");
        }
    }

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
