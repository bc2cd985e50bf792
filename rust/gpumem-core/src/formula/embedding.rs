//! `embedding_dense_backward`, which sorts its indices first.
//!
//! Order and sizes measured on the virtual GPU (torch 2.14.1); the virtual GPU reads zeros back, but no size here depends
//! on a value that is read back (`PyTorch` uses upper bounds).

use super::checked::{SizeOverflow, product, sum};
use super::cub::{IndexWidth, SortPair, radix_sort_pairs_bytes, scan_by_key_bytes, scan_bytes, unique_by_key_bytes};
use super::{Arguments, FormulaError, Stages, Step};
use crate::target::{Gpu, Target};

const OP: &str = "embedding_dense_backward";
/// Up to here the gradient is scattered without sorting.
const UNSORTED_INDICES: u64 = 3072;
/// Indices that one partial sum gathers.
const ROWS_PER_PARTIAL: u64 = 10;
/// A table with fewer rows than this many per multiprocessor, each hit this often on average, is summed row by row.
const SMALL_TABLE_ROWS_PER_SM: u64 = 4;
const SMALL_TABLE_MEAN_HITS: u64 = 30;

/// What of an embedding's gradient decides its scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingBackward {
    /// Number of indices.
    pub indices: u64,
    /// Columns of the table.
    pub columns: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Element type of the indices.
    pub width: IndexWidth,
    /// Element size of the gradient.
    pub grad_itemsize: u64,
    /// Sort even few indices (`embedding_bag`, or gradients scaled by frequency).
    pub always_sorted: bool,
    /// Count how often each index occurs (`scale_grad_by_freq`).
    pub counted: bool,
}

/// `embedding_backward [indices, columns, rows, index_itemsize, grad_itemsize, always_sorted, counted]`. Stage 0 is
/// requested before the gradient, stage 1 after it; stage 1 frees everything.
///
/// # Errors
/// [`FormulaError`].
pub fn embedding_backward(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let (indices, columns, rows) = (arguments.size()?, arguments.size()?, arguments.size()?);
    let width = match arguments.size()? {
        4 => IndexWidth::Int32,
        8 => IndexWidth::Int64,
        _ => return Err(arguments.invalid("indices are int32 or int64")),
    };
    let grad_itemsize = arguments.size()?;
    let (always_sorted, counted) = (arguments.flag()?, arguments.flag()?);
    let call = EmbeddingBackward { indices, columns, rows, width, grad_itemsize, always_sorted, counted };
    Ok(embedding_dense_backward(call, target.gpu)?)
}

/// Both stages; empty when the indices are not sorted.
///
/// # Errors
/// [`SizeOverflow`].
pub fn embedding_dense_backward(call: EmbeddingBackward, gpu: &Gpu) -> Result<Stages, SizeOverflow> {
    if call.indices == 0 || (call.indices <= UNSORTED_INDICES && !call.always_sorted) {
        return Ok(vec![vec![], vec![]]);
    }
    let (n, width) = (call.indices, call.width);
    let index_bytes = |count: u64| product(OP, &[width.itemsize(), count]);
    let all = index_bytes(n)?;
    let pair = match width {
        IndexWidth::Int32 => SortPair::Int32Int32,
        IndexWidth::Int64 => SortPair::Int64Int64,
    };
    // Slots: 0 sorted, 1 original order, 2 counts, 3.. temporaries.
    let mut before = vec![alloc(0, all), alloc(1, all), alloc(3, all)];
    before.push(alloc(4, radix_sort_pairs_bytes(pair, n, bits(call.rows), gpu)?));
    before.extend([free(4), free(3)]);
    if call.counted {
        let scan = scan_by_key_bytes(width, n, gpu)?;
        before.extend([alloc(2, all), alloc(3, scan), free(3), alloc(3, scan), free(3)]);
    }

    let segments = n.min(call.rows);
    let partials = sum(OP, &[n / ROWS_PER_PARTIAL, segments])?;
    let unique = unique_by_key_bytes(width, n, gpu)?;
    // Segment offsets and their number; positions are made and dropped by the selection.
    let mut after = vec![alloc(3, all), alloc(4, 8), alloc(5, all), alloc(6, unique), free(6)];
    after.push(free(5));
    // Partial sums per segment, their prefix sums and their number.
    after.extend([alloc(5, index_bytes(segments)?), alloc(6, index_bytes(segments)?)]);
    after.extend([alloc(7, scan_bytes(width, segments)?), free(7), alloc(7, 8), alloc(8, index_bytes(partials)?)]);
    let accumulator = call.grad_itemsize.max(4);
    if is_small_table(call, gpu) {
        after.push(alloc(9, index_bytes(partials)?));
        if accumulator != call.grad_itemsize {
            after.extend([alloc(10, product(OP, &[accumulator, call.rows, call.columns])?), free(10)]);
        }
    } else {
        after.push(alloc(9, product(OP, &[accumulator, partials, call.columns])?));
    }
    after.extend([free(9), free(8), free(7), free(6), free(5), free(4), free(3)]);
    if call.counted {
        after.push(free(2));
    }
    after.extend([free(1), free(0)]);
    Ok(vec![before, after])
}

fn is_small_table(call: EmbeddingBackward, gpu: &Gpu) -> bool {
    let hits = call.indices.checked_div(call.rows).unwrap_or(0);
    call.rows < SMALL_TABLE_ROWS_PER_SM * u64::from(gpu.sm_count) && hits >= SMALL_TABLE_MEAN_HITS
}

const fn bits(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

const fn alloc(slot: u8, bytes: u64) -> Step {
    Step::Alloc { slot, bytes }
}

const fn free(slot: u8) -> Step {
    Step::Free { slot }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(steps: &[Step]) -> Vec<u64> {
        steps.iter().filter_map(|step| if let Step::Alloc { bytes, .. } = step { Some(*bytes) } else { None }).collect()
    }

    fn backward(gpu: &str, indices: u64, columns: u64, rows: u64, grad_itemsize: u64, counted: bool) -> Vec<Vec<u64>> {
        let width = IndexWidth::Int64;
        let call = EmbeddingBackward { indices, columns, rows, width, grad_itemsize, always_sorted: counted, counted };
        let stages = embedding_dense_backward(call, Gpu::by_name(gpu).unwrap()).unwrap();
        stages.iter().map(|steps| allocated(steps)).collect()
    }

    // torch.ops.aten.embedding_dense_backward on the virtual GPU, torch 2.14.1, FAKECUDA_PROFILE=rtx3090.
    #[test]
    fn measured_sequences() {
        assert_eq!(backward("rtx3090", 3072, 64, 1000, 2, false), [Vec::<u64>::new(), Vec::new()]);
        assert_eq!(
            backward("rtx3090", 16384, 64, 1000, 2, false),
            [
                vec![131_072, 131_072, 131_072, 271_871],
                vec![131_072, 8, 131_072, 2047, 8000, 8000, 1279, 8, 21_104, 675_328],
            ]
        );
        assert_eq!(
            backward("rtx3090", 3073, 64, 100, 2, false),
            [vec![24_584, 24_584, 24_584, 3583], vec![24_584, 8, 24_584, 1279, 800, 800, 1279, 8, 3256, 3256, 25_600],]
        );
        assert_eq!(
            backward("rtx3090", 5000, 1, 10, 4, true),
            [
                vec![40_000, 40_000, 40_000, 4607, 40_000, 1279, 1279],
                vec![40_000, 8, 40_000, 1279, 80, 80, 1279, 8, 4080, 4080],
            ]
        );
        // facts/workspaces.md section 8: 16,384 indices into 30,522 rows of 768.
        assert_eq!(backward("rtx3090", 16384, 768, 30522, 4, false)[1].last(), Some(&55_363_584));
    }

    #[test]
    fn the_small_table_path_depends_on_the_card() {
        let last = |gpu: &str, rows: u64| *backward(gpu, 100_000, 64, rows, 2, false)[1].last().unwrap();
        // Measured by bisection: the last small table has 327, 431, 159 and 527 rows.
        for (gpu, rows) in [("rtx3090", 327), ("a100", 431), ("t4", 159), ("h100", 527)] {
            assert_eq!(last(gpu, rows), 4 * rows * 64, "{gpu}");
            assert_ne!(last(gpu, rows + 1), 4 * (rows + 1) * 64, "{gpu}");
        }
    }

    #[test]
    fn every_allocation_is_freed_once() {
        let gpu = Gpu::by_name("rtx3090").unwrap();
        for (columns, rows, counted) in [(64, 1000, false), (64, 100, false), (1, 10, true)] {
            let call = EmbeddingBackward {
                indices: 5000,
                columns,
                rows,
                width: IndexWidth::Int32,
                grad_itemsize: 2,
                always_sorted: false,
                counted,
            };
            let steps = embedding_dense_backward(call, gpu).unwrap().concat();
            let mut live = Vec::new();
            for step in steps {
                match step {
                    Step::Alloc { slot, .. } | Step::TryAlloc { slot, .. } | Step::Renew { slot, .. } => {
                        assert!(!live.contains(&slot));
                        live.push(slot);
                    }
                    Step::Free { slot } => {
                        let position = live.iter().position(|&l| l == slot).unwrap();
                        live.remove(position);
                    }
                }
            }
            assert!(live.is_empty(), "{live:?}");
        }
    }
}
