//! Device memory the CUDA context takes: outside `PyTorch`'s counters, inside the card's budget.
//!
//! No formula is known. The figures are single reports of other people's cards (facts/workspaces.md section 1), so each
//! comes with wide ends. A measured value given by the user always beats them.

use super::{Gpu, GpuFamily, Range, Stack};
use crate::units::MIB;

/// Context bytes with the text that says where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextBytes {
    /// Bytes of one training process's context, loaded kernels and library handles.
    pub bytes: Range,
    /// Where the figures come from and how far to trust them.
    pub source: &'static str,
}

/// Kernels a training step loads lazily, libraries' handles: L40S 514 MiB whole process (P sentence-transformers#3214)
/// against 426 MiB idle on the sibling RTX 6000 Ada (P unsloth-zoo#1053), rounded up.
const TRAINING_KERNELS_MIB: u64 = 100;

/// What a training process on `gpu` with `stack` takes outside `PyTorch`'s counters.
///
/// `low` is an idle context, `likely` adds the kernels of a training step, `high` leaves room for the spread between
/// reports.
#[must_use]
pub fn context_bytes(gpu: &Gpu, stack: &Stack) -> ContextBytes {
    if !stack.lazy_loading() {
        return eager_context(gpu.family());
    }
    let (idle_mib, spread_mib, source) = match gpu.family() {
        GpuFamily::PreVolta | GpuFamily::Volta | GpuFamily::Turing => {
            // P pytorch#86509: 287,047,680 B incl. a 2 MiB segment, lazy, torch 1.13, GPU not named; 319 MiB for a
            // plain CUDA program on a Titan V (P pytorch#28394).
            (272, 150, "none reported for this family; one unnamed GPU with torch 1.13 (pytorch#86509)")
        }
        GpuFamily::AmpereDatacenter => (414, 100, "single report: A100-SXM4-40GB, cu128 (keys_values#92)"),
        GpuFamily::AmpereConsumer => (414, 150, "none reported for this family; an A100's (keys_values#92)"),
        GpuFamily::Ada => (426, 100, "single reports: RTX 6000 Ada idle (unsloth-zoo#1053), L40S training (#3214)"),
        GpuFamily::Hopper => (512, 100, "single report: H200, torch 2.8 (sglang#11716), by subtraction"),
        GpuFamily::BlackwellDatacenter => {
            (615, 150, "two reports to one decimal: B200 0.7, B300 0.6 GiB (sglang#25225)")
        }
        GpuFamily::BlackwellConsumer => (560, 250, "no report: between Hopper and B200 (guess)"),
    };
    let likely_mib = idle_mib + TRAINING_KERNELS_MIB;
    mib(idle_mib, likely_mib, likely_mib + spread_mib, source)
}

/// Before lazy loading, every kernel of every loaded library is on the card from the start. The segment of the tensor
/// that a report allocated is taken off; `low` is the smallest report, `likely` the one nearest in card and version (the
/// middle one where there are several), `high` the largest.
fn eager_context(family: GpuFamily) -> ContextBytes {
    match family {
        GpuFamily::Volta => {
            // V100: 1,343 MiB after one tiny tensor, torch about 1.10 (transformers documentation, "Model training
            // anatomy"); Titan V: 1,007 MiB with torch 1.3 (P pytorch#28394). One report of the newer libraries, so 100
            // MiB above it.
            mib(
                1005,
                1341,
                1441,
                "reports: V100 with torch 1.10 (transformers' documentation), Titan V with 1.3 (#28394)",
            )
        }
        GpuFamily::AmpereConsumer => {
            // RTX 3090: 1,687 MiB after `torch.Tensor(1).cuda()` with 1.8.2+cu111 (P pytorch#55277); 1,644 MiB with one
            // tensor in a 158 MiB segment, 1.7.1+cu110 (P pytorch#49877); 1,001 MiB used on the whole card
            // after one small tensor, version not given (P pytorch#54564).
            mib(999, 1486, 1685, "reports: RTX 3090 with torch 1.7 and 1.8 (#49877, #55277, #54564)")
        }
        // 843 MiB with torch 1.12.1+cu113 on an unnamed GPU (P pytorch#86493); 666,632,192 bytes eager with 1.13
        // (P pytorch#86509); 877 MiB on an RTX 2080 Ti with 1.6 (P pytorch#49877); 1,106 MB with 1.11 (P pytorch#74536).
        _ => mib(636, 1000, 1685, "reports of other and unnamed GPUs (#86493, #86509, #49877, #74536)"),
    }
}

const fn mib(low: u64, likely: u64, high: u64, source: &'static str) -> ContextBytes {
    ContextBytes { bytes: Range { low_bytes: low * MIB, likely_bytes: likely * MIB, high_bytes: high * MIB }, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(gpu: &str, stack: &str) -> ContextBytes {
        context_bytes(Gpu::by_name(gpu).unwrap(), &Stack::parse(stack).unwrap())
    }

    #[test]
    fn reports_lie_within_the_ends() {
        for (gpu, stack, reported_mib) in [
            ("a100-40gb", "2.8+cu128", 414),
            ("rtx6000-ada", "2.10+cu130", 426),
            ("l40s", "2.5", 514),
            ("h200", "2.8", 512),
            ("b200", "2.11+cu130", 716),
            ("titan-rtx", "1.12+cu113", 843),
            ("titan-rtx", "1.3", 1007),
            ("v100-16gb", "1.10+cu113", 1341),
            ("rtx3090", "1.7.1+cu110", 1486),
            ("rtx3090", "1.8.2+cu111", 1685),
            ("rtx2080ti", "1.6+cu101", 877),
        ] {
            let range = context(gpu, stack).bytes;
            assert!(range.contains(reported_mib * MIB), "{gpu} {stack}: {range:?}");
        }
    }

    #[test]
    fn ends_are_ordered_for_every_card_and_loading_mode() {
        for gpu in Gpu::table().unwrap() {
            for stack in ["1.12", "2.14"] {
                let range = context(&gpu.name, stack).bytes;
                assert!(range.low_bytes <= range.likely_bytes && range.likely_bytes < range.high_bytes, "{}", gpu.name);
            }
        }
    }
}
