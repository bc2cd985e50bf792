//! The cheapest checkpoint plan that fits, and the largest batch that any plan fits.

use crate::chain::ChainOption;
use crate::error::Error;
use crate::regions::choose::Chooser;
use crate::regions::joined::Joined;
use crate::regions::prepared::Prepared;
use crate::regions::space::RegionSpace;
use crate::regions::trial::{Played, Trials, played};
use crate::search::largest_fitting;
use crate::setting::Setting;
use crate::target::{End, Target, Throughput};

/// A plan that was joined, played and found to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlan {
    /// Variant of each region.
    pub choice: Vec<usize>,
    /// Least time of the step without recomputation, in picoseconds.
    pub step_ps: u64,
    /// Least time of the recomputation, in picoseconds.
    pub recompute_ps: u64,
    /// No plan whose live bytes stay within the budget costs less recomputation than this, by the sum over regions that
    /// is within 2 % of the live bytes (`benchmarks/results/planner.md`); equal to `recompute_ps` when all cheaper plans
    /// were played.
    pub recompute_lower_bound_ps: u64,
    /// Plans that were played for this answer.
    pub played: usize,
}

/// One way to run a region, or a segment that begins with it, as the search sees it before it plays anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainWay {
    /// The first region.
    pub region: usize,
    /// Its variant.
    pub variant: usize,
    /// Bytes and cost.
    pub option: ChainOption,
}

impl RegionSpace {
    /// The sums that the search begins with: every way of each place in forward order, and the bytes of the chain's tail.
    ///
    /// # Errors
    /// As [`RegionSpace::cheapest_plan`].
    pub fn chain_ways(&self, batch: u64, setting: &Setting) -> Result<(Vec<Vec<ChainWay>>, u64), Error> {
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let prepared = Prepared::new(self, batch, &setting.target(End::High))?;
        let unlimited = Setting { budget_bytes: None, gpu_asked: None, ..setting.clone() };
        let chain = self.chain(&Trials::new(&prepared, &unlimited)?, &costs)?;
        let ways = chain.chain.regions().iter().zip(&chain.options).zip(&chain.order);
        let ways = ways.map(|((content, variants), &region)| {
            let ways = content.options.iter().zip(variants);
            ways.map(|(&option, &variant)| ChainWay { region, variant, option }).collect()
        });
        Ok((ways.collect(), chain.chain.tail_bytes()))
    }

    /// Whether the loop runs through under this plan, at the upper end of every uncertainty.
    ///
    /// # Errors
    /// As [`crate::search::fits`] and [`RegionSpace::splice`].
    pub fn fits(&self, choice: &[usize], batch: u64, setting: &Setting) -> Result<bool, Error> {
        crate::search::fits(&self.splice(choice)?, batch, setting)
    }

    /// What the search plays for this plan, in order; equal to the requests and frees of the spliced spec's
    /// [timeline](crate::timeline::Timeline).
    ///
    /// # Errors
    /// As [`crate::search::fits`] and [`RegionSpace::splice`].
    pub fn played(&self, choice: &[usize], batch: u64, target: &Target) -> Result<Vec<Played>, Error> {
        self.check(choice)?;
        let prepared = Prepared::new(self, batch, target)?;
        let mut joined = Joined::default();
        joined.join(&prepared, choice);
        Ok(played(&prepared, &joined))
    }

    /// Least time of recomputation under this plan, in picoseconds, on the roofline of a card.
    ///
    /// # Errors
    /// [`Error::Regions`] for a choice that does not exist; [`Error::SizeOverflow`].
    pub fn recompute_ps(&self, choice: &[usize], batch: u64, setting: &Setting) -> Result<u64, Error> {
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let of_region = |(region, &variant): (usize, &usize)| {
            let cost = costs.recompute_ps.get(region).and_then(|variants| variants.get(variant)).copied();
            cost.ok_or_else(|| Error::Regions { variant, reason: format!("region {region} has no such variant") })
        };
        choice.iter().enumerate().map(of_region).sum()
    }

    /// The plan with the least recomputation that fits; `None` when none does.
    ///
    /// A plan fits when it gets through as [`RegionSpace::fits`] says. At the limit that is no matter of size alone: the
    /// allocator gives its cache back to the driver and tries again, and may get through with less memory and not with
    /// more. So more budget can have a slower plan; but what is found is never slower than what is found by counting only
    /// plans that reserve no more than there is, and that never gets slower with more budget.
    ///
    /// With `plays`, up to so many plans cheaper than the one found are played in the order of their costs: when all of
    /// them have been, the answer is that of exhaustive search. Without, that is done where there are few plans.
    ///
    /// # Errors
    /// [`Error`] for a batch the traces do not answer for, a size overflow, or a budget below the context.
    pub fn cheapest_plan(
        &self,
        batch: u64,
        setting: &Setting,
        plays: Option<usize>,
    ) -> Result<Option<FoundPlan>, Error> {
        let throughput = Throughput::of(setting.gpu)?;
        let costs = self.costs(batch, &throughput)?;
        let Some(prepared) = self.prepared(batch, setting)? else { return Ok(None) };
        let trials = Trials::new(&prepared, setting)?;
        let chain = self.chain(&trials, &costs)?;
        let mut chooser = Chooser::new(&chain, trials);
        Ok(chooser.choose(plays).map(|chosen| FoundPlan {
            choice: chosen.choice,
            step_ps: costs.step_ps,
            recompute_ps: chosen.cost,
            recompute_lower_bound_ps: chosen.bound,
            played: chooser.played(),
        }))
    }

    /// The largest batch for which some plan fits while for the next one none does.
    ///
    /// # Errors
    /// [`Error::NoBudget`], [`Error::NothingFits`], [`Error::Unbounded`], as [`crate::search::max_batch`].
    pub fn max_batch(&self, setting: &Setting) -> Result<u64, Error> {
        let Some(budget_bytes) = setting.budget_bytes() else { return Err(Error::NoBudget) };
        match largest_fitting(setting, |batch, setting| self.any_fits(batch, setting))? {
            Some(batch) => Ok(batch),
            None => Err(Error::NothingFits { budget_bytes, smallest_bytes: self.smallest_bytes(1, setting)? }),
        }
    }

    /// The smallest budget within which some plan was seen to get through, context included, upper end.
    ///
    /// # Errors
    /// As [`RegionSpace::cheapest_plan`].
    pub fn smallest_bytes(&self, batch: u64, setting: &Setting) -> Result<u64, Error> {
        let unlimited = Setting { budget_bytes: None, gpu_asked: None, ..setting.clone() };
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let prepared = Prepared::new(self, batch, &self.target(batch, setting)?)?;
        let mut trials = Trials::new(&prepared, &unlimited)?;
        let chain = self.chain(&trials, &costs)?;
        let kept_bytes = trials.sufficient_bytes(&self.uniform(0));
        let least_bytes = Chooser::new(&chain, trials).smallest_reserved_bytes();
        let reserved_bytes = least_bytes.map_or(kept_bytes, |bytes| bytes.min(kept_bytes));
        Ok(reserved_bytes.saturating_add(setting.context().0.high_bytes))
    }

    /// Whether some plan fits.
    fn any_fits(&self, batch: u64, setting: &Setting) -> Result<bool, Error> {
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let Some(prepared) = self.prepared(batch, setting)? else { return Ok(false) };
        let trials = Trials::new(&prepared, setting)?;
        let chain = self.chain(&trials, &costs)?;
        Ok(Chooser::new(&chain, trials).any_fits())
    }

    /// The space at one batch; `None` when it needs more bytes than 64 bits hold.
    fn prepared(&self, batch: u64, setting: &Setting) -> Result<Option<Prepared<'_>>, Error> {
        match Prepared::new(self, batch, &self.target(batch, setting)?) {
            Err(error) if error.is_overflow() => Ok(None),
            other => other.map(Some),
        }
    }

    /// What the formulas of all variants need to know.
    pub(crate) fn target(&self, batch: u64, setting: &Setting) -> Result<Target, Error> {
        setting.target_for(self.variants.iter().map(|variant| &variant.spec), batch, End::High)
    }
}
