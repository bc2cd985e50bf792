//! Plans that differ in one region, or in two that exchange their options.
//!
//! Whether a plan fits depends on the gaps that its blocks leave, and a plan that fits tells more about its neighbours than
//! sums do.

use crate::chain::{Choice, Solution};
use crate::regions::chain::RegionChain;

/// Plans next to `choice` that cost less and whose sum is at most `near_bytes`, those that need least first.
pub(super) fn cheaper_neighbours(chain: &RegionChain, choice: &[usize], near_bytes: u64) -> Vec<Solution> {
    let Some(here) = solution(chain, choices(chain, choice)) else { return Vec::new() };
    let mut found = Vec::new();
    let mut consider = |choices: Vec<Choice>| {
        let next = solution(chain, choices);
        found.extend(next.filter(|next| next.cost < here.cost && next.peak_bytes <= near_bytes));
    };
    for at in 0..here.choices.len() {
        let Choice { region: place, option } = here.choices[at];
        if !is_single(chain, place, option) {
            continue;
        }
        for other in (0..chain.options[place].len()).filter(|&other| is_single(chain, place, other)) {
            let mut changed = here.choices.clone();
            changed[at].option = other;
            consider(changed);
        }
        for after in at + 1..here.choices.len() {
            let Choice { region: other_place, option: other } = here.choices[after];
            let variants = [chain.options[place][option], chain.options[other_place][other]];
            let exchanged = [option_of(chain, place, variants[1]), option_of(chain, other_place, variants[0])];
            if let (true, [Some(first), Some(second)]) = (is_single(chain, other_place, other), exchanged) {
                let mut changed = here.choices.clone();
                changed[at].option = first;
                changed[after].option = second;
                consider(changed);
            }
        }
    }
    found.sort_by(|a, b| (a.peak_bytes, a.cost, &a.choices).cmp(&(b.peak_bytes, b.cost, &b.choices)));
    found
}

/// The options, in the order of the chain, that a choice of variants stands for.
fn choices(chain: &RegionChain, choice: &[usize]) -> Vec<Choice> {
    let mut choices = Vec::new();
    let mut place = 0;
    while let Some(&region) = chain.order.get(place) {
        let Some(option) = chain.options[place].iter().position(|&variant| variant == choice[region]) else { break };
        choices.push(Choice { region: place, option });
        place += chain.chain.regions()[place].options[option].span;
    }
    choices
}

fn solution(chain: &RegionChain, choices: Vec<Choice>) -> Option<Solution> {
    let (peak_bytes, cost) = chain.chain.evaluate(&choices)?;
    Some(Solution { choices, peak_bytes, cost, cost_lower_bound: cost })
}

fn is_single(chain: &RegionChain, place: usize, option: usize) -> bool {
    chain.chain.regions()[place].options[option].span == 1
}

fn option_of(chain: &RegionChain, place: usize, variant: usize) -> Option<usize> {
    let option = chain.options[place].iter().position(|&other| other == variant)?;
    is_single(chain, place, option).then_some(option)
}
