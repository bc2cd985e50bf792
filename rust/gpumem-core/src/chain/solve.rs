//! One plan, or the best plan for every budget.

use super::table::{Table, Trim};
use super::{Chain, Solution};

/// Labels that a front may have unless [`Chain::with_front_limit`] says otherwise. Beyond, the search bounds: its plans carry a lower cost bound below their cost.
///
/// 16,384 labels of 16 bytes for each of 100 regions are 26 MB, and the error of even spacing is below one percent of
/// the dearest plan's cost.
pub const FRONT_LIMIT: usize = 1 << 14;

/// Labels that a front may have at first, and by how much that grows until no plan is lost that could be as good.
const FIRST_WIDTH: usize = 16;
const WIDTH_GROWTH: usize = 16;

/// The plan of least cost whose peak is at most `budget_bytes`, of equal ones that of the least peak; `None` when no
/// plan fits.
#[must_use]
pub fn cheapest(chain: &Chain, budget_bytes: u64) -> Option<Solution> {
    let mut best: Option<Solution> = None;
    let mut width = FIRST_WIDTH.min(chain.front_limit);
    loop {
        let upper = best.as_ref().map_or(u64::MAX, |solution| solution.cost);
        let mut trim = Trim::Beam { budget_bytes, width, upper, lost: u64::MAX };
        let table = Table::new(chain, &mut trim);
        let found = table.front(0, 0).within(budget_bytes).and_then(|goal| table.plan(chain, goal));
        let found = found.and_then(|choices| chain.solution(choices, u64::MAX));
        let Trim::Beam { lost, .. } = trim else { break };
        // Of equal ones the later, whose table lost less, so that the choice does not depend on the widths.
        best = found.into_iter().chain(best).min_by_key(|solution| (solution.cost, solution.peak_bytes));
        let solution = best.as_mut()?;
        solution.cost_lower_bound = solution.cost.min(lost);
        if lost > solution.cost || width >= chain.front_limit {
            break;
        }
        width = width.saturating_mul(WIDTH_GROWTH).min(chain.front_limit);
    }
    best
}

/// The plan of least peak, of equal ones the cheapest: its peak is the smallest budget for which anything fits. `None`
/// only when every plan's peak exceeds 64 bits.
#[must_use]
pub fn smallest_peak(chain: &Chain) -> Option<Solution> {
    let positions = &chain.layout.positions;
    let mut least: Vec<Option<u64>> = vec![None; positions.len() + 1];
    least[positions.len()] = Some(chain.tail_bytes);
    for (region, position) in positions.iter().enumerate().rev() {
        let needs = position.moves.iter().filter_map(|step| {
            let rest_bytes = step.option.left_bytes.checked_add(least[region + step.option.span]?)?;
            Some(rest_bytes.max(step.option.extra_bytes))
        });
        least[region] = needs.min();
    }
    cheapest(chain, least[0]?)
}

/// The best plan for every budget: peaks rise, costs fall, and for any budget the last plan that fits is the cheapest.
///
/// Peaks and costs are there at once; a plan's choices are worked out when it is asked for.
#[must_use]
pub fn pareto(chain: &Chain) -> ParetoFront<'_> {
    let mut trim = Trim::Even { budget_bytes: u64::MAX, limit: chain.front_limit, relaxed: false, slack: 0 };
    let table = Table::new(chain, &mut trim);
    let slack = if let Trim::Even { slack, .. } = trim { slack } else { 0 };
    ParetoFront { chain, table, slack }
}

/// Every plan of [`pareto`].
#[must_use]
pub fn front(chain: &Chain) -> Vec<Solution> {
    let plans = pareto(chain);
    (0..plans.len()).filter_map(|index| plans.solution(index)).collect()
}

/// The Pareto front of peak and cost. See [`pareto`].
pub struct ParetoFront<'a> {
    chain: &'a Chain,
    table: Table,
    /// By how much a plan's cost may exceed the least at its peak.
    slack: u64,
}

impl ParetoFront<'_> {
    /// Number of plans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.front(0, 0).labels.len()
    }

    /// Whether no plan's peak fits 64 bits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Peak bytes and cost of every plan.
    #[must_use]
    pub fn points(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.table.front(0, 0).labels.iter().map(|label| (label.peak_bytes, label.cost))
    }

    /// Index of the cheapest plan whose peak is at most `budget_bytes`.
    #[must_use]
    pub fn within(&self, budget_bytes: u64) -> Option<usize> {
        self.table.front(0, 0).labels.partition_point(|label| label.peak_bytes <= budget_bytes).checked_sub(1)
    }

    /// The plan at `index`.
    #[must_use]
    pub fn solution(&self, index: usize) -> Option<Solution> {
        let &goal = self.table.front(0, 0).labels.get(index)?;
        self.chain.solution(self.table.plan(self.chain, goal)?, goal.cost.saturating_sub(self.slack))
    }
}
