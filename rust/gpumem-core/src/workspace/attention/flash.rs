//! Flash attention: split-KV partial results of the forward, fp32 accumulators of the backward.
//!
//! Found on the virtual GPU (torch 2.14.1) for 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0 (facts/workspaces.md section 8 for the
//! split rule): 1,371 calls with heads of 8 to 256 elements, 1 to 1,500 positions, with and without dropout and causal
//! mask. All forwards and backwards equal.

use super::AttentionShape;
use crate::formula::checked::{SizeOverflow, product, round_up};
use crate::target::Gpu;

const FORWARD: &str = "_scaled_dot_product_flash_attention";
const BACKWARD: &str = "_scaled_dot_product_flash_attention_backward";
const FP32_BYTES: u64 = 4;
/// Rows of queries that one block of the forward handles when it counts blocks.
const QUERY_BLOCK: u64 = 64;
const MAX_SPLITS: u64 = 128;
/// Positions to which the backward's accumulators are padded.
const BACKWARD_ROW_QUANTUM: u64 = 128;

/// Two fp32 buffers of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlashScratch {
    /// One number per query row: the log-sum-exp of each split, or the backward's row sums. Requested first.
    pub rows_bytes: u64,
    /// One head-sized vector per query row. Requested second.
    pub vectors_bytes: u64,
}

/// Partial results of a forward that splits the keys, or `None` when it does not.
///
/// It splits only without dropout and when the (batch, head, query block) blocks leave a fifth of the card's block slots
/// idle. Both buffers are requested after the output and its log-sum-exp.
///
/// # Errors
/// [`SizeOverflow`] when a size exceeds 64 bits.
pub fn forward_split_scratch(
    shape: AttentionShape,
    dropout: bool,
    gpu: &Gpu,
) -> Result<Option<FlashScratch>, SizeOverflow> {
    if dropout {
        return Ok(None);
    }
    let key_block = match shape.head_dim {
        0..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    let blocks = product(FORWARD, &[shape.batch, shape.heads, shape.seq_q.div_ceil(QUERY_BLOCK)])?;
    // Two blocks of 128 threads are counted per multiprocessor.
    let slots = 2 * u64::from(gpu.sm_count);
    let splits = split_count(blocks, slots, shape.seq_k.div_ceil(key_block));
    if splits <= 1 {
        return Ok(None);
    }
    let rows_bytes = product(FORWARD, &[splits, FP32_BYTES, shape.batch, shape.heads, shape.seq_q])?;
    let vectors_bytes = product(FORWARD, &[rows_bytes, padded_head(FORWARD, shape.head_dim)?])?;
    Ok(Some(FlashScratch { rows_bytes, vectors_bytes }))
}

/// The backward's row sums and its accumulator of the query gradient; requested after the three gradients.
///
/// With deterministic algorithms there are several accumulators; that is not modelled.
///
/// # Errors
/// [`SizeOverflow`] when a size exceeds 64 bits.
pub fn backward_scratch(shape: AttentionShape) -> Result<FlashScratch, SizeOverflow> {
    let rows = round_up(BACKWARD, shape.seq_q, BACKWARD_ROW_QUANTUM)?;
    let rows_bytes = product(BACKWARD, &[FP32_BYTES, shape.batch, shape.heads, rows])?;
    let vectors_bytes = product(BACKWARD, &[rows_bytes, padded_head(BACKWARD, shape.head_dim)?])?;
    Ok(FlashScratch { rows_bytes, vectors_bytes })
}

/// Heads are padded to 32 elements, above 128 to 64.
fn padded_head(op: &'static str, head_dim: u64) -> Result<u64, SizeOverflow> {
    round_up(op, head_dim, if head_dim <= 128 { 32 } else { 64 })
}

/// Splits of the keys: the fewest whose last wave is filled at least 85 percent as well as the best count's.
fn split_count(blocks: u64, slots: u64, key_blocks: u64) -> u64 {
    if blocks == 0 || blocks * 10 >= slots * 8 {
        return 1;
    }
    let candidates = 1..=MAX_SPLITS.min(slots).min(key_blocks);
    // A count is pointless when one fewer gives the same number of key blocks per split.
    let eligible = |n: u64| n == 1 || key_blocks.div_ceil(n) != key_blocks.div_ceil(n - 1);
    // Efficiency is used / offered slots of the waves; compared as fractions, so no rounding.
    let efficiency = |n: u64| {
        let used = u128::from(blocks * n);
        (used, used.div_ceil(u128::from(slots)) * u128::from(slots))
    };
    let better = |a: (u128, u128), b: (u128, u128)| a.0 * b.1 > b.0 * a.1;
    let best = candidates
        .clone()
        .filter(|&n| eligible(n))
        .map(efficiency)
        .fold((0, 1), |best, candidate| if better(candidate, best) { candidate } else { best });
    candidates
        .into_iter()
        .find(|&n| {
            let (used, offered) = efficiency(n);
            eligible(n) && used * best.1 * 100 >= best.0 * offered * 85
        })
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: u64, heads: u64, seq_q: u64, seq_k: u64, head_dim: u64) -> AttentionShape {
        AttentionShape { batch, heads, seq_q, seq_k, head_dim, head_dim_v: head_dim }
    }

    fn forward(gpu: &str, dims: [u64; 5]) -> Option<(u64, u64)> {
        let [batch, heads, seq_q, seq_k, head_dim] = dims;
        let gpu = Gpu::by_name(gpu).unwrap();
        let scratch = forward_split_scratch(shape(batch, heads, seq_q, seq_k, head_dim), false, gpu).unwrap();
        scratch.map(|s| (s.rows_bytes, s.vectors_bytes))
    }

    #[test]
    fn measured_forwards() {
        // facts/workspaces.md section 8 (108 multiprocessors): 12,713,984 bytes in all.
        assert_eq!(forward("a100-80gb", [2, 8, 512, 512, 80]), Some((131_072, 12_582_912)));
        assert_eq!(forward("a100-80gb", [2, 8, 512, 512, 64]), None);
        assert_eq!(forward("a100-80gb", [32, 12, 1024, 1024, 64]), None);
        // FAKECUDA_PROFILE=rtx3090, torch 2.14.1, sdpa_kernel(FLASH_ATTENTION).
        assert_eq!(forward("rtx3090", [1, 1, 512, 512, 160]), Some((16_384, 3_145_728)));
        assert_eq!(forward("rtx3090", [1, 2, 128, 1500, 144]), Some((24_576, 4_718_592)));
        assert_eq!(forward("rtx3090", [2, 8, 300, 300, 160]), Some((38_400, 7_372_800)));
    }

    #[test]
    fn dropout_never_splits() {
        let gpu = Gpu::by_name("rtx3090").unwrap();
        assert_eq!(forward_split_scratch(shape(1, 1, 512, 512, 160), true, gpu), Ok(None));
    }

    #[test]
    fn measured_backwards() {
        // FAKECUDA_PROFILE=rtx3090, torch 2.14.1, sdpa_kernel(FLASH_ATTENTION).
        for (dims, rows_bytes, vectors_bytes) in [
            (shape(1, 1, 32, 16, 48), 512, 32_768),
            (shape(1, 1, 512, 512, 160), 2_048, 393_216),
            (shape(16, 12, 129, 129, 144), 196_608, 37_748_736),
            (shape(32, 16, 777, 1, 40), 1_835_008, 117_440_512),
        ] {
            assert_eq!(backward_scratch(dims), Ok(FlashScratch { rows_bytes, vectors_bytes }), "{dims:?}");
        }
    }
}
