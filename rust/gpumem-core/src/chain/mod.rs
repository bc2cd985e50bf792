//! The cheapest way through a chain of regions within a budget: the search behind a checkpoint plan.
//!
//! A [`Chain`] knows bytes and costs, not layers. Its regions run in forward order; each is run in one of several ways
//! (keep everything, checkpoint the whole, checkpoint parts). With `P_j` the sum of what the options chosen before
//! region `j` leave behind, the peak of a plan is
//! `max(max_j(P_j + extra_j), P_n + tail_bytes)`, and its cost is the sum of the options' costs.
//!
//! Read from the end, the peak is a recurrence of one number: what remains from region `j` on needs
//! `Q_j = max(extra_j, left_j + Q_{j+1})` bytes beyond `P_j`, with `Q_n = tail_bytes`, and less `Q_{j+1}` is never
//! worse. So the Pareto front of `(Q_j, cost)` loses nothing, one backward pass answers every budget at once (`Q_0` is
//! the peak), and the same fronts are an exact cost-to-go for enumerating plans in cost order.
//!
//! Identical regions in a row (equal up to a constant step of their extra bytes, as gradients of the regions behind
//! make it) are a *run*: exchanging neighbours shows that one order of the options is best for any number of each, so
//! only that order is searched.

mod bound;
mod front;
mod layout;
mod order;
mod solve;
mod table;

use thiserror::Error;

pub use order::{InCostOrder, Permutations, in_cost_order};
pub use solve::{FRONT_LIMIT, ParetoFront, cheapest, front, pareto, smallest_peak};

use bound::PrefixBounds;
use layout::Layout;

/// One way to run a region, or several regions in a row as one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainOption {
    /// Bytes that stay behind after its forward until its backward.
    pub left_bytes: u64,
    /// Most bytes while its forward or backward runs, all that is always there at that moment included (parameters,
    /// gradients so far), but not what earlier regions left behind.
    pub extra_bytes: u64,
    /// Cost of recomputation, in any unit.
    pub cost: u64,
    /// Regions it covers, from its own on: 1, or more for a segment checkpointed as one.
    pub span: usize,
}

impl ChainOption {
    /// An option of one region.
    #[must_use]
    pub const fn new(left_bytes: u64, extra_bytes: u64, cost: u64) -> Self {
        Self { left_bytes, extra_bytes, cost, span: 1 }
    }

    /// The same bytes and cost for `span` regions in a row.
    #[must_use]
    pub const fn over(self, span: usize) -> Self {
        Self { span, ..self }
    }
}

/// A region and the ways to run it, or to run a segment that begins with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Region {
    /// The options, in any order.
    pub options: Vec<ChainOption>,
}

/// What makes a chain unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChainError {
    /// A region cannot be run.
    #[error("region {region} has no option")]
    NoOption {
        /// Index of the region.
        region: usize,
    },
    /// An option covers no region, or regions beyond the last.
    #[error("option {option} of region {region} covers {span} regions, {left} are left")]
    Span {
        /// Index of the region.
        region: usize,
        /// Index of the option.
        option: usize,
        /// Regions that the option covers.
        span: usize,
        /// Regions from this one to the end.
        left: usize,
    },
    /// Costs do not add up in 64 bits.
    #[error("the costs of the dearest plan do not fit 64 bits")]
    CostOverflow,
}

/// A chain of regions, checked and prepared for the search.
#[derive(Debug, Clone)]
pub struct Chain {
    regions: Vec<Region>,
    tail_bytes: u64,
    /// No plan costs more.
    dearest: u64,
    front_limit: usize,
    layout: Layout,
    bounds: PrefixBounds,
}

impl Chain {
    /// A chain of `regions` in forward order; `tail_bytes` are the most bytes after the last region's forward and before
    /// the first backward, beyond what the regions left behind.
    ///
    /// # Errors
    /// [`ChainError`] for a region without options, an option that covers none or too many regions, and costs whose
    /// sum overflows.
    pub fn new(regions: Vec<Region>, tail_bytes: u64) -> Result<Self, ChainError> {
        let mut dearest: u64 = 0;
        for (region, content) in regions.iter().enumerate() {
            let left = regions.len() - region;
            for (option, &ChainOption { span, .. }) in content.options.iter().enumerate() {
                if span == 0 || span > left {
                    return Err(ChainError::Span { region, option, span, left });
                }
            }
            let most = content.options.iter().map(|option| option.cost).max();
            let most = most.ok_or(ChainError::NoOption { region })?;
            dearest = dearest.checked_add(most).ok_or(ChainError::CostOverflow)?;
        }
        let layout = Layout::new(&regions);
        let bounds = PrefixBounds::new(&layout);
        Ok(Self { regions, tail_bytes, dearest, front_limit: FRONT_LIMIT, layout, bounds })
    }

    /// The same chain with at most about `labels` (at least 1) labels in a front instead of [`FRONT_LIMIT`]: fewer are
    /// faster and take less memory, and beyond them plans come with a [`Solution::gap`].
    #[must_use]
    pub fn with_front_limit(self, labels: usize) -> Self {
        Self { front_limit: labels.max(1), ..self }
    }

    /// The regions in forward order.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes between the last forward and the first backward, beyond what regions leave behind.
    #[must_use]
    pub const fn tail_bytes(&self) -> u64 {
        self.tail_bytes
    }

    /// Peak bytes and cost of a plan; `None` when the choices do not cover the chain one after the other, or the peak
    /// does not fit 64 bits.
    #[must_use]
    pub fn evaluate(&self, choices: &[Choice]) -> Option<(u64, u64)> {
        let (mut region, mut left_bytes, mut peak_bytes, mut cost) = (0, 0_u64, 0_u64, 0_u64);
        for choice in choices {
            let option = self.regions.get(choice.region)?.options.get(choice.option)?;
            if choice.region != region {
                return None;
            }
            peak_bytes = peak_bytes.max(left_bytes.checked_add(option.extra_bytes)?);
            left_bytes = left_bytes.checked_add(option.left_bytes)?;
            cost = cost.checked_add(option.cost)?;
            region += option.span;
        }
        peak_bytes = peak_bytes.max(left_bytes.checked_add(self.tail_bytes)?);
        (region == self.regions.len()).then_some((peak_bytes, cost))
    }

    fn solution(&self, choices: Vec<Choice>, least_cost: u64) -> Option<Solution> {
        let (peak_bytes, cost) = self.evaluate(&choices)?;
        Some(Solution { choices, peak_bytes, cost, cost_lower_bound: least_cost.min(cost) })
    }
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// Index of the region at which the option begins.
    pub region: usize,
    /// Index of the option in [`Region::options`].
    pub option: usize,
}

/// A plan, with what it needs and costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    /// The options in forward order; a region inside a longer option has no choice of its own.
    pub choices: Vec<Choice>,
    /// Peak of the plan in bytes.
    pub peak_bytes: u64,
    /// Its cost, in the unit of the options.
    pub cost: u64,
    /// No plan with this peak or less costs less than this. Equal to [`Self::cost`] unless a front outgrew its
    /// limit; for a plan from [`in_cost_order`], its own cost.
    pub cost_lower_bound: u64,
}

impl Solution {
    /// How much cheaper the best plan can be at most, in the unit of the options; 0 for a proven optimum.
    #[must_use]
    pub const fn gap(&self) -> u64 {
        self.cost - self.cost_lower_bound
    }
}
