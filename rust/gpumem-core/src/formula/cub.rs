//! Temporary storage of CUB's device algorithms, as `PyTorch` requests it from the caching allocator.
//!
//! Every algorithm asks for 255 bytes plus its parts, each rounded up to 256 bytes. The parts are per tile, and how many
//! items a tile holds is a tuning of CUB by architecture and item sizes. The tile sizes here were recovered from the
//! sizes of the virtual GPU (torch 2.14.1, up to 10^8 items) for 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0; each reproduces
//! every measured size. Sorts of 16-bit keys before 9.0 use an older algorithm that asks the driver for occupancy, which
//! the virtual GPU takes to be limited by threads alone: an upper end for real cards.

use super::checked::{SizeOverflow, product, round_up, sum};
use super::{Arguments, FormulaError, Stages, temporary};
use crate::target::{Capability, Gpu, Target};

const OP: &str = "cub temporary storage";
pub(super) const PART_ALIGNMENT_BYTES: u64 = 256;
/// Slack for aligning the first part.
const SLACK_BYTES: u64 = 255;
/// A storage that needs nothing still asks for one byte.
pub(super) const NOTHING_BYTES: u64 = 1;
/// Tile states in front of the first tile.
const LEADING_TILES: u64 = 32;
/// Tile state of scans whose value and status do not fit 8 bytes together.
const WIDE_TILE_STATE_BYTES: u64 = 16;

/// CUB's tunings that differ among the measured architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tuning {
    /// Below 8.0.
    Sm70,
    /// 8.0.
    Sm80,
    /// 8.6 and 8.9: radix sort as 8.0, scans as the default.
    Sm86,
    /// 9.0 and above.
    Sm90,
}

impl Tuning {
    fn of(gpu: &Gpu) -> Self {
        match gpu.capability {
            c if c < Capability::new(8, 0) => Self::Sm70,
            c if c < Capability::new(8, 6) => Self::Sm80,
            c if c < Capability::new(9, 0) => Self::Sm86,
            _ => Self::Sm90,
        }
    }
}

/// Key and value types of a radix sort of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortPair {
    /// int64 keys and values: `embedding_dense_backward`, `index_put`, `sort` of int64.
    Int64Int64,
    /// int32 keys and values: `embedding_dense_backward` of int32 indices.
    Int32Int32,
    /// fp32 (or int32) keys with int64 values: `sort`.
    Float32Int64,
    /// 16-bit keys with int64 values: `sort`.
    Half16Int64,
}

/// Integer width of indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexWidth {
    /// int32.
    Int32,
    /// int64.
    Int64,
}

impl IndexWidth {
    /// Bytes of an index.
    #[must_use]
    pub const fn itemsize(self) -> u64 {
        match self {
            Self::Int32 => 4,
            Self::Int64 => 8,
        }
    }
}

/// `radix_sort [items, largest_key, key_itemsize, value_itemsize]`: one stage. Only the bits of the largest key are sorted.
///
/// # Errors
/// [`FormulaError`], also for item sizes that were not measured.
pub fn radix_sort(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let items = arguments.size()?;
    let key_bits = u64::BITS - arguments.size()?.leading_zeros();
    let pair = match (arguments.size()?, arguments.size()?) {
        (8, 8) => SortPair::Int64Int64,
        (4, 4) => SortPair::Int32Int32,
        (4, 8) => SortPair::Float32Int64,
        _ => return Err(arguments.invalid("keys and values of these sizes were not measured")),
    };
    Ok(vec![temporary(&[radix_sort_pairs_bytes(pair, items, key_bits, target.gpu)?])])
}

/// `cub_scan [items, itemsize]`: one stage.
///
/// # Errors
/// [`FormulaError`], also for item sizes that were not measured.
pub fn cub_scan(arguments: &mut Arguments<'_>, _target: &Target) -> Result<Stages, FormulaError> {
    let items = arguments.size()?;
    let width = match arguments.size()? {
        4 => IndexWidth::Int32,
        8 => IndexWidth::Int64,
        _ => return Err(arguments.invalid("scans of this item size were not measured")),
    };
    Ok(vec![temporary(&[scan_bytes(width, items)?])])
}

/// `DeviceRadixSort::SortPairs` of `items` pairs over the low `key_bits` bits.
///
/// # Errors
/// [`SizeOverflow`].
pub fn radix_sort_pairs_bytes(pair: SortPair, items: u64, key_bits: u32, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    /// One pass sorts by 8 bits, with a 64-bit counter per digit value.
    const BITS_PER_PASS: u32 = 8;
    const HISTOGRAM_BYTES: u64 = 256 * 8;
    /// Look-back counters of one tile.
    const TILE_COUNTERS_BYTES: u64 = 256 * 4;
    const PASS_COUNTERS_BYTES: u64 = 256;
    // Key bytes, value bytes, items that one block sorts alone, items of a tile by tuning.
    let (key_bytes, value_bytes, single_tile, tiles) = match pair {
        SortPair::Int64Int64 => (8, 8, 2304, [2816, 3840, 3840, 4608]),
        SortPair::Int32Int32 => (4, 4, 4864, [11776, 6528, 6528, 6528]),
        // Not visible below 4,096 items, where `sort` does not use it.
        SortPair::Float32Int64 => (4, 8, 4096, [2816, 3072, 3072, 5376]),
        SortPair::Half16Int64 if Tuning::of(gpu) != Tuning::Sm90 => return upsweep_bytes(items, gpu),
        SortPair::Half16Int64 => (2, 8, 4096, [5632; 4]),
    };
    if items <= single_tile {
        return Ok(NOTHING_BYTES);
    }
    let passes = u64::from(key_bits.max(1).div_ceil(BITS_PER_PASS));
    let [histograms, counters] = [
        product(OP, &[HISTOGRAM_BYTES, passes])?,
        product(OP, &[TILE_COUNTERS_BYTES, items.div_ceil(per_tile(tiles, gpu))])?,
    ];
    let copies = |itemsize: u64| if passes > 1 { product(OP, &[itemsize, items]) } else { Ok(0) };
    storage(&[histograms, counters, PASS_COUNTERS_BYTES, copies(key_bytes)?, copies(value_bytes)?])
}

/// The older radix sort of 16-bit keys with int64 values: counters of a full grid, a tile of their scan, both copies.
fn upsweep_bytes(items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    const COUNTER_BYTES: u64 = 4;
    /// Threads of a block, and values of one digit.
    const BLOCK_THREADS: u64 = 256;
    /// Blocks in the grid for each that the card can hold.
    const OVERSUBSCRIPTION: u64 = 5;
    /// 512 threads of 22 items.
    const SCAN_TILE: u64 = 11_264;
    const KEY_BYTES: u64 = 2;
    const VALUE_BYTES: u64 = 8;
    let blocks = u64::from(gpu.sm_count) * u64::from(gpu.max_threads_per_sm) / BLOCK_THREADS * OVERSUBSCRIPTION;
    let counters = sum(OP, &[product(OP, &[blocks, BLOCK_THREADS])?, SCAN_TILE])?;
    storage(&[
        product(OP, &[COUNTER_BYTES, counters])?,
        product(OP, &[KEY_BYTES, items])?,
        product(OP, &[VALUE_BYTES, items])?,
    ])
}

/// `DeviceRadixSort::SortKeys` of int64 keys by one digit, more than one tile of them.
///
/// # Errors
/// [`SizeOverflow`].
pub fn radix_sort_one_digit_bytes(items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    const HISTOGRAM_BYTES: u64 = 256 * 8;
    const TILE_COUNTERS_BYTES: u64 = 256 * 4;
    let tiles = items.div_ceil(per_tile([2816, 3840, 3840, 5760], gpu));
    storage(&[HISTOGRAM_BYTES, product(OP, &[TILE_COUNTERS_BYTES, tiles])?, PART_ALIGNMENT_BYTES])
}

/// `DeviceSegmentedRadixSort::SortPairs`: copies of keys and int64 values.
///
/// # Errors
/// [`SizeOverflow`].
pub fn segmented_sort_bytes(items: u64, key_bytes: u64) -> Result<u64, SizeOverflow> {
    const VALUE_BYTES: u64 = 8;
    storage(&[product(OP, &[key_bytes, items])?, product(OP, &[VALUE_BYTES, items])?])
}

/// `DeviceScan` (`cumsum` along one row, prefix sums of segment counts).
///
/// # Errors
/// [`SizeOverflow`].
pub fn scan_bytes(width: IndexWidth, items: u64) -> Result<u64, SizeOverflow> {
    let (state_bytes, tile) = match width {
        IndexWidth::Int32 => (8, 1920),
        IndexWidth::Int64 => (WIDE_TILE_STATE_BYTES, 896),
    };
    storage(&[tile_states(state_bytes, items.div_ceil(tile))?, PART_ALIGNMENT_BYTES])
}

/// `DeviceSelect::UniqueByKey`.
///
/// # Errors
/// [`SizeOverflow`].
pub fn unique_by_key_bytes(width: IndexWidth, items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    let tiles = match width {
        IndexWidth::Int32 => [704, 2816, 704, 7168],
        IndexWidth::Int64 => [320, 1344, 320, 4928],
    };
    let tiles = items.div_ceil(per_tile(tiles, gpu));
    storage(&[tile_states(WIDE_TILE_STATE_BYTES, tiles)?, PART_ALIGNMENT_BYTES])
}

/// `DeviceScan` by key (the counts of equal indices).
///
/// # Errors
/// [`SizeOverflow`].
pub fn scan_by_key_bytes(width: IndexWidth, items: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    let tiles = match width {
        IndexWidth::Int32 => [2304, 3840, 2304, 4032],
        IndexWidth::Int64 => [2304, 2240, 2304, 2464],
    };
    let tiles = items.div_ceil(per_tile(tiles, gpu));
    storage(&[tile_states(WIDE_TILE_STATE_BYTES, tiles)?, product(OP, &[width.itemsize(), tiles])?])
}

pub(super) fn per_tile(by_tuning: [u64; 4], gpu: &Gpu) -> u64 {
    let [sm70, sm80, sm86, sm90] = by_tuning;
    match Tuning::of(gpu) {
        Tuning::Sm70 => sm70,
        Tuning::Sm80 => sm80,
        Tuning::Sm86 => sm86,
        Tuning::Sm90 => sm90,
    }
}

pub(super) fn tile_states(state_bytes: u64, tiles: u64) -> Result<u64, SizeOverflow> {
    product(OP, &[state_bytes, sum(OP, &[tiles, LEADING_TILES])?])
}

pub(super) fn storage(parts: &[u64]) -> Result<u64, SizeOverflow> {
    parts.iter().try_fold(SLACK_BYTES, |total, &part| sum(OP, &[total, round_up(OP, part, PART_ALIGNMENT_BYTES)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Sizes measured on the virtual GPU, torch 2.14.1: FAKECUDA_PROFILE=<gpu>, memory history of
    // torch.ops.aten.embedding_dense_backward (int32 and int64 indices), _index_put_impl_ and torch.sort.

    #[test]
    fn radix_sorts() {
        use SortPair::{Float32Int64, Int32Int32, Int64Int64};
        for (gpu, pair, items, key_bits, measured) in [
            ("rtx3090", Int64Int64, 2304, 8, 1),
            ("rtx3090", Int64Int64, 2305, 8, 3583),
            ("rtx3090", Int64Int64, 38_416, 8, 13_823),
            ("rtx3090", Int64Int64, 38_416, 9, 630_783),
            ("rtx3090", Int64Int64, 1_000_000, 8, 269_823),
            ("rtx3090", Int64Int64, 1_000_000, 17, 16_273_919),
            ("rtx3090", Int64Int64, 1_000_000, 25, 16_275_967),
            ("rtx3090", Int64Int64, 100_000, 64, 1_644_543),
            ("t4", Int64Int64, 1_000_000, 9, 16_369_151),
            ("h100", Int64Int64, 100_000, 9, 1_627_135),
            ("rtx3090", Int32Int32, 4864, 8, 1),
            ("rtx3090", Int32Int32, 100_000, 10, 821_247),
            ("t4", Int32Int32, 1_000_000, 8, 89_599),
            ("h100", Int32Int32, 1_000_000, 8, 160_255),
            ("a100", Float32Int64, 1_000_000, 32, 12_342_527),
            ("t4", Float32Int64, 100_000, 32, 1_245_695),
            ("b200", Float32Int64, 4097, 32, 59_391),
            ("rtx5090", Float32Int64, 1_000_000, 32, 12_200_191),
        ] {
            let bytes = radix_sort_pairs_bytes(pair, items, key_bits, Gpu::by_name(gpu).unwrap()).unwrap();
            assert_eq!(bytes, measured, "{gpu} {pair:?} {items} {key_bits}");
        }
    }

    #[test]
    fn long_sorts_of_several_slices() {
        // torch.sort of 4, 100 and 200 slices of 8,192.
        for (gpu, items, half, one_digit) in [
            ("t4", 32_768, 1_192_191, 14_847),
            ("t4", 819_200, 9_056_511, 300_543),
            ("a100", 32_768, 4_796_671, 11_775),
            ("rtx3090", 819_200, 10_756_351, 221_695),
            ("l4", 32_768, 2_154_751, 11_775),
            ("h100", 32_768, 338_431, 8703),
            ("b200", 819_200, 8_346_111, 148_991),
        ] {
            let gpu = Gpu::by_name(gpu).unwrap();
            assert_eq!(radix_sort_pairs_bytes(SortPair::Half16Int64, items, 16, gpu), Ok(half), "{}", gpu.name);
            assert_eq!(radix_sort_one_digit_bytes(items, gpu), Ok(one_digit), "{}", gpu.name);
        }
        assert_eq!(segmented_sort_bytes(1_638_400, 4), Ok(19_661_055));
        assert_eq!(segmented_sort_bytes(1_638_400, 2), Ok(16_384_255));
    }

    #[test]
    fn scans() {
        use IndexWidth::{Int32, Int64};
        for (width, items, measured) in [
            (Int32, 1000, 1023),
            (Int32, 100_000, 1279),
            (Int32, 10_000_000, 42_495),
            (Int64, 100, 1279),
            (Int64, 50_257, 2047),
            (Int64, 1_000_000, 18_943),
        ] {
            assert_eq!(scan_bytes(width, items), Ok(measured), "{width:?} {items}");
        }
    }

    #[test]
    fn unique_and_scan_by_key() {
        use IndexWidth::{Int32, Int64};
        for (gpu, width, items, unique, by_key) in [
            ("rtx3090", Int64, 1_000_000, 51_199, 11_519),
            ("rtx3090", Int32, 1_000_000, 23_807, 9_727),
            ("rtx4090", Int64, 100_000, 6_143, 1_535),
            ("a100", Int64, 1_000_000, 13_055, 11_519),
            ("a100", Int32, 1_000_000, 6_911, 6_399),
            ("h100", Int64, 1_000_000, 4_351, 10_751),
            ("h100", Int32, 1_000_000, 3_327, 5_887),
            ("t4", Int64, 5_000, 1_279, 1_279),
        ] {
            let gpu = Gpu::by_name(gpu).unwrap();
            assert_eq!(unique_by_key_bytes(width, items, gpu), Ok(unique), "{} {width:?} {items}", gpu.name);
            if (gpu.name.as_str(), items) != ("rtx4090", 100_000) {
                assert_eq!(scan_by_key_bytes(width, items, gpu), Ok(by_key), "{} {width:?} {items}", gpu.name);
            }
        }
    }
}
