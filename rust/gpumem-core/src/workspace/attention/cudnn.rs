//! cuDNN's fused attention, preferred by `PyTorch` on 9.x and 10.x: workspaces of its execution plans.
//!
//! Sizes are cuDNN 9.24's own answers to `PyTorch` 2.14.1 on the virtual GPU (profiles h100, h200, b200 and a100; heads of 16 to
//! 256 elements, 1 to 1,500 positions, with and without causal mask and bias). Every answer is reproduced; with dropout no
//! plan was offered. Grouped heads were measured on the h200 profile only.

use super::AttentionShape;
use crate::formula::checked::{SizeOverflow, product, round_up, sum};
use crate::target::{Gpu, GpuFamily};

const OP: &str = "_scaled_dot_product_cudnn_attention";
const FP32_BYTES: u64 = 4;
const HALF_BYTES: u64 = 2;
/// Alignment that Hopper's plans add, in both directions.
const HOPPER_ALIGNMENT_BYTES: u64 = 256;
/// Alignment of the plan that keeps a second, padded query gradient (always on 8.0, for short sequences on 10.0).
const SHORT_ALIGNMENT_BYTES: u64 = 128;
/// Up to this many queries or keys Blackwell takes that plan.
const SHORT_SEQUENCE: u64 = 128;
const SHORT_ROW_QUANTUM: u64 = 8;
/// Above this head size Blackwell's plan keeps no query gradient.
const BLACKWELL_ACCUMULATED_HEAD: u64 = 128;

/// Bytes of a forward's workspace.
#[must_use]
pub fn forward_workspace_bytes(gpu: &Gpu) -> u64 {
    match gpu.family() {
        GpuFamily::Hopper => HOPPER_ALIGNMENT_BYTES,
        _ => 0,
    }
}

/// Bytes of a backward's workspace: one fp32 per query row, the fp32 query gradient, and with grouped heads the 16-bit
/// key and value gradients of all query heads.
///
/// # Errors
/// [`SizeOverflow`].
pub fn backward_workspace_bytes(shape: AttentionShape, key_heads: u64, gpu: &Gpu) -> Result<u64, SizeOverflow> {
    let per_row = product(OP, &[FP32_BYTES, shape.batch, shape.heads])?;
    let rows = product(OP, &[per_row, shape.seq_q])?;
    let query_gradient = product(OP, &[rows, shape.head_dim])?;
    let expanded = if shape.heads == key_heads {
        0
    } else {
        let columns = sum(OP, &[shape.head_dim, shape.head_dim_v])?;
        product(OP, &[HALF_BYTES, shape.batch, shape.heads, shape.seq_k, columns])?
    };
    let two_buffers = || {
        let padded_rows = round_up(OP, shape.seq_q, SHORT_ROW_QUANTUM)?;
        let second = product(OP, &[per_row, padded_rows, shape.head_dim])?;
        sum(OP, &[query_gradient, second, SHORT_ALIGNMENT_BYTES])
    };
    let accumulated = match gpu.family() {
        GpuFamily::Hopper => sum(OP, &[query_gradient, HOPPER_ALIGNMENT_BYTES])?,
        GpuFamily::BlackwellDatacenter if shape.head_dim > BLACKWELL_ACCUMULATED_HEAD => 0,
        GpuFamily::BlackwellDatacenter if shape.seq_q.min(shape.seq_k) > SHORT_SEQUENCE => query_gradient,
        _ => two_buffers()?,
    };
    sum(OP, &[rows, accumulated, expanded])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_backwards() {
        // FAKECUDA_PROFILE=<gpu> with the real cuDNN 9.24, torch 2.14.1, sdpa_kernel(CUDNN_ATTENTION); dims are batch,
        // heads, queries, keys, head.
        for (gpu, dims, measured) in [
            ("h100", [32, 16, 100, 16, 24], 5_120_256),
            ("h100", [1, 2, 128, 16, 56], 58_624),
            ("h100", [2, 8, 1024, 1024, 64], 4_260_096),
            ("h100", [2, 8, 197, 197, 256], 3_240_512),
            ("b200", [2, 8, 1024, 1024, 128], 8_454_144),
            ("b200", [2, 8, 197, 197, 80], 1_021_248),
            ("b200", [2, 8, 128, 128, 64], 1_056_896),
            ("b200", [16, 12, 300, 64, 72], 33_629_312),
            ("b200", [2, 3, 65, 1500, 24], 80_600),
            ("b200", [2, 3, 300, 200, 256], 7_200),
            ("a100", [1, 1, 129, 129, 40], 43_044),
            ("a100", [4, 12, 100, 77, 128], 5_032_832),
        ] {
            let [batch, heads, seq_q, seq_k, head_dim] = dims;
            let shape = AttentionShape { batch, heads, seq_q, seq_k, head_dim, head_dim_v: head_dim };
            let bytes = backward_workspace_bytes(shape, heads, Gpu::by_name(gpu).unwrap()).unwrap();
            assert_eq!(bytes, measured, "{gpu} {dims:?}");
        }
    }

    #[test]
    fn measured_forwards() {
        assert_eq!(forward_workspace_bytes(Gpu::by_name("h100").unwrap()), 256);
        assert_eq!(forward_workspace_bytes(Gpu::by_name("b200").unwrap()), 0);
    }
}
