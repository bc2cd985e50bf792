//! Plans with a pattern and plans next to another, against definitions that go through all plans of small chains.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::chain::{Chain, ChainOption, Choice, Region};
use crate::regions::chain::RegionChain;
use crate::regions::neighbours::cheaper_neighbours;
use crate::regions::structured::{every_kth, greedy, leading_segments, rows, runs};

/// Variants 0 (keep), 1 (checkpoint), 2 (a part); 3 is a segment of two places.
const SEGMENT: usize = 3;

/// A plan in variants, one for each place.
type Plan = Vec<usize>;

/// Places in another order than regions, so that the two cannot be taken for each other.
fn chain(rows: Vec<(bool, bool, bool, [u16; 12])>, tail_bytes: u64) -> RegionChain {
    let places = rows.len();
    let mut regions = Vec::new();
    let mut options = Vec::new();
    for (place, (has_checkpoint, has_part, has_segment, numbers)) in rows.into_iter().enumerate() {
        let (mut region, mut variants) = (Region::default(), Vec::new());
        let is_there = [true, has_checkpoint, has_part, has_segment && place + 1 < places];
        for (variant, numbers) in numbers.chunks_exact(3).enumerate().filter(|&(variant, _)| is_there[variant]) {
            let [left_bytes, extra_bytes, cost] = [0, 1, 2].map(|number| u64::from(numbers[number]));
            let cost = if variant == 0 { 0 } else { cost };
            let span = if variant == SEGMENT { 2 } else { 1 };
            region.options.push(ChainOption::new(left_bytes, extra_bytes, cost).over(span));
            variants.push(variant);
        }
        regions.push(region);
        options.push(variants);
    }
    let order = (0..places).rev().collect();
    RegionChain { regions: places, chain: Chain::new(regions, tail_bytes).unwrap(), order, options }
}

fn chains(places: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = RegionChain> {
    let row = (any::<bool>(), any::<bool>(), any::<bool>(), prop::array::uniform12(0_u16..50));
    (prop::collection::vec(row, places), 0_u64..100).prop_map(|(rows, tail_bytes)| chain(rows, tail_bytes))
}

fn option(chain: &RegionChain, place: usize, variant: usize) -> Option<ChainOption> {
    let at = chain.options[place].iter().position(|&other| other == variant)?;
    Some(chain.chain.regions()[place].options[at])
}

/// Peak and cost by the definition: at each place what is left before it, and what it needs itself.
fn peak_and_cost(chain: &RegionChain, plan: &Plan) -> (u64, u64) {
    let (mut peak, mut left, mut cost, mut place) = (0, 0, 0, 0);
    while place < plan.len() {
        let chosen = option(chain, place, plan[place]).unwrap();
        peak = peak.max(left + chosen.extra_bytes);
        left += chosen.left_bytes;
        cost += chosen.cost;
        place += chosen.span;
    }
    (peak.max(left + chain.chain.tail_bytes()), cost)
}

/// The plan of some choices; both places of a segment are in its variant.
fn plan(chain: &RegionChain, choices: &[Choice]) -> Plan {
    let of_choice = |&Choice { region: place, option }: &Choice| {
        std::iter::repeat_n(chain.options[place][option], chain.chain.regions()[place].options[option].span)
    };
    choices.iter().flat_map(of_choice).collect()
}

/// Every plan there is.
fn all_plans(chain: &RegionChain) -> Vec<Plan> {
    let mut plans: Vec<Plan> = vec![Vec::new()];
    loop {
        let Some(at) = plans.iter().position(|plan| plan.len() < chain.options.len()) else { return plans };
        let begun = plans.swap_remove(at);
        for &variant in &chain.options[begun.len()] {
            let span = option(chain, begun.len(), variant).unwrap().span;
            plans.push(begun.iter().copied().chain(std::iter::repeat_n(variant, span)).collect());
        }
    }
}

fn choice_of_regions(chain: &RegionChain, plan: &Plan) -> Vec<usize> {
    let mut choice = vec![0; plan.len()];
    plan.iter().zip(&chain.order).for_each(|(&variant, &region)| choice[region] = variant);
    choice
}

/// One place in another variant, or two places that exchanged theirs; segments stay.
fn is_next_to(one: &Plan, other: &Plan) -> bool {
    let differ: Vec<usize> = (0..one.len()).filter(|&place| one[place] != other[place]).collect();
    let in_segment = |place: &usize| one[*place] == SEGMENT || other[*place] == SEGMENT;
    match differ[..] {
        _ if differ.iter().any(in_segment) => false,
        [_] => true,
        [a, b] => one[a] == other[b] && one[b] == other[a],
        _ => false,
    }
}

proptest! {
    #[test]
    fn neighbours_are_those_of_all_plans_that_differ_so(chain in chains(1..=5), which: prop::sample::Index, near in 0_u64..300) {
        let plans = all_plans(&chain);
        let here = &plans[which.index(plans.len())];
        let (_, cost) = peak_and_cost(&chain, here);
        let is_wanted = |other: &&Plan| {
            let (other_peak, other_cost) = peak_and_cost(&chain, other);
            is_next_to(here, other) && other_cost < cost && other_peak <= near
        };
        let expected: BTreeSet<Plan> = plans.iter().filter(is_wanted).cloned().collect();
        let found = cheaper_neighbours(&chain, &choice_of_regions(&chain, here), near);
        let found_plans: Vec<Plan> = found.iter().map(|solution| plan(&chain, &solution.choices)).collect();
        prop_assert_eq!(found_plans.iter().cloned().collect::<BTreeSet<_>>(), expected);
        for (solution, plan) in found.iter().zip(&found_plans) {
            prop_assert_eq!((solution.peak_bytes, solution.cost), peak_and_cost(&chain, plan));
        }
        prop_assert!(found.is_sorted_by_key(|solution| (solution.peak_bytes, solution.cost)));
    }

    #[test]
    fn patterns_are_every_kth_and_all_but_every_kth(chain in chains(1..=5)) {
        let places = chain.options.len();
        let plans: BTreeSet<Plan> = every_kth(&chain).iter().map(|one| plan(&chain, &one.choices)).collect();
        for distance in 1..=places {
            for offset in 0..distance {
                for marked in [true, false] {
                    // A place that cannot be checkpointed keeps.
                    let variant = |place: usize| {
                        let wanted = usize::from((place % distance == offset) == marked);
                        if option(&chain, place, wanted).is_some() { wanted } else { 0 }
                    };
                    let pattern: Plan = (0..places).map(variant).collect();
                    prop_assert!(plans.contains(&pattern), "{:?}", pattern);
                }
            }
        }
    }

    #[test]
    fn the_greedy_path_takes_the_best_step_of_all_and_goes_on_while_there_is_one(chain in chains(1..=5)) {
        let places = chain.options.len();
        let path = greedy(&chain);
        for solution in every_kth(&chain).iter().chain(rows(&chain).iter().flatten()) {
            let plan = plan(&chain, &solution.choices);
            prop_assert_eq!((solution.peak_bytes, solution.cost), peak_and_cost(&chain, &plan));
        }
        let path: Vec<Plan> = path.iter().map(|one| plan(&chain, &one.choices)).collect();
        prop_assert_eq!(&path[0], &vec![0; places]);
        let all = all_plans(&chain);
        // Bytes saved and cost paid, where bytes are saved.
        let step = |from: &Plan, to: &Plan| {
            let ((peak, cost), (next_peak, next_cost)) = (peak_and_cost(&chain, from), peak_and_cost(&chain, to));
            (next_peak < peak).then(|| (peak - next_peak, next_cost.saturating_sub(cost).max(1)))
        };
        for (at, here) in path.iter().enumerate() {
            let is_single_change = |other: &&Plan| {
                is_next_to(here, other) && (0..places).filter(|&place| here[place] != other[place]).count() == 1
            };
            let steps: Vec<(u64, u64)> = all.iter().filter(is_single_change).filter_map(|to| step(here, to)).collect();
            match path.get(at + 1) {
                None => prop_assert!(steps.is_empty()),
                Some(next) => {
                    prop_assert!(is_single_change(&next));
                    let (saved, paid) = step(here, next).unwrap();
                    prop_assert!(steps.iter().all(|&(other_saved, other_paid)| saved * other_paid >= other_saved * paid));
                }
            }
        }
    }

    #[test]
    fn leading_segments_are_the_first_that_do_not_overlap_and_all_behind_keep(chain in chains(1..=7)) {
        let places = chain.options.len();
        let begins_segment = |place: usize| chain.options[place].contains(&SEGMENT);
        // From place to place, over a segment where one begins.
        let mut firsts = Vec::new();
        let mut place = 0;
        while place < places {
            let begins = begins_segment(place);
            firsts.extend(begins.then_some(place));
            place += if begins { 2 } else { 1 };
        }
        let with_first = |most: usize| {
            let mut plan = vec![0; places];
            for &first in &firsts[..most] {
                plan[first] = SEGMENT;
                plan[first + 1] = SEGMENT;
            }
            plan
        };
        let expected: Vec<Plan> = (1..=firsts.len()).map(with_first).collect();
        let segments = leading_segments(&chain);
        let found: Vec<Plan> = segments.iter().flatten().map(|one| plan(&chain, &one.choices)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn runs_go_from_one_variant_to_a_dearer_one_that_needs_less(chain in chains(1..=6)) {
        let places = chain.options.len();
        let with = |variant: &dyn Fn(usize) -> usize| -> Plan {
            let kept = |place: usize| option(&chain, place, variant(place)).map_or(0, |_| variant(place));
            (0..places).map(kept).collect()
        };
        for (number, row) in runs(&chain).iter().enumerate() {
            let row: Vec<Plan> = row.iter().map(|one| plan(&chain, &one.choices)).collect();
            prop_assert_eq!(row.len(), places + 1);
            let [(least, cost), (less, more)] = [&row[0], &row[places]].map(|plan| peak_and_cost(&chain, plan));
            prop_assert!(less < least && more >= cost);
            let variants: Vec<usize> = (0..4).collect();
            let is_run = |cheaper: usize, dearer: usize| {
                (0..=places).all(|count| {
                    let dear = |place: usize| if number % 2 == 0 { place < count } else { place + count >= places };
                    row[count] == with(&|place| if dear(place) { dearer } else { cheaper })
                })
            };
            prop_assert!(variants.iter().any(|&a| variants.iter().any(|&b| is_run(a, b))), "{:?}", row);
        }
    }

    /// Mixing keeps how many regions run in each variant, so the cost, where all regions are alike.
    #[test]
    fn alike_regions_are_mixed_evenly(variants in prop::collection::vec(0_usize..3, 2..12)) {
        let places = variants.len();
        let chain = chain(vec![(true, true, false, [3; 12]); places], 0);
        let mixed = chain.mixed(&variants);
        let count = |plan: &[usize], variant: usize| plan.iter().filter(|&&other| other == variant).count();
        for variant in 0..3 {
            let number = count(&variants, variant);
            prop_assert_eq!(count(&mixed, variant), number);
            // In forward order, no beginning of the chain has more than one above or below its share.
            let forward: Vec<usize> = chain.order.iter().map(|&region| mixed[region]).collect();
            for length in 1..=places {
                let share = count(&forward[..length], variant) * places;
                prop_assert!(share.abs_diff(number * length) < 2 * places);
            }
        }
    }
}

#[test]
fn long_chains_have_no_patterns() {
    let long = |places: usize| chain(vec![(true, false, false, [1; 12]); places], 0);
    assert!(every_kth(&long(49)).is_empty() && rows(&long(49)).is_empty());
    assert!(!every_kth(&long(48)).is_empty() && !rows(&long(48)).is_empty());
}
