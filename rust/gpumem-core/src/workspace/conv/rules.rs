//! Which copies and partial results cuDNN's first plan keeps in its workspace.
//!
//! The mechanism (found by comparing queried sizes with the call's tensors): a plan whose kernel wants another layout
//! copies input `x`, weight `w` or output `y` into the workspace, in 16-bit and TF32 kernels with channels padded to 16
//! bytes; a weight gradient split over `k` blocks keeps `k` fp32 copies of the weight; a Winograd plan keeps 25/9 of it;
//! index tables take a few KiB. Which plan comes first is cuDNN's own trained heuristic. `data/conv_rules.json` holds one
//! small decision tree per (GPU family, arithmetic, layout, direction) fitted to its answers; a leaf names the terms.

use std::sync::OnceLock;

use serde::Deserialize;

use super::call::{ConvCall, ConvDtype, Direction, InvalidConv, Problem, checked};
use crate::target::{Gpu, GpuFamily, Range, Stack, Version};
use crate::workspace::{Workspace, WorkspaceSource};

const TABLE: &str = include_str!("../../../data/conv_rules.json");
const TABLE_SCHEMA: u32 = 1;
/// Version whose plans were queried.
const QUERIED_CUDNN: Version = Version::new(9, 24);
/// `PyTorch` release that ships it (facts/workspaces.md section 0).
const QUERIED_TORCH: Version = Version::new(2, 14);
/// Bytes of index tables and alignment that a leaf's terms leave out.
const TABLES_BYTES: u64 = 64 * 1024;
/// The weight factors of the table are in thousandths.
const FACTOR_UNIT: u64 = 1000;

/// Bytes of the workspace of one call.
pub(super) fn workspace(call: &ConvCall, gpu: &Gpu, stack: &Stack) -> Result<Workspace, InvalidConv> {
    let problem = call.problem()?;
    let rule = rule(call, problem.direction, gpu)?;
    let leaf = rule.leaf(&features(&problem, call)?)?;
    let terms = Terms::new(&problem, call.channels_last)?;
    let likely_bytes = terms.evaluate(leaf.likely)?;
    let low_bytes = terms.evaluate(leaf.low)?.saturating_sub(TABLES_BYTES).min(likely_bytes);
    let high_bytes = add(terms.evaluate(leaf.high)?, TABLES_BYTES)?.max(likely_bytes);
    let queried = stack.cudnn.map_or(stack.torch == QUERIED_TORCH, |cudnn| cudnn == QUERIED_CUDNN);
    if queried && call.input.len() <= 2 && gpu.family() != GpuFamily::PreVolta {
        let bytes = Range { low_bytes, likely_bytes, high_bytes };
        return Ok(Workspace { bytes, source: WorkspaceSource::FittedRule });
    }
    // Another cuDNN ranks plans differently: all copies are possible. The trees were not fitted to three dimensions,
    // whose weight gradients also keep more partial results.
    let everything = terms.evaluate(Leaf::EVERYTHING)?;
    let everything = if call.input.len() == 3 { add(everything, everything / 2)? } else { everything };
    let bytes = Range { low_bytes: 0, likely_bytes, high_bytes: high_bytes.max(everything) };
    Ok(Workspace { bytes, source: WorkspaceSource::Guess })
}

/// Terms of one end of a leaf, as in the table: copies kept (bits x, w, y), whether their channels are padded, fp32
/// weights in thousandths, and plain bytes.
type LeafTerms = (u8, u8, u64, u64);

#[derive(Debug, Clone, Copy, Deserialize)]
struct Leaf {
    likely: LeafTerms,
    low: LeafTerms,
    high: LeafTerms,
}

impl Leaf {
    const EVERYTHING: LeafTerms = (7, 1, FACTOR_UNIT, 0);
}

/// A feature's number, the largest value that goes left, and the positions of both sides.
type Split = (usize, u64, usize, usize);

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Node {
    Split(Split),
    Leaf(Leaf),
}

#[derive(Debug, Deserialize)]
struct Rule {
    family: String,
    arithmetic: String,
    layout: String,
    direction: String,
    nodes: Vec<Node>,
}

impl Rule {
    fn leaf(&self, features: &[u64; FEATURES.len()]) -> Result<Leaf, InvalidConv> {
        let mut position = 0;
        // Children lie behind their parent, so the walk ends within as many steps as there are nodes.
        for _ in &self.nodes {
            match self.nodes.get(position).ok_or(InvalidConv::RuleTable)? {
                Node::Leaf(leaf) => return Ok(*leaf),
                Node::Split((feature, most, left, right)) => {
                    let value = features.get(*feature).ok_or(InvalidConv::RuleTable)?;
                    position = if value <= most { *left } else { *right };
                }
            }
        }
        Err(InvalidConv::RuleTable)
    }
}

#[derive(Debug, Deserialize)]
struct Table {
    schema: u32,
    features: Vec<String>,
    rules: Vec<Rule>,
}

fn table() -> Result<&'static Table, InvalidConv> {
    static PARSED: OnceLock<Option<Table>> = OnceLock::new();
    let parsed = PARSED.get_or_init(|| {
        let table: Table = serde_json::from_str(TABLE).ok()?;
        (table.schema == TABLE_SCHEMA && table.features == FEATURES).then_some(table)
    });
    parsed.as_ref().ok_or(InvalidConv::RuleTable)
}

/// The tree for a call; families without queries of their own use the nearest older one.
fn rule(call: &ConvCall, direction: Direction, gpu: &Gpu) -> Result<&'static Rule, InvalidConv> {
    let family = match gpu.family() {
        GpuFamily::PreVolta | GpuFamily::Volta => "volta",
        GpuFamily::Turing => "turing",
        GpuFamily::AmpereDatacenter => "ampere-datacenter",
        GpuFamily::AmpereConsumer => "ampere-consumer",
        GpuFamily::Ada => "ada",
        GpuFamily::Hopper => "hopper",
        GpuFamily::BlackwellDatacenter => "blackwell-datacenter",
        GpuFamily::BlackwellConsumer => "blackwell-consumer",
    };
    let has_tf32 = gpu.capability.major >= 8;
    let arithmetic = match call.dtype {
        ConvDtype::F16 | ConvDtype::BF16 => "half",
        ConvDtype::F32 if call.tf32_allowed && has_tf32 => "tf32",
        ConvDtype::F32 => "fp32",
    };
    let layout = if call.channels_last { "nhwc" } else { "nchw" };
    let direction = match direction {
        Direction::Fwd => "fwd",
        Direction::Dgrad => "dgrad",
        Direction::Wgrad => "wgrad",
    };
    table()?
        .rules
        .iter()
        .find(|r| (&*r.family, &*r.arithmetic, &*r.layout, &*r.direction) == (family, arithmetic, layout, direction))
        .ok_or(InvalidConv::RuleTable)
}

/// What the trees may ask, in the order of the table.
const FEATURES: [&str; 19] = [
    "batch",
    "channels_x_per_group",
    "channels_y_per_group",
    "groups",
    "pixels_x",
    "pixels_y",
    "taps",
    "stride",
    "dilation",
    "gemm_m",
    "x_bytes",
    "w_bytes",
    "y_bytes",
    "misalign_x",
    "misalign_y",
    "macs",
    "out_tiles",
    "weight_tiles",
    "gemm_k",
];

fn features(problem: &Problem, call: &ConvCall) -> Result<[u64; FEATURES.len()], InvalidConv> {
    /// Rows and columns of the matrix-product tile used to count blocks, and channels of one aligned load.
    const TILE: u64 = 128;
    const ALIGNED_CHANNELS: u64 = 8;
    let channels_x = problem.channels_x / problem.groups;
    let channels_y = problem.channels_y / problem.groups;
    let gemm_m = checked(&[problem.batch, problem.pixels_y])?;
    let gemm_k = checked(&[channels_x, problem.taps])?;
    Ok([
        problem.batch,
        channels_x,
        channels_y,
        problem.groups,
        problem.pixels_x,
        problem.pixels_y,
        problem.taps,
        call.stride.iter().copied().max().unwrap_or(1),
        call.dilation.iter().copied().max().unwrap_or(1),
        gemm_m,
        problem.x_bytes,
        problem.w_bytes,
        problem.y_bytes,
        channels_x % ALIGNED_CHANNELS,
        channels_y % ALIGNED_CHANNELS,
        checked(&[gemm_m, problem.channels_y, gemm_k])?,
        checked(&[gemm_m.div_ceil(TILE), problem.channels_y.div_ceil(TILE)])?,
        checked(&[channels_y.div_ceil(TILE), gemm_k.div_ceil(TILE), problem.groups])?,
        gemm_k,
    ])
}

/// Sizes a leaf combines.
struct Terms {
    plain: [u64; 3],
    padded: [u64; 3],
    weight_fp32_bytes: u64,
}

impl Terms {
    fn new(problem: &Problem, channels_last: bool) -> Result<Self, InvalidConv> {
        const FP32_BYTES: u64 = 4;
        /// Tensor-core kernels load 16 bytes of channels at a time.
        const CHANNEL_QUANTUM_BYTES: u64 = 16;
        let quantum = CHANNEL_QUANTUM_BYTES / problem.itemsize;
        let pad = |channels: u64| {
            if problem.groups == 1 { channels.checked_next_multiple_of(quantum) } else { Some(channels) }
                .ok_or(InvalidConv::SizeOverflow)
        };
        let channels_w = problem.channels_x / problem.groups;
        let (pad_x, pad_y, pad_w) = (pad(problem.channels_x)?, pad(problem.channels_y)?, pad(channels_w)?);
        // Without more than one channel and one pixel both layouts are the same bytes: no copy unless it pads.
        let differs = |channels: u64, pixels: u64| channels_last || (channels > 1 && pixels > 1);
        let copied_x = differs(problem.channels_x, problem.pixels_x);
        let copied_w = differs(channels_w, problem.taps);
        let copied_y = differs(problem.channels_y, problem.pixels_y);
        let when = |condition: bool, bytes: u64| if condition { bytes } else { 0 };
        let padded_x = checked(&[problem.batch, pad_x, problem.pixels_x, problem.itemsize])?;
        let padded_w = checked(&[pad_y, pad_w, problem.taps, problem.itemsize])?;
        let padded_y = checked(&[problem.batch, pad_y, problem.pixels_y, problem.itemsize])?;
        Ok(Self {
            plain: [when(copied_x, problem.x_bytes), when(copied_w, problem.w_bytes), when(copied_y, problem.y_bytes)],
            padded: [
                when(copied_x || padded_x != problem.x_bytes, padded_x),
                when(copied_w || padded_w != problem.w_bytes, padded_w),
                when(copied_y || padded_y != problem.y_bytes, padded_y),
            ],
            weight_fp32_bytes: checked(&[problem.channels_y, channels_w, problem.taps, FP32_BYTES])?,
        })
    }

    fn evaluate(&self, (copies, padded, weights, bytes): LeafTerms) -> Result<u64, InvalidConv> {
        let tensors = if padded == 0 { &self.plain } else { &self.padded };
        let kept = tensors.iter().enumerate().filter(|(bit, _)| copies >> bit & 1 == 1);
        let partials = checked(&[self.weight_fp32_bytes, weights])? / FACTOR_UNIT;
        kept.map(|(_, &size)| size).chain([partials, bytes]).try_fold(0, add)
    }
}

fn add(a: u64, b: u64) -> Result<u64, InvalidConv> {
    a.checked_add(b).ok_or(InvalidConv::SizeOverflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_a_tree_whose_children_follow_their_parent() {
        let table = table().unwrap();
        // Six families with half, tf32 and fp32, two older ones without tf32; two layouts; three directions.
        assert_eq!(table.rules.len(), (6 * 3 + 2 * 2) * 2 * 3);
        for rule in &table.rules {
            for (position, node) in rule.nodes.iter().enumerate() {
                if let Node::Split((feature, _, left, right)) = node {
                    assert!(*feature < FEATURES.len() && *left > position && *right > position);
                    assert!(*left < rule.nodes.len() && *right < rule.nodes.len());
                }
            }
        }
    }
}
