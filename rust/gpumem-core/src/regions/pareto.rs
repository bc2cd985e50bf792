//! The whole front of bytes against recomputation, every plan of it played.

use crate::chain::pareto;
use crate::error::Error;
use crate::regions::choose::Chooser;
use crate::regions::prepared::Prepared;
use crate::regions::space::RegionSpace;
use crate::regions::trial::Trials;
use crate::setting::Setting;
use crate::target::{End, Throughput};

/// Plans of the chain's front that are played; of more, so many at even distances.
const MOST_PLAYED: usize = 512;

/// A plan of the front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontPlan {
    /// Variant of each region.
    pub choice: Vec<usize>,
    /// Reserved bytes within which it was seen to get through.
    pub reserved_bytes: u64,
    /// Least time of the recomputation, in picoseconds.
    pub recompute_ps: u64,
}

impl RegionSpace {
    /// Plans of which none needs fewer bytes and recomputes no more than another, from the fewest bytes on, and the least
    /// time of the step without recomputation. At most about `points` of them, the first and the last included.
    ///
    /// The chain's front is played without a limit. Then [`RegionSpace::cheapest_plan`] is asked at the bytes of each plan
    /// that remains, so that the front is nowhere above what a search for that budget finds.
    ///
    /// # Errors
    /// As [`RegionSpace::cheapest_plan`].
    pub fn pareto_front(&self, batch: u64, setting: &Setting, points: usize) -> Result<(Vec<FrontPlan>, u64), Error> {
        let unlimited = Setting { budget_bytes: None, gpu_asked: None, ..setting.clone() };
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let prepared = Prepared::new(self, batch, &self.target(batch, setting)?)?;
        let mut trials = Trials::new(&prepared, &unlimited)?;
        let chain = self.chain(&trials, &costs)?;
        let front = pareto(&chain.chain);
        let mut plans: Vec<FrontPlan> = Vec::new();
        for index in evenly(front.len(), MOST_PLAYED) {
            let Some(solution) = front.solution(index) else { continue };
            let choice = chain.choice(&solution);
            let reserved_bytes = trials.sufficient_bytes(&choice);
            plans.push(FrontPlan { choice, reserved_bytes, recompute_ps: solution.cost });
        }
        let kept = undominated(plans);
        let mut chosen: Vec<FrontPlan> = evenly(kept.len(), points).map(|index| kept[index].clone()).collect();
        let context_bytes = setting.context().0.at(End::High);
        for plan in &mut chosen {
            let budget_bytes = plan.reserved_bytes.checked_add(context_bytes);
            let limited = Setting { budget_bytes, ..unlimited.clone() };
            let mut chooser = Chooser::new(&chain, Trials::new(&prepared, &limited)?);
            if let Some(found) = chooser.choose(None).filter(|found| found.cost < plan.recompute_ps) {
                plan.choice = found.choice;
                plan.recompute_ps = found.cost;
            }
        }
        Ok((undominated(chosen), costs.step_ps))
    }
}

/// Up to about `wanted` numbers below `length`, at even distances, the first and the last included.
fn evenly(length: usize, wanted: usize) -> impl Iterator<Item = usize> {
    let last = length.saturating_sub(1);
    let steps = wanted.saturating_sub(1).clamp(1, last.max(1));
    let mut numbers: Vec<usize> = (0..=steps).map(|step| step * last / steps).take_while(|_| length > 0).collect();
    numbers.dedup();
    numbers.into_iter()
}

/// Plans that no other is as good as in both, from the fewest bytes on.
fn undominated(mut plans: Vec<FrontPlan>) -> Vec<FrontPlan> {
    plans.sort_by_key(|plan| (plan.reserved_bytes, plan.recompute_ps));
    let mut least = u64::MAX;
    plans.retain(|plan| {
        plan.recompute_ps < least && {
            least = plan.recompute_ps;
            true
        }
    });
    plans
}
