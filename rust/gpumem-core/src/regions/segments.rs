//! Which segments of several regions are worth a trace.
//!
//! A segment keeps what its first region is given and recomputes all of its regions before the backward pass of the last:
//! it leaves less behind than its regions checkpointed one by one and needs more while it is run. Before it was traced,
//! both are sums of what the regions leave and need when they keep everything. The front of the chain with all segments
//! shows which of them the best plans have at some budget; those are traced, and only what was traced is ever planned.

use std::collections::BTreeMap;

use crate::chain::{Chain, ChainOption, pareto};
use crate::error::Error;
use crate::regions::chain::RegionChain;
use crate::regions::prepared::Prepared;
use crate::regions::space::RegionSpace;
use crate::regions::trial::Trials;
use crate::setting::Setting;
use crate::target::{End, Throughput};

/// Labels of a front: this is a sketch, its numbers are estimates.
const FRONT_LABELS: usize = 512;
/// Plans of the front that are looked at, evenly spaced.
const PLANS: usize = 64;

/// Regions in a row, checkpointed as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The first region.
    pub first: usize,
    /// How many, at least 2.
    pub count: usize,
}

impl RegionSpace {
    /// Of `candidates`, those that the best plans have at some budget and others of their lengths, in at most `most` sets of
    /// which none overlap; the more often wanted first.
    ///
    /// `whole` is the variant in which every region is checkpointed by itself.
    ///
    /// # Errors
    /// As [`RegionSpace::cheapest_plan`].
    pub fn wanted_segments(
        &self,
        candidates: &[Segment],
        whole: usize,
        most: usize,
        batch: u64,
        setting: &Setting,
    ) -> Result<Vec<Vec<usize>>, Error> {
        let unlimited = Setting { budget_bytes: None, gpu_asked: None, ..setting.clone() };
        let costs = self.costs(batch, &Throughput::of(setting.gpu)?)?;
        let prepared = Prepared::new(self, batch, &setting.target(End::High))?;
        let traced = self.chain(&Trials::new(&prepared, &unlimited)?, &costs)?;
        let mut wanted = wanted(&traced, candidates, whole)?;
        wanted.sort_by_key(|&(candidate, plans)| (std::cmp::Reverse(plans), candidate));
        let mut sets: Vec<Vec<usize>> = Vec::new();
        while sets.len() < most && !wanted.is_empty() {
            // A length that no set has yet, as long as there is one.
            let has_length = |&(candidate, _): &(usize, usize)| {
                sets.iter().flatten().any(|&other| candidates[other].count == candidates[candidate].count)
            };
            let (known, other): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(has_length);
            let set = next_set(if other.is_empty() { &known } else { &other }, candidates);
            wanted.retain(|(candidate, _)| !set.contains(candidate));
            sets.push(set);
        }
        Ok(sets)
    }
}

/// Segments of the length that is wanted most often, none overlapping: those that are wanted, the more often the earlier,
/// then what else of that length there is room for, since a trace costs the same however many it has. So equal parts of a
/// sequence, as `checkpoint_sequential` has them, are among them.
fn next_set(wanted: &[(usize, usize)], candidates: &[Segment]) -> Vec<usize> {
    let mut by_count: BTreeMap<usize, usize> = BTreeMap::new();
    for &(candidate, plans) in wanted {
        *by_count.entry(candidates[candidate].count).or_default() += plans;
    }
    let most = by_count.values().copied().max();
    let Some((&count, _)) = by_count.iter().find(|&(_, &plans)| Some(plans) == most) else { return Vec::new() };
    let mut set: Vec<usize> = Vec::new();
    for candidate in wanted.iter().map(|&(candidate, _)| candidate).chain(0..candidates.len()) {
        let own = candidates[candidate];
        let is_clear = |&other: &usize| {
            let other = candidates[other];
            other.first + other.count <= own.first || own.first + own.count <= other.first
        };
        if own.count == count && set.iter().all(is_clear) {
            set.push(candidate);
        }
    }
    set
}

/// Candidates that plans of the front have, and how many of the plans looked at.
fn wanted(traced: &RegionChain, candidates: &[Segment], whole: usize) -> Result<Vec<(usize, usize)>, Error> {
    let mut regions = traced.chain.regions().to_vec();
    // Per place, the candidates of its further options.
    let mut offered: Vec<Vec<usize>> = vec![Vec::new(); regions.len()];
    for (candidate, &Segment { first, count }) in candidates.iter().enumerate() {
        let Some(place) = traced.order.iter().position(|&region| region == first) else { continue };
        let in_a_row = traced.order[place..].iter().copied().take(count).eq(first..first + count);
        let option = |place: usize, variant: usize| {
            let option = traced.options[place].iter().position(|&other| other == variant)?;
            Some(traced.chain.regions()[place].options[option])
        };
        let (mut kept_bytes, mut extra_bytes, mut left_bytes, mut cost) = (0_u64, 0_u64, 0_u64, 0_u64);
        let mut is_known = in_a_row;
        for place in place..place + if in_a_row { count } else { 0 } {
            let (Some(kept), Some(checkpointed)) = (option(place, 0), option(place, whole)) else {
                is_known = false;
                break;
            };
            extra_bytes = extra_bytes.max(kept_bytes.saturating_add(kept.extra_bytes));
            kept_bytes = kept_bytes.saturating_add(kept.left_bytes);
            // What passes between regions stays only once, as one region's input or another one's output.
            left_bytes = left_bytes.max(checkpointed.left_bytes);
            cost = cost.saturating_add(checkpointed.cost);
        }
        if is_known {
            regions[place].options.push(ChainOption::new(left_bytes, extra_bytes, cost).over(count));
            offered[place].push(candidate);
        }
    }
    let chain = Chain::new(regions, traced.chain.tail_bytes())
        .map_err(|error| Error::Regions { variant: whole, reason: error.to_string() })?
        .with_front_limit(FRONT_LABELS);
    let front = pareto(&chain);
    let mut plans = vec![0; candidates.len()];
    for index in (0..front.len()).step_by(front.len().div_ceil(PLANS).max(1)) {
        for choice in front.solution(index).into_iter().flat_map(|solution| solution.choices) {
            let further = choice.option.checked_sub(traced.options[choice.region].len());
            if let Some(&candidate) = further.and_then(|further| offered[choice.region].get(further)) {
                plans[candidate] += 1;
            }
        }
    }
    Ok(plans.into_iter().enumerate().filter(|&(_, plans)| plans > 0).collect())
}
