//! Memory-efficient attention, backward: fp32 tiles in which the gradients are accumulated.
//!
//! The kernel walks tiles of `rows x cols` query-key pairs. The gradient of the queries is always accumulated in global
//! memory, one tile (with a 16-byte header holding a lock and a counter) per block of queries and block of head
//! elements. Gradients of keys and values stay in registers when a head fits the tile's rows; otherwise 16-bit kernels
//! stage them in fp32, once per split of the keys. Which tile is used depends on the card's shared memory.
//!
//! Found on the virtual GPU (torch 2.14.1) for 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0: 4,900 of 4,900 calls equal (fp32,
//! fp16, bf16; heads of 8 to 512 elements; 1 to 1,500 positions; with and without mask, dropout, causal).

use super::AttentionShape;
use crate::formula::checked::{SizeOverflow, product, sum};
use crate::target::{Capability, Gpu};

const OP: &str = "_scaled_dot_product_efficient_attention_backward";
const FP32_BYTES: u64 = 4;
/// Lock, counter and padding in front of a tile.
const TILE_HEADER_BYTES: u64 = 16;
/// Blocks the kernel aims at when it splits the keys.
const SPLIT_TARGET_BLOCKS: u64 = 200;
/// From this opt-in shared memory on (8.0, 9.0, 10.0) the 128 x 128 tile fits; 8.6, 8.9 and 12.0 have 101,376 bytes.
const LARGE_SHARED_MEMORY_BYTES: u64 = 160 * 1024;

/// Element size class of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionDtype {
    /// fp32.
    F32,
    /// fp16 or bf16.
    Half,
}

/// The kernel's tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    query_rows: u64,
    key_rows: u64,
    stages_key_gradients: bool,
}

impl Tile {
    fn choose(dtype: AttentionDtype, widest_head: u64, dropout: bool, gpu: &Gpu) -> Self {
        let tile = |query_rows, key_rows, stages| Self { query_rows, key_rows, stages_key_gradients: stages };
        let large = gpu.shared_memory_per_block_optin_bytes >= LARGE_SHARED_MEMORY_BYTES;
        let turing_or_older = gpu.capability < Capability::new(8, 0);
        // A kernel made for 80-element heads exists for exactly these two capabilities, without dropout.
        let special_96 = matches!((gpu.capability.major, gpu.capability.minor), (8, 6 | 9)) && !dropout;
        match (dtype, widest_head) {
            (_, 0..=64) => tile(64, 64, false),
            (AttentionDtype::F32, _) => tile(if large { 128 } else { 64 }, 64, false),
            (AttentionDtype::Half, 65..=96) if special_96 => tile(128, 64, false),
            (AttentionDtype::Half, 65..=128) if turing_or_older => tile(128, 64, false),
            (AttentionDtype::Half, 65..=128) if large => tile(128, 128, false),
            (AttentionDtype::Half, 65..=128) => tile(64, 64, true),
            (AttentionDtype::Half, _) => tile(128, 64, true),
        }
    }
}

/// Bytes of the gradient accumulation workspace.
///
/// # Errors
/// [`SizeOverflow`] when the size exceeds 64 bits.
pub fn backward_workspace_bytes(
    shape: AttentionShape,
    dtype: AttentionDtype,
    dropout: bool,
    gpu: &Gpu,
) -> Result<u64, SizeOverflow> {
    let tile = Tile::choose(dtype, shape.head_dim.max(shape.head_dim_v), dropout, gpu);
    let batch_heads = product(OP, &[shape.batch, shape.heads])?;
    let tile_bytes = TILE_HEADER_BYTES + tile.query_rows * tile.key_rows * FP32_BYTES;
    let query_tiles =
        product(OP, &[shape.seq_q.div_ceil(tile.query_rows), shape.head_dim.div_ceil(tile.key_rows), tile_bytes])?;
    let staged = if tile.stages_key_gradients {
        let wanted = SPLIT_TARGET_BLOCKS.checked_div(batch_heads).unwrap_or(1);
        let splits = shape.seq_k.div_ceil(tile.key_rows).min(wanted).max(1);
        let padded =
            |dim: u64| dim.div_ceil(tile.query_rows).checked_mul(tile.query_rows).ok_or(SizeOverflow { op: OP });
        let columns = sum(OP, &[padded(shape.head_dim)?, padded(shape.head_dim_v)?])?;
        product(OP, &[splits, tile.key_rows, columns, FP32_BYTES])?
    } else {
        0
    };
    product(OP, &[batch_heads, sum(OP, &[query_tiles, staged])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(gpu: &str, dtype: AttentionDtype, dropout: bool, dims: [u64; 6]) -> u64 {
        let [batch, heads, seq_q, seq_k, head_dim, head_dim_v] = dims;
        let shape = AttentionShape { batch, heads, seq_q, seq_k, head_dim, head_dim_v };
        backward_workspace_bytes(shape, dtype, dropout, Gpu::by_name(gpu).unwrap()).unwrap()
    }

    #[test]
    fn measured_calls() {
        use AttentionDtype::{F32, Half};
        // FAKECUDA_PROFILE=<gpu>, torch 2.14.1: last allocation of the backward of scaled_dot_product_attention under
        // sdpa_kernel(EFFICIENT_ATTENTION); dims are batch, heads, queries, keys, head, value head.
        for (gpu, dtype, dropout, dims, measured) in [
            ("rtx3090", Half, false, [4, 12, 32, 513, 112, 128], 14_157_312),
            ("rtx3090", Half, false, [2, 8, 513, 513, 128, 128], 14_160_384),
            ("rtx3090", Half, false, [2, 3, 512, 77, 72, 64], 1_573_632),
            ("rtx3090", Half, true, [32, 16, 100, 100, 96, 64], 58_753_024),
            ("rtx3090", Half, false, [32, 16, 128, 1500, 112, 32], 58_753_024),
            ("rtx3090", Half, false, [16, 12, 129, 513, 160, 128], 56_641_536),
            ("rtx3090", F32, false, [2, 8, 300, 300, 128, 128], 2_624_000),
            ("a100-80gb", F32, false, [2, 8, 300, 300, 128, 128], 3_147_264),
            ("a100-80gb", Half, false, [2, 3, 512, 77, 72, 64], 1_573_248),
            ("a100-80gb", Half, true, [32, 16, 200, 1500, 288, 32], 234_962_944),
            ("t4", Half, false, [2, 8, 200, 200, 128, 128], 2_098_176),
            ("h100", Half, false, [2, 8, 200, 200, 128, 128], 2_097_664),
            ("rtx5090", Half, false, [4, 12, 777, 1500, 72, 64], 29_904_384),
            ("b200", F32, false, [32, 16, 129, 1500, 16, 32], 25_190_400),
        ] {
            assert_eq!(bytes(gpu, dtype, dropout, dims), measured, "{gpu} {dtype:?} {dims:?}");
        }
    }

    #[test]
    fn a_size_beyond_64_bits_is_an_error() {
        let n = 1 << 24;
        let shape = AttentionShape { batch: n, heads: n, seq_q: n, seq_k: n, head_dim: 64, head_dim_v: 64 };
        let gpu = Gpu::by_name("rtx3090").unwrap();
        assert_eq!(backward_workspace_bytes(shape, AttentionDtype::Half, false, gpu), Err(SizeOverflow { op: OP }));
    }
}
