//! Long sorts and random permutations (`ATen/native/cuda/Sort.cpp`, `SortStable.cu`, `Randperm.cu`).

use super::checked::product;
use super::cub::{SortPair, radix_sort_one_digit_bytes, radix_sort_pairs_bytes, segmented_sort_bytes};
use super::{Arguments, FormulaError, Stages, Step, temporary};
use crate::target::Target;

const INDEX_BYTES: u64 = 8;
const OP: &str = "sort";
/// `segmented_sort [slices, length, itemsize]`: scratch after values and indices, for slices too long for one block.
///
/// Slice by slice when there is one or they are very long; up to 127 slices as one sort by value and one by slice; more
/// by `CUB`'s segmented sort (`SortStable.cu`). Measured on the virtual GPU for 2- and 4-byte elements.
///
/// # Errors
/// [`FormulaError`].
pub fn segmented_sort(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    /// From this length on one slice alone fills the card.
    const LONG_SLICE: u64 = 1_000_000;
    const MANY_SLICES: u64 = 128;
    let (slices, length, itemsize) = (arguments.size()?, arguments.size()?, arguments.size()?);
    let items = product(OP, &[slices, length])?;
    let index_bytes = product(OP, &[items, INDEX_BYTES])?;
    let (pair, key_bits) = match itemsize {
        INDEX_BYTES => (SortPair::Int64Int64, u64::BITS),
        4 => (SortPair::Float32Int64, u32::BITS),
        _ => (SortPair::Half16Int64, u16::BITS),
    };
    if slices == 1 || length >= LONG_SLICE {
        let cub_bytes = radix_sort_pairs_bytes(pair, length, key_bits, target.gpu)?;
        let mut steps = vec![Step::Alloc { slot: 0, bytes: product(OP, &[length, INDEX_BYTES])? }];
        for _ in 0..slices {
            steps.extend([Step::Alloc { slot: 1, bytes: cub_bytes }, Step::Free { slot: 1 }]);
        }
        steps.push(Step::Free { slot: 0 });
        return Ok(vec![steps]);
    }
    if slices >= MANY_SLICES {
        return Ok(vec![temporary(&[index_bytes, segmented_sort_bytes(items, itemsize)?])]);
    }
    Ok(vec![vec![
        Step::Alloc { slot: 0, bytes: index_bytes },
        Step::Alloc { slot: 1, bytes: index_bytes },
        Step::Alloc { slot: 2, bytes: product(OP, &[items, itemsize])? },
        Step::Alloc { slot: 3, bytes: radix_sort_pairs_bytes(pair, items, key_bits, target.gpu)? },
        Step::Free { slot: 3 },
        Step::Free { slot: 2 },
        Step::Alloc { slot: 4, bytes: radix_sort_one_digit_bytes(items, target.gpu)? },
        Step::Free { slot: 4 },
        Step::Free { slot: 1 },
        Step::Free { slot: 0 },
    ]])
}

/// `randperm [n]`: scratch after the permutation: a seed, the range, random keys before and after the sort, `CUB`.
///
/// # Errors
/// [`FormulaError`].
pub fn randperm(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let items = arguments.size()?;
    let pair = if random_keys_fit_32_bits(items) { SortPair::Float32Int64 } else { SortPair::Int64Int64 };
    let (item_bytes, key_bits) = match pair {
        SortPair::Int64Int64 => (8, u64::BITS),
        _ => (4, u32::BITS),
    };
    let index_bytes = product("randperm", &[items, INDEX_BYTES])?;
    let keys_bytes = product("randperm", &[items, item_bytes])?;
    let cub_bytes = radix_sort_pairs_bytes(pair, items, key_bits, target.gpu)?;
    let mut steps = temporary(&[INDEX_BYTES]);
    steps.extend([
        Step::Alloc { slot: 1, bytes: index_bytes },
        Step::Alloc { slot: 2, bytes: keys_bytes },
        Step::Alloc { slot: 3, bytes: keys_bytes },
        Step::Alloc { slot: 4, bytes: cub_bytes },
        Step::Free { slot: 4 },
        Step::Free { slot: 3 },
        Step::Free { slot: 2 },
        Step::Free { slot: 1 },
    ]);
    Ok(vec![steps])
}

/// Whether keys of 32 random bits collide seldom enough: 6 n^2 / (12 x -ln 0.9) below 2^32 (Randperm.cu).
fn random_keys_fit_32_bits(items: u64) -> bool {
    /// `sqrt(2^32 x 12 x -ln 0.9 / 6)`, rounded down.
    const LARGEST: u64 = 30_083;
    items <= LARGEST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Gpu;

    #[test]
    fn measured_on_the_rtx3090_profile() {
        // randperm(5000) and sort of 5000 fp32 values: one CUB storage of 71,167 bytes (virtual GPU, torch 2.14.1).
        let gpu = Gpu::by_name("rtx3090").unwrap();
        assert_eq!(radix_sort_pairs_bytes(SortPair::Float32Int64, 5000, u32::BITS, gpu), Ok(71_167));
    }

    #[test]
    fn random_keys_grow_to_64_bits() {
        assert!(random_keys_fit_32_bits(30_000));
        assert!(!random_keys_fit_32_bits(31_000));
    }
}
