//! The regions as a chain of bytes and costs, for the search.
//!
//! Every variant is joined once with all regions in it. A run's most bytes, less what the regions before it left behind in
//! that variant ([`left_bytes`]), are taken for what it needs whatever those regions do. A storage that depends on several
//! regions at once is no sum, which is why every plan that the search proposes is joined and played before it is believed.

use crate::chain::{Chain, ChainOption, Choice, Region, Solution};
use crate::error::Error;
use crate::regions::cost::StepCosts;
use crate::regions::cut::Run;
use crate::regions::left::left_bytes;
use crate::regions::parallel::map;
use crate::regions::space::RegionSpace;
use crate::regions::trial::{Moment, Trials};

/// A chain and what its options stand for.
#[derive(Debug)]
pub(super) struct RegionChain {
    /// Regions of the space, those that are never run included.
    pub(super) regions: usize,
    pub(super) chain: Chain,
    /// Regions in the order of the chain.
    pub(super) order: Vec<usize>,
    /// Per place in the chain, the variant of each option.
    pub(super) options: Vec<Vec<usize>>,
}

impl RegionChain {
    /// Number of plans, at most the largest number there is.
    pub(super) fn plans(&self) -> usize {
        self.options.iter().fold(1, |plans: usize, options| plans.saturating_mul(options.len()))
    }

    /// The choice of variants that a solution stands for.
    pub(super) fn choice(&self, solution: &Solution) -> Vec<usize> {
        let mut choice = vec![0; self.regions];
        for &Choice { region: place, option } in &solution.choices {
            let span = self.chain.regions()[place].options[option].span;
            for &region in &self.order[place..place + span] {
                choice[region] = self.options[place][option];
            }
        }
        choice
    }

    /// The same numbers of each variant among alike regions in a row, spread evenly over them; segments stay where they
    /// are.
    pub(super) fn mixed(&self, choice: &[usize]) -> Vec<usize> {
        let mut mixed = choice.to_vec();
        let regions = self.chain.regions();
        // Of one region each, in both.
        let is_single = |place: usize| {
            let own = self.options[place].iter().position(|&variant| variant == choice[self.order[place]]);
            own.is_some_and(|option| regions[place].options[option].span == 1)
        };
        let alike = |a: usize, b: usize| {
            let same =
                |a: &ChainOption, b: &ChainOption| (a.left_bytes, a.cost, a.span) == (b.left_bytes, b.cost, b.span);
            self.options[a] == self.options[b]
                && (a == b || (is_single(a) && is_single(b)))
                && regions[a].options.iter().zip(&regions[b].options).all(|(a, b)| same(a, b))
        };
        let mut begin = 0;
        while begin < self.order.len() {
            let length = (begin..self.order.len()).take_while(|&place| alike(begin, place)).count();
            let places = &self.order[begin..begin + length];
            let mut numbers: Vec<(usize, usize, usize)> = Vec::new();
            for &region in places {
                match numbers.iter_mut().find(|(variant, ..)| *variant == choice[region]) {
                    Some((_, number, _)) => *number += 1,
                    None => numbers.push((choice[region], 1, 0)),
                }
            }
            for (at, &region) in places.iter().enumerate() {
                // Who is furthest behind its even share; of equals the one that came first.
                let lag =
                    |&(_, number, given): &(usize, usize, usize)| (number * (at + 1)).saturating_sub(length * given);
                let most = numbers.iter().map(lag).max();
                if let Some(next) = numbers.iter_mut().find(|numbers| Some(lag(numbers)) == most) {
                    mixed[region] = next.0;
                    next.2 += 1;
                }
            }
            begin += length;
        }
        mixed
    }
}

impl RegionSpace {
    /// Every region in `variant`, or as it is where that cannot be.
    pub(super) fn uniform(&self, variant: usize) -> Vec<usize> {
        (0..self.paths.len()).map(|region| if self.is_allowed(region, variant) { variant } else { 0 }).collect()
    }

    pub(super) fn chain(&self, trials: &Trials<'_>, costs: &StepCosts) -> Result<RegionChain, Error> {
        let prepared = trials.prepared();
        let all: Vec<usize> = (0..self.variants.len()).collect();
        let moments: Vec<Vec<Moment>> = map(&all, |&variant| trials.another().moments(&self.uniform(variant)));
        let runs = self.variants[0].steps.last().map_or(&[][..], Vec::as_slice);
        let order = forward_order(runs, self.paths.len());
        let left = left_bytes(prepared, &order);
        let numbers = 0..self.variants.len();
        // A region that cannot run as in a variant keeps everything there.
        let left_in = |variant: usize, place: usize| {
            left[if self.is_allowed(order[place], variant) { variant } else { 0 }][place]
        };
        let prefixes: Vec<Vec<u64>> =
            numbers.clone().map(|variant| prefixes((0..order.len()).map(|place| left_in(variant, place)))).collect();
        // What is needed outside regions, by how many regions' bytes are there; the last is the chain's tail.
        let mut outside = vec![None; order.len() + 1];
        let outside_runs = outside_runs(runs, &order);
        for &(run, alive) in &outside_runs {
            let needs =
                moments.iter().zip(&prefixes).map(|(moments, prefix)| moments[run].most.saturating_sub(prefix[alive]));
            outside[alive] = outside[alive].max(needs.min());
        }
        let mut regions: Vec<Region> = vec![Region::default(); order.len()];
        let mut options: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
        for (place, &region) in order.iter().enumerate() {
            for variant in numbers.clone().filter(|&variant| self.is_allowed(region, variant)) {
                let segment = self.variants[variant].segment(region);
                // A segment is an option of its first region, if its regions come one after the other.
                if !order[place..].iter().copied().take(segment.len()).eq(segment.clone()) {
                    continue;
                }
                let places = place..place + segment.len();
                let of_segment = runs.iter().zip(&moments[variant]);
                let of_segment = of_segment.filter(|(run, _)| run.region().is_some_and(|own| segment.contains(&own)));
                let between = outside_runs.iter().filter(|(_, alive)| place < *alive && places.contains(alive));
                let most = of_segment
                    .map(|(_, moment)| moment.most)
                    .chain(between.map(|&(run, _)| moments[variant][run].most))
                    .max()
                    .unwrap_or(0);
                let extra_bytes = most.saturating_sub(prefixes[variant][place]).max(outside[place].unwrap_or(0));
                let left_bytes = places.map(|place| left[variant][place]).fold(0, u64::saturating_add);
                let cost =
                    segment.clone().map(|region| costs.recompute_ps[region][variant]).fold(0, u64::saturating_add);
                regions[place].options.push(ChainOption::new(left_bytes, extra_bytes, cost).over(segment.len()));
                options[place].push(variant);
            }
        }
        let tail_bytes = outside[order.len()].unwrap_or(0);
        let chain = Chain::new(regions, tail_bytes)
            .map_err(|error| Error::Regions { variant: 0, reason: error.to_string() })?;
        Ok(RegionChain { regions: self.paths.len(), chain, order, options })
    }
}

/// Regions in the order of their first forward run.
fn forward_order(runs: &[Run], regions: usize) -> Vec<usize> {
    let mut order = Vec::new();
    for region in runs.iter().filter(|run| !run.in_engine()).filter_map(Run::region) {
        if region < regions && !order.contains(&region) {
            order.push(region);
        }
    }
    order
}

/// Sums of the first values.
fn prefixes(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let sums = values.scan(0_u64, |sum, value| {
        *sum = sum.saturating_add(value);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Runs outside regions, each with the number of regions at the chain's beginning whose bytes are there.
fn outside_runs(runs: &[Run], order: &[usize]) -> Vec<(usize, usize)> {
    let place = |run: &Run| run.region().and_then(|region| order.iter().position(|&other| other == region));
    let mut alive = 0;
    let mut found = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        match (place(run), run.in_engine()) {
            (Some(place), false) => alive = alive.max(place + 1),
            (Some(place), true) => alive = place,
            (None, _) => found.push((index, alive)),
        }
    }
    found
}
