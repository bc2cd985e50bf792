//! `CUB`'s selections: `nonzero` (`cuda/Nonzero.cu`) and the distinct indices of `embedding_renorm_`.
//!
//! Recovered like the sizes in [`super::cub`]: virtual GPU, torch 2.14.1, up to 10^8 items, 7.5 to 12.0.

use super::checked::{SizeOverflow, product};
use super::cub::{IndexWidth, NOTHING_BYTES, PART_ALIGNMENT_BYTES, per_tile, storage, tile_states};
use super::{Arguments, FormulaError, Stages, Step, temporary};
use crate::target::{Capability, Gpu, Target};

const OP: &str = "cub selection";
const TILE_STATE_BYTES: u64 = 8;
const COUNT_BYTES: u64 = 4;

/// `nonzero [items]`: stage 0 before the positions are requested (the count, the storage of its sum), stage 1 after it
/// (the storage of the selection; everything is freed).
///
/// # Errors
/// [`FormulaError`].
pub fn nonzero(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let items = arguments.size()?;
    Ok(vec![
        vec![
            Step::Alloc { slot: 0, bytes: COUNT_BYTES },
            Step::Alloc { slot: 1, bytes: count_bytes(items, target.gpu)? },
            Step::Free { slot: 1 },
        ],
        vec![
            Step::Alloc { slot: 2, bytes: select_bytes(items, target.gpu)? },
            Step::Free { slot: 2 },
            Step::Free { slot: 0 },
        ],
    ])
}

/// `select_unique [items, itemsize]`: one stage.
///
/// # Errors
/// [`FormulaError`], also for item sizes that were not measured.
pub fn select_unique(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let items = arguments.size()?;
    let width = match arguments.size()? {
        4 => IndexWidth::Int32,
        8 => IndexWidth::Int64,
        _ => return Err(arguments.invalid("selections of this item size were not measured")),
    };
    Ok(vec![temporary(&[unique_bytes(width, items, target.gpu)?])])
}

/// `DeviceReduce::Sum` of flags: one partial sum per block of a full grid.
fn count_bytes(items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    const SINGLE_TILE: u64 = 4096;
    const BLOCK_THREADS: u64 = 256;
    const OVERSUBSCRIPTION: u64 = 5;
    if items <= SINGLE_TILE {
        return Ok(NOTHING_BYTES);
    }
    let blocks = u64::from(gpu.sm_count) * u64::from(gpu.max_threads_per_sm) / BLOCK_THREADS * OVERSUBSCRIPTION;
    storage(&[product(OP, &[COUNT_BYTES, blocks])?])
}

/// `DeviceSelect::Flagged` of positions.
fn select_bytes(items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    tiles_bytes(items, [640, 2304, 640, 4224], 3520, gpu)
}

/// `DeviceSelect::Unique`.
fn unique_bytes(width: IndexWidth, items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    match width {
        IndexWidth::Int32 => tiles_bytes(items, [1280, 4608, 1280, 6528], 5760, gpu),
        IndexWidth::Int64 => tiles_bytes(items, [640, 1920, 640, 4224], 4224, gpu),
    }
}

fn tiles_bytes(items: u64, by_tuning: [u64; 4], from_sm100: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    let tile = if gpu.capability < Capability::new(10, 0) { per_tile(by_tuning, gpu) } else { from_sm100 };
    storage(&[tile_states(TILE_STATE_BYTES, items.div_ceil(tile))?, PART_ALIGNMENT_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonzero_elements() {
        for (gpu, items, count, select) in [
            ("rtx3090", 4096, 1, 1023),
            ("rtx3090", 4097, 10_239, 1023),
            ("t4", 1_351_680, 3583, 17_663),
            ("a100", 1_351_680, 17_663, 5631),
            ("a100", 32_776_192, 17_663, 114_687),
            ("h100", 6_561_792, 21_503, 13_311),
            ("b200", 32_776_192, 24_063, 75_263),
            ("rtx5090", 32_776_192, 20_735, 75_263),
        ] {
            let gpu = Gpu::by_name(gpu).unwrap();
            assert_eq!(count_bytes(items, gpu), Ok(count), "{} {items}", gpu.name);
            assert_eq!(select_bytes(items, gpu), Ok(select), "{} {items}", gpu.name);
        }
    }

    #[test]
    fn distinct_indices() {
        use IndexWidth::{Int32, Int64};
        for (gpu, width, items, measured) in [
            ("rtx3090", Int64, 20, 1023),
            ("rtx3090", Int64, 1_500_000, 19_711),
            ("t4", Int32, 100_000_000, 625_919),
            ("a100", Int64, 1_500_000, 7167),
            ("a100", Int32, 10_000_000, 18_175),
            ("h100", Int64, 10_000_000, 19_711),
            ("h100", Int32, 100_000_000, 123_391),
            ("b200", Int64, 100_000_000, 190_207),
            ("b200", Int32, 10_000_000, 14_847),
        ] {
            let gpu = Gpu::by_name(gpu).unwrap();
            assert_eq!(unique_bytes(width, items, gpu), Ok(measured), "{} {width:?} {items}", gpu.name);
        }
    }
}
