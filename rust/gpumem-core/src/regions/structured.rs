//! Plans with a pattern: what people and simple planners choose.
//!
//! By sums they are never better than the front. But sums do not know the allocator's gaps, and plans in which blocks
//! alternate at even distances, or few kinds of options are mixed, often leave fewer of them than those of the front.

use std::collections::BTreeSet;

use crate::chain::{Choice, Solution};
use crate::regions::chain::RegionChain;

/// Beyond so many regions these take longer than what they find is worth.
const MOST_REGIONS: usize = 48;

/// Rows of plans, each dearer than the one before and in need of less: the greedy path, and leading segments.
pub(super) fn rows(chain: &RegionChain) -> Vec<Vec<Solution>> {
    let mut rows = leading_segments(chain);
    if chain.options.len() <= MOST_REGIONS {
        rows.push(greedy(chain));
        rows.extend(runs(chain));
    }
    rows
}

/// For options next to each other in bytes and cost, all regions in the cheaper one but the first of them, or the last.
pub(super) fn runs(chain: &RegionChain) -> Vec<Vec<Solution>> {
    let places = chain.options.len();
    let with = |of: &dyn Fn(usize) -> usize| {
        let options = (0..places).map(|place| option(chain, place, of(place)).or_else(|| option(chain, place, 0)));
        solution(chain, &options.map(Option::unwrap_or_default).collect::<Vec<_>>())
    };
    let variants: BTreeSet<usize> = chain.options.iter().flatten().copied().collect();
    let mut whole: Vec<(u64, u64, usize)> = variants
        .into_iter()
        .filter_map(|variant| with(&|_| variant).map(|solution| (solution.cost, solution.peak_bytes, variant)))
        .collect();
    whole.sort_unstable();
    let mut least_bytes = u64::MAX;
    whole.retain(|&(_, peak_bytes, _)| {
        let saves = peak_bytes < least_bytes;
        least_bytes = least_bytes.min(peak_bytes);
        saves
    });
    let mut rows = Vec::new();
    for (cheaper, dearer) in pairs(&whole) {
        let leading = |count: usize| with(&|place| if place < count { dearer } else { cheaper });
        let trailing = |count: usize| with(&|place| if place + count >= places { dearer } else { cheaper });
        rows.push((0..=places).filter_map(leading).collect());
        rows.push((0..=places).filter_map(trailing).collect());
    }
    rows
}

/// Neighbours among all options that are worth something, and among those that are no worse than a mixture of others.
fn pairs(whole: &[(u64, u64, usize)]) -> BTreeSet<(usize, usize)> {
    let mut hull: Vec<(u64, u64, usize)> = Vec::new();
    for &next in whole {
        // The middle one of three lies above the line between the others: what it saves for its cost is less than what
        // the last one saves for its own.
        while let [.., first, middle] = hull[..]
            && u128::from(first.1 - middle.1) * u128::from(next.0 - middle.0)
                <= u128::from(middle.1 - next.1) * u128::from(middle.0 - first.0)
        {
            hull.pop();
        }
        hull.push(next);
    }
    let neighbours = |options: &[(u64, u64, usize)]| -> Vec<(usize, usize)> {
        options.windows(2).map(|pair| (pair[0].2, pair[1].2)).collect()
    };
    neighbours(whole).into_iter().chain(neighbours(&hull)).collect()
}

/// For each variant with segments, its first segments with all behind them kept, from one segment on: what
/// `checkpoint_sequential` does, and the same for parts of a model.
pub(super) fn leading_segments(chain: &RegionChain) -> Vec<Vec<Solution>> {
    let regions = chain.chain.regions();
    let is_long = |place: usize, option: usize| regions[place].options[option].span > 1;
    let long = (0..regions.len()).flat_map(|place| {
        let options = 0..chain.options[place].len();
        options.filter(move |&option| is_long(place, option)).map(move |option| chain.options[place][option])
    });
    let variants: BTreeSet<usize> = long.collect();
    let with_first = |variant: usize, most: usize| {
        let (mut choices, mut place, mut segments) = (Vec::new(), 0, 0);
        while place < regions.len() {
            let own = chain.options[place].iter().position(|&other| other == variant);
            let segment = own.filter(|&option| segments < most && is_long(place, option));
            segments += usize::from(segment.is_some());
            let option = segment.or_else(|| option(chain, place, 0))?;
            choices.push(Choice { region: place, option });
            place += regions[place].options[option].span;
        }
        let (peak_bytes, cost) = chain.chain.evaluate(&choices)?;
        (segments == most).then_some(Solution { choices, peak_bytes, cost, cost_lower_bound: cost })
    };
    let plans = |variant: usize| (1..).map_while(move |most| with_first(variant, most)).collect();
    variants.into_iter().map(plans).collect()
}

/// Index of the option of one region in which it runs as in `variant`.
fn option(chain: &RegionChain, place: usize, variant: usize) -> Option<usize> {
    let found = chain.options[place].iter().position(|&other| other == variant)?;
    (chain.chain.regions()[place].options[found].span == 1).then_some(found)
}

fn solution(chain: &RegionChain, options: &[usize]) -> Option<Solution> {
    let choices = options.iter().enumerate().map(|(region, &option)| Choice { region, option });
    let choices: Vec<Choice> = choices.collect();
    let (peak_bytes, cost) = chain.chain.evaluate(&choices)?;
    Some(Solution { choices, peak_bytes, cost, cost_lower_bound: cost })
}

/// Every plan that checkpoints (variant 1) every k-th region, or all but every k-th.
pub(super) fn every_kth(chain: &RegionChain) -> Vec<Solution> {
    let places = chain.options.len();
    let mut plans = Vec::new();
    if places > MOST_REGIONS {
        return plans;
    }
    for distance in 1..=places {
        for offset in 0..distance {
            for marked in [true, false] {
                let variant = |place: usize| usize::from((place % distance == offset) == marked);
                let options = (0..places)
                    .map(|place| option(chain, place, variant(place)).or_else(|| option(chain, place, 0)).unwrap_or(0));
                plans.extend(solution(chain, &options.collect::<Vec<_>>()));
            }
        }
    }
    plans
}

/// Of all changes of one region the one that saves most bytes of the peak for its cost, one after the other.
pub(super) fn greedy(chain: &RegionChain) -> Vec<Solution> {
    let start = (0..chain.options.len()).map(|place| option(chain, place, 0).unwrap_or(0));
    let mut options: Vec<usize> = start.collect();
    let mut path: Vec<Solution> = solution(chain, &options).into_iter().collect();
    while let Some(here) = path.last() {
        let mut best: Option<(u128, usize, usize)> = None;
        for place in 0..options.len() {
            let before = options[place];
            for other in 0..chain.options[place].len() {
                if other == before || chain.chain.regions()[place].options[other].span > 1 {
                    continue;
                }
                options[place] = other;
                if let Some(next) = solution(chain, &options).filter(|next| next.peak_bytes < here.peak_bytes) {
                    let (saved, paid) = (here.peak_bytes - next.peak_bytes, next.cost.saturating_sub(here.cost).max(1));
                    // Bytes for each unit of cost, as a fraction that integers can compare.
                    let ratio = (u128::from(saved) << 40) / u128::from(paid);
                    if best.is_none_or(|(most, ..)| ratio > most) {
                        best = Some((ratio, place, other));
                    }
                }
            }
            options[place] = before;
        }
        let Some((_, place, other)) = best else { break };
        options[place] = other;
        path.extend(solution(chain, &options));
    }
    path
}
