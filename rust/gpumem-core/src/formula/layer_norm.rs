//! `native_layer_norm_backward` and the fused RMS norm: partial weight gradients of many short rows.
//!
//! With more than 65,536 rows and few columns the kernel writes one partial sum per block of rows and a generic reduction
//! adds them into a new gradient; the gradient requested before is dropped. Measured on the virtual GPU (torch 2.14.1,
//! profiles rtx3090 and h100, 17 shapes each): every size equal.

use super::checked::{SizeOverflow, product};
use super::reduce::{ReduceKernel, ReduceOp, ReduceScratch, reduce_scratch};
use super::{Arguments, FormulaError, Stages, Step};
use crate::target::{Gpu, Target};

const OP: &str = "native_layer_norm_backward";
const ROWS_WITHOUT_PARTIALS: u64 = 64 * 1024;
const WARP_SIZE: u64 = 32;
/// Elements of one gradient's partial sums at most.
const PARTIALS_MAX_ELEMS: u64 = 1 << 20;

/// Scratch of one gradient (weight or bias).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerNormPartials {
    /// `[blocks, columns]` partial sums, kept until both gradients are reduced.
    pub partials_bytes: u64,
    /// Scratch of the reduction over the blocks, freed before the next gradient is reduced.
    pub reduction: ReduceScratch,
}

/// Partial sums per gradient, or `None` when the kernel needs none.
///
/// # Errors
/// [`SizeOverflow`].
pub fn backward_partials(
    rows: u64,
    columns: u64,
    weight_itemsize: u64,
    gpu: &Gpu,
) -> Result<Option<LayerNormPartials>, SizeOverflow> {
    if rows <= ROWS_WITHOUT_PARTIALS || columns == 0 || columns / WARP_SIZE >= u64::from(gpu.sm_count) / 2 {
        return Ok(None);
    }
    // The columns of a grid of whole warps share the limit.
    let blocks = rows.div_ceil(WARP_SIZE).min(PARTIALS_MAX_ELEMS / columns.next_multiple_of(WARP_SIZE));
    let kernel = ReduceKernel::new(ReduceOp::Sum, weight_itemsize);
    Ok(Some(LayerNormPartials {
        partials_bytes: product(OP, &[weight_itemsize, blocks, columns])?,
        reduction: reduce_scratch(kernel, &[blocks, columns], &[columns, 1], &[true, false], gpu)?,
    }))
}

/// Positions of `weight_gradient` and `bias_gradient` among the arguments of [`layer_norm_backward`].
pub const ALLOCATION_ARGUMENTS: [usize; 2] = [3, 4];

/// `layer_norm_backward [rows, columns, weight_itemsize, weight_gradient, bias_gradient]`, after the three gradients; the
/// last two are the allocations of the trace that the reductions replace, or -1.
///
/// # Errors
/// [`FormulaError`].
pub fn layer_norm_backward(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let (rows, columns, itemsize) = (arguments.size()?, arguments.size()?, arguments.size()?);
    let wanted = [arguments.allocation()?, arguments.allocation()?];
    let Some(scratch) = backward_partials(rows, columns, itemsize, target.gpu)? else {
        return Ok(vec![vec![]]);
    };
    // Slots 0 and 1: partial sums of weight and bias; 2: the gradient requested before; 3 and 4: the reduction's.
    let gradients = || (0_u8..).zip(wanted).filter_map(|(slot, gradient)| Some((slot, gradient?)));
    let mut steps: Vec<Step> =
        gradients().map(|(slot, _)| Step::Alloc { slot, bytes: scratch.partials_bytes }).collect();
    for (_, allocation) in gradients() {
        steps.extend([
            Step::Renew { slot: 2, allocation },
            Step::Alloc { slot: 3, bytes: scratch.reduction.buffer_bytes },
            Step::Alloc { slot: 4, bytes: scratch.reduction.semaphore_bytes },
            Step::Free { slot: 4 },
            Step::Free { slot: 3 },
            Step::Free { slot: 2 },
        ]);
    }
    let mut reversed: Vec<u8> = gradients().map(|(slot, _)| slot).collect();
    reversed.reverse();
    steps.extend(reversed.into_iter().map(|slot| Step::Free { slot }));
    Ok(vec![steps])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{End, LibraryWorkspaces, Stack};

    #[test]
    fn measured_shapes() {
        // torch.ops.aten.native_layer_norm_backward on the virtual GPU: rows, columns, weight bytes -> partial sums and
        // the two allocations of the reduction.
        for (gpu, rows, columns, itemsize, measured) in [
            ("rtx3090", 65_536, 96, 4, None),
            ("rtx3090", 65_537, 96, 4, Some((786_816, 417_792, 8))),
            ("rtx3090", 100_000, 96, 2, Some((600_000, 614_400, 8))),
            ("rtx3090", 802_816, 96, 4, Some((4_194_048, 2_113_536, 8))),
            ("rtx3090", 401_408, 192, 2, Some((2_097_024, 8_454_144, 8))),
            ("rtx3090", 100_352, 768, 4, Some((4_193_280, 8_650_752, 24))),
            ("rtx3090", 200_000, 32, 4, Some((800_000, 102_400, 4))),
            ("rtx3090", 200_000, 100, 4, Some((2_500_000, 1_254_400, 8))),
            ("rtx3090", 262_144, 144, 4, Some((3_774_528, 7_593_984, 8))),
            ("rtx3090", 100_352, 1536, 4, None),
            ("h100", 100_352, 1536, 4, Some((4_190_208, 0, 0))),
            ("h100", 66_000, 2624, 4, None),
        ] {
            let scratch = backward_partials(rows, columns, itemsize, Gpu::by_name(gpu).unwrap()).unwrap();
            let found = scratch.map(|s| (s.partials_bytes, s.reduction.buffer_bytes, s.reduction.semaphore_bytes));
            assert_eq!(found, measured, "{gpu} {rows} {columns}");
        }
    }

    #[test]
    fn reductions_replace_the_gradients() {
        let target = Target {
            gpu: Gpu::by_name("rtx3090").unwrap(),
            stack: Stack::MEASURED,
            library_workspaces: LibraryWorkspaces::Zero,
            cudnn_benchmark: false,
            conv_answers: None,
            end: End::Likely,
        };
        let steps = |arguments: &[i64]| {
            layer_norm_backward(&mut Arguments::new("layer_norm_backward", arguments), &target).unwrap().remove(0)
        };
        let renewed = |steps: &[Step]| {
            let allocation =
                |step: &Step| if let Step::Renew { allocation, .. } = step { Some(*allocation) } else { None };
            steps.iter().filter_map(allocation).collect::<Vec<_>>()
        };
        assert_eq!(renewed(&steps(&[65_537, 96, 4, 7, 8])), [7, 8]);
        assert_eq!(renewed(&steps(&[65_537, 96, 4, -1, 8])), [8]);
        assert_eq!(steps(&[65_536, 96, 4, 7, 8]), []);
    }
}
