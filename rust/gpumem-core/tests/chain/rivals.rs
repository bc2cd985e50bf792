//! Textbook ways to choose checkpoints on a chain of blocks, all under one memory and cost model.

use gpumem_core::chain::{Chain, ChainOption, Region, front};

/// A block of a network that is kept or recomputed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Its input, which a checkpoint that begins here keeps.
    pub(crate) input_bytes: u64,
    /// What its forward saves for its backward, input included.
    pub(crate) saved_bytes: u64,
    /// Most bytes while its forward or backward runs, what it saves included.
    pub(crate) running_bytes: u64,
    /// Cost of running its forward once more.
    pub(crate) cost: u64,
}

impl Block {
    fn kept(&self) -> ChainOption {
        ChainOption::new(self.saved_bytes, self.running_bytes, 0)
    }
}

/// Blocks `from..to` checkpointed as one, with a plan for the recomputation that needs `inner_bytes` and costs
/// `inner_cost` itself.
fn segment(blocks: &[Block], from: usize, to: usize, inner_bytes: u64, inner_cost: u64) -> ChainOption {
    let input = blocks[from].input_bytes;
    let cost = blocks[from..to].iter().map(|block| block.cost).sum::<u64>() + inner_cost;
    ChainOption::new(input, input + inner_bytes, cost).over(to - from)
}

/// Bytes of running blocks one after the other with everything kept.
fn kept_bytes(blocks: &[Block]) -> u64 {
    let mut left = 0;
    let mut peak = 0;
    for block in blocks {
        peak = peak.max(left + block.running_bytes);
        left += block.saved_bytes;
    }
    peak.max(left)
}

/// Every block kept or checkpointed alone.
pub(crate) fn single_blocks(blocks: &[Block], tail_bytes: u64) -> Chain {
    segments(blocks, tail_bytes, 1)
}

/// Every block kept, or segments of up to `longest` blocks checkpointed whole.
pub(crate) fn segments(blocks: &[Block], tail_bytes: u64, longest: usize) -> Chain {
    let regions = (0..blocks.len()).map(|from| {
        let ends = from + 1..=blocks.len().min(from + longest);
        let segments = ends.map(|to| segment(blocks, from, to, kept_bytes(&blocks[from..to]), 0));
        Region { options: [blocks[from].kept()].into_iter().chain(segments).collect() }
    });
    Chain::new(regions.collect(), tail_bytes).unwrap()
}

/// Segments whose recomputation checkpoints again, to any depth: every schedule that the rotor program knows.
pub(crate) fn nested_segments(blocks: &[Block], tail_bytes: u64) -> Chain {
    let count = blocks.len();
    // By first block and length: the segment's options.
    let mut options: Vec<Vec<Vec<ChainOption>>> = vec![vec![Vec::new(); count + 1]; count];
    for length in 1..=count {
        for from in 0..=count - length {
            let inner = chain_of(blocks, from..from + length, 0, &options);
            let plans = front(&inner);
            options[from][length] =
                plans.iter().map(|plan| segment(blocks, from, from + length, plan.peak_bytes, plan.cost)).collect();
        }
    }
    chain_of(blocks, 0..count, tail_bytes, &options)
}

fn chain_of(
    blocks: &[Block],
    range: std::ops::Range<usize>,
    tail_bytes: u64,
    options: &[Vec<Vec<ChainOption>>],
) -> Chain {
    let end = range.end;
    let regions = range.map(|from| {
        let segments = options[from][1..=end - from].iter().flatten().copied();
        Region { options: [blocks[from].kept()].into_iter().chain(segments).collect() }
    });
    Chain::new(regions.collect(), tail_bytes).unwrap()
}

/// The persistent dynamic program of rotor (Beaumont et al., "Optimal checkpointing for heterogeneous chains", 2019):
/// `C(s, t, m)` is the least cost of blocks `s..=t` with `m` memory slots, either keeping block `s` or running on from a
/// checkpoint of its input to some later block, with the rest and then the recomputed part solved in turn. Bytes are
/// rounded up to slots.
pub(crate) fn rotor(blocks: &[Block], tail_bytes: u64, budget_bytes: u64, slots: usize) -> Option<u64> {
    let count = blocks.len();
    let slot_bytes = budget_bytes.div_ceil(slots.max(1) as u64).max(1);
    let slots = usize::try_from(budget_bytes / slot_bytes).unwrap();
    let rounded = |bytes: u64| usize::try_from(bytes.div_ceil(slot_bytes)).unwrap();
    let input: Vec<usize> = blocks.iter().map(|block| rounded(block.input_bytes)).collect();
    let saved: Vec<usize> = blocks.iter().map(|block| rounded(block.saved_bytes)).collect();
    let running: Vec<usize> = blocks.iter().map(|block| rounded(block.running_bytes)).collect();
    // `rest[s][t][m]`: blocks s..t (t excluded) with nothing behind; `last[s][m]`: with the tail behind.
    let never = vec![None; slots + 1];
    let mut rest: Vec<Vec<Vec<Option<u64>>>> = vec![vec![never.clone(); count + 1]; count + 1];
    let mut last: Vec<Vec<Option<u64>>> = vec![never; count + 1];
    for (start, row) in rest.iter_mut().enumerate() {
        row[start] = vec![Some(0); slots + 1];
    }
    for cost in last[count].iter_mut().skip(rounded(tail_bytes)) {
        *cost = Some(0);
    }
    // A recomputed segment begins again at its own first block; that it is checkpointed whole once more never helps.
    let mut opened: Vec<Vec<Vec<Option<u64>>>> = rest.clone();
    let run: Vec<Vec<u64>> = (0..count)
        .map(|from| (from..=count).map(|to| blocks[from..to].iter().map(|block| block.cost).sum()).collect())
        .collect();
    for length in 1..=count {
        for start in 0..=count - length {
            let end = start + length;
            for room in 0..=slots {
                let kept = (running[start] <= room && saved[start] <= room)
                    .then(|| rest[start + 1][end][room - saved[start]])
                    .flatten();
                let split = (start + 1..end).filter_map(|middle| {
                    let left = room.checked_sub(input[start])?;
                    Some(run[start][middle - start] + rest[middle][end][left]? + opened[start][middle][left]?)
                });
                opened[start][end][room] = split.chain(kept).min();
            }
            for room in 0..=slots {
                let whole = room.checked_sub(input[start]).and_then(|left| opened[start][end][left]);
                let whole = whole.map(|inner| run[start][length] + inner);
                rest[start][end][room] = opened[start][end][room].into_iter().chain(whole).min();
            }
        }
    }
    for start in (0..count).rev() {
        for room in 0..=slots {
            let kept = (running[start] <= room && saved[start] <= room)
                .then(|| last[start + 1][room - saved[start]])
                .flatten();
            let split = (start + 1..=count).filter_map(|middle| {
                let left = room.checked_sub(input[start])?;
                Some(run[start][middle - start] + last[middle][left]? + opened[start][middle][left]?)
            });
            last[start][room] = split.chain(kept).min();
        }
    }
    last[0][slots]
}

/// Cost and peak bytes of the blocks for which `checkpointed` says so, each alone.
fn alone(blocks: &[Block], tail_bytes: u64, checkpointed: impl Fn(usize) -> bool) -> (u64, u64) {
    let (mut left, mut peak, mut cost) = (0, 0, 0);
    for (index, block) in blocks.iter().enumerate() {
        if checkpointed(index) {
            peak = peak.max(left + block.input_bytes + block.running_bytes.max(block.saved_bytes));
            left += block.input_bytes;
            cost += block.cost;
        } else {
            peak = peak.max(left + block.running_bytes);
            left += block.saved_bytes;
        }
    }
    (cost, peak.max(left + tail_bytes))
}

/// The cheapest "every k-th block" within the budget.
pub(crate) fn every_kth(blocks: &[Block], tail_bytes: u64, budget_bytes: u64) -> Option<u64> {
    let plans = (1..=blocks.len() + 1).map(|k| alone(blocks, tail_bytes, |index| index % k == 0));
    let none = alone(blocks, tail_bytes, |_| false);
    plans.chain([none]).filter(|plan| plan.1 <= budget_bytes).map(|plan| plan.0).min()
}

/// The cheapest `checkpoint_sequential` within the budget: equal segments, the last of which is kept.
pub(crate) fn equal_segments(blocks: &[Block], tail_bytes: u64, budget_bytes: u64) -> Option<u64> {
    let count = blocks.len();
    let plans = (1..=count).filter_map(|parts| {
        let size = count / parts;
        let (mut left, mut peak, mut cost) = (0, 0, 0);
        for part in 0..parts - 1 {
            let option =
                segment(blocks, part * size, (part + 1) * size, kept_bytes(&blocks[part * size..(part + 1) * size]), 0);
            peak = peak.max(left + option.extra_bytes);
            left += option.left_bytes;
            cost += option.cost;
        }
        let last = &blocks[(parts - 1) * size..];
        peak = peak.max(left + kept_bytes(last));
        left += last.iter().map(|block| block.saved_bytes).sum::<u64>();
        (peak.max(left + tail_bytes) <= budget_bytes).then_some(cost)
    });
    plans.min()
}

/// Checkpoints the block that saves most bytes per cost until the plan fits.
pub(crate) fn greedy(blocks: &[Block], tail_bytes: u64, budget_bytes: u64) -> Option<u64> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    let value = |index: &usize| {
        let block = &blocks[*index];
        u128::from(block.saved_bytes.saturating_sub(block.input_bytes)) * 1_000_000 / u128::from(block.cost.max(1))
    };
    order.sort_by_key(|index| (std::cmp::Reverse(value(index)), *index));
    (0..=blocks.len()).find_map(|count| {
        let (cost, peak) = alone(blocks, tail_bytes, |index| order[..count].contains(&index));
        (peak <= budget_bytes).then_some(cost)
    })
}
