//! Workspaces of the fused attention kernels behind `scaled_dot_product_attention`.
//!
//! All sizes are those of one call, before the allocator's rounding, in the order `PyTorch` requests them.

pub mod cudnn;
pub mod efficient;
pub mod flash;

/// The shape of an attention call: `[batch, heads, seq, head_dim]` for queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Batch.
    pub batch: u64,
    /// Query heads (keys and values expanded to them, if grouped).
    pub heads: u64,
    /// Query positions.
    pub seq_q: u64,
    /// Key positions.
    pub seq_k: u64,
    /// Elements of a query or key head.
    pub head_dim: u64,
    /// Elements of a value head.
    pub head_dim_v: u64,
}
