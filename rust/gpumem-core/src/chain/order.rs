//! All plans within a budget, the cheapest first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::solve::cheapest;
use super::table::{Table, Trim};
use super::{Chain, Choice, Solution};

/// Costs are enumerated up to this part of the dearest plan's above the least first, then up to twice as much above, ...
const FIRST_PART: u64 = 4096;

/// Which plans are enumerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permutations {
    /// Every plan, of dominated options too.
    Every,
    /// Of plans that differ only in the order of options within a run of identical regions, the one with the least
    /// peak; dominated options are left out.
    Canonical,
}

/// A plan's beginning.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Partial {
    /// Least cost and, at that cost, least peak of the plans that begin so.
    promise: (u64, u64),
    /// Of equal promises the latest is followed: it is the longest.
    age: Reverse<u64>,
    region: usize,
    least_rank: usize,
    left_bytes: u64,
    peak_bytes: u64,
    cost: u64,
    /// Index of its last choice in the arena; `None` at the beginning of the chain.
    last: Option<usize>,
}

/// Plans in nondecreasing cost. See [`in_cost_order`].
pub struct InCostOrder<'a> {
    chain: &'a Chain,
    budget_bytes: u64,
    permutations: Permutations,
    /// Fronts of the plans that cost at most `ceiling`.
    table: Table,
    /// Plans up to this cost are enumerated now; `None` once that is all of them.
    ceiling: Option<u64>,
    /// How much higher the next ceiling is.
    raise: u64,
    /// Plans up to this cost have been enumerated.
    done: Option<u64>,
    open: BinaryHeap<Reverse<Partial>>,
    /// Choices with what precedes them.
    arena: Vec<(Choice, Option<usize>)>,
    age: u64,
}

/// All plans whose peak is at most `budget_bytes`, in nondecreasing cost; of equal cost the least peak first (unless a
/// front outgrows its limit). The first is [`cheapest`](super::cheapest).
///
/// Best first: the fronts give, for any beginning of a plan, exactly what its best completion costs, so no beginning is
/// followed in vain. The fronts hold plans up to a cost only, which is raised when those are used up: the first plans
/// come as fast as the cheapest. A caller who rejects plans for needing some bytes more than they seem to does better to
/// ask again with a smaller budget than to read on.
#[must_use]
pub fn in_cost_order(chain: &Chain, budget_bytes: u64, permutations: Permutations) -> InCostOrder<'_> {
    let mut plans = InCostOrder {
        chain,
        budget_bytes,
        permutations,
        table: Table::empty(chain),
        ceiling: None,
        raise: chain.dearest / FIRST_PART + 1,
        done: None,
        open: BinaryHeap::new(),
        arena: Vec::new(),
        age: 0,
    };
    if let Some(best) = cheapest(chain, budget_bytes) {
        plans.begin(best.cost);
    }
    plans
}

impl InCostOrder<'_> {
    /// Starts over with the plans that cost little more than `done`.
    fn begin(&mut self, done: u64) {
        let budget_bytes = self.budget_bytes;
        let ceiling = done.saturating_add(self.raise);
        self.raise = self.raise.saturating_mul(2);
        let mut beam = Trim::Beam { budget_bytes, width: self.chain.front_limit, upper: ceiling, lost: u64::MAX };
        self.ceiling = (ceiling < self.chain.dearest).then_some(ceiling);
        self.table = Table::new(self.chain, &mut beam);
        if matches!(beam, Trim::Beam { lost, .. } if lost <= ceiling) {
            let mut even = Trim::Even { budget_bytes, limit: self.chain.front_limit, relaxed: true, slack: 0 };
            self.ceiling = None;
            self.table = Table::new(self.chain, &mut even);
        }
        self.arena.clear();
        let (promise, age, last) = ((0, 0), Reverse(0), None);
        self.push(Partial { promise, age, region: 0, least_rank: 0, left_bytes: 0, peak_bytes: 0, cost: 0, last });
    }

    /// Keeps a beginning if something completes it at the costs enumerated now.
    fn push(&mut self, mut partial: Partial) {
        let Some(room_bytes) = self.budget_bytes.checked_sub(partial.left_bytes) else { return };
        let Some(rest) = self.table.front(partial.region, partial.least_rank).within(room_bytes) else { return };
        let peak_bytes = partial.peak_bytes.max(partial.left_bytes + rest.peak_bytes);
        partial.promise = (partial.cost + rest.cost, peak_bytes);
        if self.ceiling.is_some_and(|ceiling| partial.promise.0 > ceiling) {
            return;
        }
        self.age += 1;
        partial.age = Reverse(self.age);
        self.open.push(Reverse(partial));
    }

    /// `from` with one more choice, if that fits.
    fn step(&mut self, from: &Partial, option: usize, rank: usize) {
        let position = &self.chain.layout.positions[from.region];
        let step = self.chain.regions[from.region].options[option];
        let peak_bytes = from.left_bytes.checked_add(step.extra_bytes).filter(|&bytes| bytes <= self.budget_bytes);
        let left_bytes = from.left_bytes.checked_add(step.left_bytes);
        let (Some(peak_bytes), Some(left_bytes)) = (peak_bytes, left_bytes) else { return };
        let region = from.region + step.span;
        let last = Some(self.arena.len());
        let opened = self.open.len();
        self.push(Partial {
            promise: from.promise,
            age: Reverse(0),
            region,
            least_rank: position.rank_after(rank, region),
            left_bytes,
            peak_bytes: from.peak_bytes.max(peak_bytes),
            cost: from.cost + step.cost,
            last,
        });
        if self.open.len() > opened {
            self.arena.push((Choice { region: from.region, option }, from.last));
        }
    }

    /// Keeps every way to go on. The latest is followed first, so the lowest rank comes last.
    fn expand(&mut self, partial: &Partial) {
        let chain = self.chain;
        match self.permutations {
            Permutations::Canonical => {
                let moves = &chain.layout.positions[partial.region].moves;
                for step in moves.iter().filter(|step| step.rank >= partial.least_rank).rev() {
                    self.step(partial, step.index, step.rank);
                }
            }
            Permutations::Every => {
                for option in (0..chain.regions[partial.region].options.len()).rev() {
                    self.step(partial, option, 0);
                }
            }
        }
    }

    fn solution(&self, partial: &Partial) -> Option<Solution> {
        let mut choices = Vec::new();
        let mut last = partial.last;
        while let Some(index) = last {
            let (choice, before) = self.arena[index];
            choices.push(choice);
            last = before;
        }
        choices.reverse();
        self.chain.solution(choices, u64::MAX)
    }
}

impl Iterator for InCostOrder<'_> {
    type Item = Solution;

    fn next(&mut self) -> Option<Solution> {
        loop {
            while let Some(Reverse(partial)) = self.open.pop() {
                if partial.region < self.chain.regions.len() {
                    self.expand(&partial);
                } else if self.done.is_none_or(|done| partial.cost > done) {
                    return self.solution(&partial);
                }
            }
            let ceiling = self.ceiling.take()?;
            self.done = Some(ceiling);
            self.begin(ceiling);
        }
    }
}
