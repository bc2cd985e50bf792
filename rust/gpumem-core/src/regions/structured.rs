//! Plans with a pattern: what people and simple planners choose.
//!
//! By sums they are never better than the front. But sums do not know the allocator's gaps, and plans in which blocks
//! alternate at even distances, or few kinds of options are mixed, often leave fewer of them than those of the front.

use crate::chain::{Choice, Solution};
use crate::regions::chain::RegionChain;

/// Beyond so many regions the greedy path takes longer than what it finds is worth.
const MOST_REGIONS: usize = 48;

/// Every plan that checkpoints (variant 1) every k-th region, or all but every k-th, and the greedy path: of all changes
/// of one region the one that saves most bytes of the peak for its cost, one after the other.
pub(super) fn structured(chain: &RegionChain) -> Vec<Solution> {
    let places = chain.options.len();
    if places > MOST_REGIONS {
        return Vec::new();
    }
    let mut plans = every_kth(chain);
    plans.extend(greedy(chain));
    plans
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

fn every_kth(chain: &RegionChain) -> Vec<Solution> {
    let places = chain.options.len();
    let mut plans = Vec::new();
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

fn greedy(chain: &RegionChain) -> Vec<Solution> {
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
