//! The backward pass: a front for every region, and the plan that a front promises.

use super::front::{Front, Label};
use super::{Chain, Choice};

/// How fronts are kept small.
pub(super) enum Trim {
    /// Labels that may be part of a plan of at most `upper` within `budget_bytes`, the most promising `width` of them.
    Beam {
        budget_bytes: u64,
        width: usize,
        upper: u64,
        /// The least cost that a plan through a dropped label can have.
        lost: u64,
    },
    /// Labels that fit `budget_bytes`; beyond `limit` they are spaced evenly in cost.
    Even {
        budget_bytes: u64,
        limit: usize,
        /// Whether labels are bounds instead of plans then.
        relaxed: bool,
        /// By how much the cost at a budget may exceed the least.
        slack: u64,
    },
}

impl Trim {
    const fn budget_bytes(&self) -> u64 {
        match *self {
            Self::Beam { budget_bytes, .. } | Self::Even { budget_bytes, .. } => budget_bytes,
        }
    }

    fn apply(&mut self, chain: &Chain, region: usize, front: &mut Front) {
        match self {
            Self::Even { limit, relaxed, slack, .. } => {
                *slack = slack.saturating_add(front.thin(*limit, *relaxed));
            }
            Self::Beam { budget_bytes, width, upper, lost } => {
                let through = |label: &Label| {
                    let before = chain.bounds.least_cost(region, *budget_bytes - label.peak_bytes)?;
                    before.checked_add(label.cost).filter(|total| total <= upper)
                };
                let mut totals: Vec<(u64, usize)> = Vec::with_capacity(front.labels.len());
                let mut kept = 0;
                for index in 0..front.labels.len() {
                    let label = front.labels[index];
                    if let Some(total) = through(&label) {
                        totals.push((total, kept));
                        front.labels[kept] = label;
                        kept += 1;
                    }
                }
                front.labels.truncate(kept);
                if kept > *width {
                    let mut by_total = totals.clone();
                    let (_, &mut last, dropped) = by_total.select_nth_unstable(*width - 1);
                    *lost = dropped.iter().fold(*lost, |least, &(total, _)| least.min(total));
                    let mut totals = totals.into_iter();
                    // The label of the fewest bytes stays: what fits at all is found at any width.
                    front.labels.retain(|_| totals.next().is_some_and(|at| at <= last || at.1 == 0));
                }
            }
        }
    }
}

/// Fronts of a chain.
pub(super) struct Table {
    /// By region, the end included, and by the least rank allowed; inside a run only its first region has one front.
    fronts: Vec<Vec<Front>>,
}

impl Table {
    /// A table of nothing.
    pub(super) fn empty(chain: &Chain) -> Self {
        Self { fronts: vec![Vec::new(); chain.regions.len() + 1] }
    }

    pub(super) fn new(chain: &Chain, trim: &mut Trim) -> Self {
        let positions = &chain.layout.positions;
        let mut fronts: Vec<Vec<Front>> = vec![Vec::new(); positions.len() + 1];
        fronts[positions.len()] = vec![Front::end(chain.tail_bytes)];
        for (region, position) in positions.iter().enumerate().rev() {
            let least_left_bytes = chain.bounds.least_left_bytes(region);
            let cap_bytes = least_left_bytes.and_then(|left_bytes| trim.budget_bytes().checked_sub(left_bytes));
            let mut here = vec![Front::default(); position.ranks];
            let mut best = Front::default();
            let mut moves = position.moves.iter().rev().peekable();
            for rank in (0..position.ranks).rev() {
                if let (Some(step), Some(cap_bytes)) = (moves.next_if(|step| step.rank == rank), cap_bytes) {
                    let target = region + step.option.span;
                    let rest = &fronts[target][position.rank_after(rank, target)];
                    best = best.merged(rest.after(step, cap_bytes));
                    trim.apply(chain, region, &mut best);
                }
                if rank > 0 && region > position.run_start {
                    here[rank].clone_from(&best);
                }
            }
            here[0] = best;
            fronts[region] = here;
        }
        Self { fronts }
    }

    /// The front from `region` on with no rank below `rank` in the rest of its run.
    pub(super) fn front(&self, region: usize, rank: usize) -> &Front {
        &self.fronts[region][rank]
    }

    /// The plan of `goal`, a label of the first front: of equal ones, the one with the lowest ranks first.
    pub(super) fn plan(&self, chain: &Chain, goal: Label) -> Option<Vec<Choice>> {
        let positions = &chain.layout.positions;
        let mut choices = Vec::with_capacity(positions.len());
        let (mut region, mut least_rank, mut left_bytes, mut cost) = (0, 0, 0_u64, goal.cost);
        while let Some(position) = positions.get(region) {
            let room_bytes = goal.peak_bytes.checked_sub(left_bytes)?;
            let (step, rest) = position.moves.iter().filter(|step| step.rank >= least_rank).find_map(|step| {
                let option = step.option;
                let rest_bytes = room_bytes.checked_sub(option.left_bytes)?;
                let rest_cost = cost.checked_sub(option.cost)?;
                let target = region + option.span;
                let rest = self.front(target, position.rank_after(step.rank, target)).within(rest_bytes)?;
                (option.extra_bytes <= room_bytes && rest.cost <= rest_cost).then_some((step, rest))
            })?;
            choices.push(Choice { region, option: step.index });
            left_bytes = left_bytes.checked_add(step.option.left_bytes)?;
            cost = rest.cost;
            region += step.option.span;
            least_rank = position.rank_after(step.rank, region);
        }
        Some(choices)
    }
}
