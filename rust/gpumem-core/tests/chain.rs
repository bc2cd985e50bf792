//! The chain search against exhaustive search, a textbook dynamic program and itself.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "chain/exhaustive.rs"]
mod exhaustive;
#[path = "chain/rivals.rs"]
mod rivals;
#[path = "chain/rivals_test.rs"]
mod rivals_test;
#[path = "chain/speed.rs"]
mod speed;

use std::collections::BTreeSet;

use exhaustive::{all_plans, canonical_key};
use gpumem_core::chain::{
    Chain, ChainError, ChainOption, Choice, Permutations, Region, Solution, cheapest, front, in_cost_order, pareto,
    smallest_peak,
};
use proptest::prelude::*;

/// Few distinct values, so that ties, dominated and equal options are common.
fn option() -> impl Strategy<Value = ChainOption> {
    (0..12_u64, 0..20_u64, 0..8_u64).prop_map(|(left, extra, cost)| ChainOption::new(left, extra, cost))
}

fn region(options: usize) -> impl Strategy<Value = Region> {
    prop::collection::vec(option(), 1..=options).prop_map(|options| Region { options })
}

/// Independent regions.
fn mixed_chain(regions: usize, options: usize) -> impl Strategy<Value = Chain> {
    (prop::collection::vec(region(options), 0..=regions), 0..30_u64)
        .prop_map(|(regions, tail)| Chain::new(regions, tail).unwrap())
}

/// One or two runs of regions whose extra bytes change by a constant from one to the next, segments included.
fn run_chain(longest: usize) -> impl Strategy<Value = Chain> {
    let run = (prop::collection::vec((option(), 1..=3_usize), 1..4), 1..=longest, -3..=3_i64);
    (prop::collection::vec(run, 1..=2), 0..30_u64).prop_map(|(runs, tail)| {
        let mut regions = Vec::new();
        for (options, length, step) in runs {
            // Something of one region is always there.
            let mut options: Vec<ChainOption> = options.into_iter().map(|(option, span)| option.over(span)).collect();
            options[0].span = 1;
            for offset in 0..length {
                let shift = step * i64::try_from(offset).unwrap();
                let here = options.iter().filter(|option| option.span <= length - offset);
                let here = here.map(|&option| {
                    // Far from zero, so that the step is the same everywhere.
                    ChainOption { extra_bytes: (option.extra_bytes + 40).checked_add_signed(-shift).unwrap(), ..option }
                });
                regions.push(Region { options: here.collect() });
            }
        }
        Chain::new(regions, tail).unwrap()
    })
}

/// Regions with options that cover some of those behind them.
fn segment_chain(regions: usize) -> impl Strategy<Value = Chain> {
    (prop::collection::vec(prop::collection::vec((option(), 1..=3_usize), 1..4), 1..=regions), 0..30_u64).prop_map(
        |(rows, tail)| {
            let count = rows.len();
            let regions = rows.into_iter().enumerate().map(|(index, row)| Region {
                options: row.into_iter().map(|(option, span)| option.over(span.min(count - index))).collect(),
            });
            Chain::new(regions.collect(), tail).unwrap()
        },
    )
}

fn any_chain() -> impl Strategy<Value = Chain> {
    prop_oneof![mixed_chain(6, 4), run_chain(4), segment_chain(6)]
}

fn best(plans: &[Solution], budget_bytes: u64) -> Option<(u64, u64)> {
    let fitting = plans.iter().filter(|plan| plan.peak_bytes <= budget_bytes);
    fitting.map(|plan| (plan.cost, plan.peak_bytes)).min()
}

fn check_against_exhaustive(chain: &Chain) -> Result<(), TestCaseError> {
    let plans = all_plans(chain);
    let budgets: BTreeSet<u64> = plans
        .iter()
        .flat_map(|plan| [plan.peak_bytes, plan.peak_bytes.saturating_sub(1)])
        .chain([0, u64::MAX])
        .collect();
    for &budget_bytes in &budgets {
        let found = cheapest(chain, budget_bytes);
        prop_assert_eq!(found.as_ref().map(|plan| (plan.cost, plan.peak_bytes)), best(&plans, budget_bytes));
        if let Some(found) = found {
            prop_assert_eq!(found.gap(), 0);
            prop_assert_eq!(chain.evaluate(&found.choices), Some((found.peak_bytes, found.cost)));
        }
    }
    // The front: exactly the plans' Pareto front, so it answers every budget.
    let points: Vec<(u64, u64)> = front(chain).iter().map(|plan| (plan.cost, plan.peak_bytes)).collect();
    let mut expected: Vec<(u64, u64)> = budgets.iter().filter_map(|&budget_bytes| best(&plans, budget_bytes)).collect();
    expected.dedup();
    prop_assert_eq!(&points, &expected);
    prop_assert!(points.is_sorted_by(|a, b| a.0 > b.0 && a.1 < b.1));
    let lazy = pareto(chain);
    prop_assert!(lazy.points().eq(points.iter().map(|&(cost, peak_bytes)| (peak_bytes, cost))));
    for &budget_bytes in &budgets {
        let plan = lazy.within(budget_bytes).and_then(|index| lazy.solution(index));
        prop_assert_eq!(plan, cheapest(chain, budget_bytes));
    }
    let smallest = smallest_peak(chain).map(|plan| (plan.peak_bytes, plan.cost));
    prop_assert_eq!(smallest, plans.iter().map(|plan| (plan.peak_bytes, plan.cost)).min());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn solvers_equal_exhaustive_search(chain in any_chain()) {
        check_against_exhaustive(&chain)?;
    }

    #[test]
    fn enumeration_is_the_exhaustive_set_in_cost_order(chain in any_chain(), budget_bytes in 0..120_u64) {
        let found: Vec<Solution> = in_cost_order(&chain, budget_bytes, Permutations::Every).collect();
        let keys = |plan: &Solution| (plan.cost, plan.peak_bytes);
        prop_assert!(found.is_sorted_by_key(keys));
        let mut found: Vec<Vec<Choice>> = found.into_iter().map(|plan| plan.choices).collect();
        found.sort();
        let fitting = all_plans(&chain).into_iter().filter(|plan| plan.peak_bytes <= budget_bytes);
        let mut expected: Vec<Vec<Choice>> = fitting.map(|plan| plan.choices).collect();
        expected.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn canonical_plans_are_the_best_of_their_permutations(chain in any_chain(), budget_bytes in 0..120_u64) {
        let found: Vec<Solution> = in_cost_order(&chain, budget_bytes, Permutations::Canonical).collect();
        let cheapest = cheapest(&chain, budget_bytes);
        prop_assert_eq!(found.first(), cheapest.as_ref());
        prop_assert!(found.is_sorted_by_key(|plan| (plan.cost, plan.peak_bytes)));
        let groups = canonical_key::groups(&chain, &all_plans(&chain));
        let expected: Vec<(u64, u64)> = {
            let mut least: Vec<(u64, u64)> = groups.into_values().filter(|best| best.1 <= budget_bytes).collect();
            least.sort_unstable();
            least
        };
        let mut points: Vec<(u64, u64)> = found.iter().map(|plan| (plan.cost, plan.peak_bytes)).collect();
        points.sort_unstable();
        prop_assert_eq!(points, expected);
    }

    #[test]
    fn the_order_of_options_does_not_matter(
        (chain, shuffled) in mixed_chain(6, 4).prop_flat_map(|chain| {
            let rows: Vec<_> = chain.regions().iter().map(|region| Just(region.options.clone()).prop_shuffle()).collect();
            let tail = chain.tail_bytes();
            let shuffled = rows.prop_map(move |rows| {
                Chain::new(rows.into_iter().map(|options| Region { options }).collect(), tail).unwrap()
            });
            (Just(chain), shuffled)
        }),
        budget_bytes in 0..90_u64,
    ) {
        let chosen = |chain: &Chain| -> Vec<Vec<ChainOption>> {
            cheapest(chain, budget_bytes).into_iter().chain(front(chain))
                .chain(in_cost_order(chain, budget_bytes, Permutations::Canonical))
                .map(|plan| plan.choices.iter().map(|at| chain.regions()[at.region].options[at.option]).collect())
                .collect()
        };
        prop_assert_eq!(chosen(&chain), chosen(&shuffled));
    }
}

/// With few labels, a bound is never above the truth and a plan never below it.
fn check_small_fronts(chain: &Chain, limit: usize, budget_bytes: u64) -> Result<u64, TestCaseError> {
    let small = chain.clone().with_front_limit(limit);
    let plans = all_plans(chain);
    let truth = best(&plans, budget_bytes);
    let found = cheapest(&small, budget_bytes);
    prop_assert_eq!(found.is_some(), truth.is_some());
    let mut gap = 0;
    if let (Some(found), Some((cost, _))) = (found, truth) {
        prop_assert_eq!(chain.evaluate(&found.choices), Some((found.peak_bytes, found.cost)));
        prop_assert!(found.peak_bytes <= budget_bytes);
        prop_assert!((found.cost_lower_bound..=found.cost).contains(&cost), "{:?} is not {}", found, cost);
        gap = found.gap();
    }
    let points = front(&small);
    prop_assert!(points.is_sorted_by(|a, b| a.peak_bytes < b.peak_bytes && a.cost > b.cost));
    for point in &points {
        let (cost, _) = best(&plans, point.peak_bytes).unwrap();
        prop_assert!((point.cost_lower_bound..=point.cost).contains(&cost), "{:?} is not {}", point, cost);
        gap = gap.max(point.gap());
    }
    let ends =
        |plans: &[Solution]| (plans.iter().map(|plan| plan.peak_bytes).min(), plans.iter().map(|plan| plan.cost).min());
    prop_assert_eq!(ends(&points), ends(&plans));
    let listed: Vec<Solution> = in_cost_order(&small, budget_bytes, Permutations::Every).collect();
    prop_assert!(listed.is_sorted_by_key(|plan| plan.cost));
    prop_assert_eq!(listed.len(), plans.iter().filter(|plan| plan.peak_bytes <= budget_bytes).count());
    let smallest = smallest_peak(&small).map(|plan| plan.peak_bytes);
    prop_assert_eq!(smallest, plans.iter().map(|plan| plan.peak_bytes).min());
    Ok(gap)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn small_fronts_bound_instead(chain in any_chain(), limit in 1..5_usize, budget_bytes in 0..120_u64) {
        check_small_fronts(&chain, limit, budget_bytes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Where fronts are longer than the search carries at first, with many plans of one cost.
    #[test]
    fn longer_chains_agree_with_their_front(
        rows in prop::collection::vec(prop::collection::vec((0..3000_u64, 0..20_000_u64, 0..6_u64), 2..4), 12..20),
        part in 0..100_u64,
    ) {
        let regions = rows.into_iter().map(|row| Region {
            options: row.into_iter().map(|(left, extra, cost)| ChainOption::new(left, extra, cost)).collect(),
        });
        let chain = Chain::new(regions.collect(), 0).unwrap();
        let plans = pareto(&chain);
        let smallest_bytes = smallest_peak(&chain).unwrap().peak_bytes;
        let budget_bytes = smallest_bytes + 200 * part;
        prop_assert_eq!(cheapest(&chain, budget_bytes), plans.within(budget_bytes).and_then(|index| plans.solution(index)));
        let one = chain.clone().with_front_limit(1);
        prop_assert!(cheapest(&one, smallest_bytes).is_some_and(|plan| plan.peak_bytes == smallest_bytes));
        prop_assert_eq!(smallest_bytes.checked_sub(1).and_then(|less| cheapest(&one, less)), None);
    }
}

#[test]
fn a_front_that_outgrew_its_limit_admits_a_gap() {
    // Powers of two: every subset is on the front.
    let region =
        |index: u64| Region { options: vec![ChainOption::new(1 << index, 0, 0), ChainOption::new(0, 0, 1 << index)] };
    let chain = Chain::new((0..6).map(region).collect(), 0).unwrap();
    assert_eq!(front(&chain).len(), 64);
    let gaps: Vec<u64> = (0..64).map(|budget_bytes| check_small_fronts(&chain, 3, budget_bytes).unwrap()).collect();
    assert!(gaps.iter().any(|&gap| gap > 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn eight_regions_of_four_options_equal_exhaustive_search(
        rows in prop::collection::vec(prop::collection::vec((0..1000_u64, 0..2000_u64, 0..1000_u64), 4), 8),
        tail in 0..3000_u64,
    ) {
        let regions = rows.into_iter().map(|row| Region {
            options: row.into_iter().map(|(left, extra, cost)| ChainOption::new(left, extra, cost)).collect(),
        });
        let chain = Chain::new(regions.collect(), tail).unwrap();
        let plans = all_plans(&chain);
        let mut last = None;
        for budget_bytes in (0..9000).step_by(450) {
            let found = cheapest(&chain, budget_bytes).map(|plan| (plan.cost, plan.peak_bytes));
            prop_assert_eq!(found, best(&plans, budget_bytes));
            let cost = found.map_or(u64::MAX, |found| found.0);
            prop_assert!(last.is_none_or(|last| cost <= last), "more budget costs more");
            last = Some(cost);
        }
        let points: Vec<(u64, u64)> = front(&chain).iter().map(|plan| (plan.cost, plan.peak_bytes)).collect();
        for &(cost, peak_bytes) in &points {
            prop_assert_eq!(best(&plans, peak_bytes), Some((cost, peak_bytes)));
        }
        prop_assert_eq!(points.last().copied(), best(&plans, u64::MAX));
    }
}

#[test]
fn the_first_of_identical_blocks_are_checkpointed() {
    let block = Region { options: vec![ChainOption::new(100, 150, 0), ChainOption::new(10, 190, 7)] };
    let chain = Chain::new(vec![block; 12], 30).unwrap();
    let plan = cheapest(&chain, 800).unwrap();
    // Five checkpoints leave 50 bytes, six kept blocks 600, and the seventh runs with 150.
    let options: Vec<usize> = plan.choices.iter().map(|choice| choice.option).collect();
    assert_eq!(options, [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((plan.peak_bytes, plan.cost), (800, 35));
}

#[test]
fn a_long_run_enumerates_one_plan_per_count() {
    let block = Region { options: vec![ChainOption::new(100, 150, 0), ChainOption::new(10, 190, 7)] };
    let chain = Chain::new(vec![block; 60], 0).unwrap();
    let costs: Vec<u64> = in_cost_order(&chain, u64::MAX, Permutations::Canonical).map(|plan| plan.cost).collect();
    let expected: Vec<u64> = (0..=60).map(|count| 7 * count).collect();
    assert_eq!(costs, expected);
}

#[test]
fn bytes_beyond_64_bits_do_not_fit() {
    let half = u64::MAX / 2 + 1;
    let region = Region { options: vec![ChainOption::new(half, 0, 0), ChainOption::new(1, half, 5)] };
    let chain = Chain::new(vec![region.clone(), region.clone()], 0).unwrap();
    let plan = cheapest(&chain, u64::MAX).unwrap();
    assert_eq!((plan.cost, plan.peak_bytes), (5, half + 1));
    assert_eq!(front(&chain).last().map(|plan| plan.cost), Some(5));
    assert_eq!(in_cost_order(&chain, u64::MAX, Permutations::Every).count(), 2);
    let never = Chain::new(vec![Region { options: vec![ChainOption::new(half, 0, 0)] }; 2], 0).unwrap();
    assert_eq!((cheapest(&never, u64::MAX), smallest_peak(&never)), (None, None));
    assert!(front(&never).is_empty());
}

#[test]
fn an_empty_chain_has_one_plan() {
    let chain = Chain::new(Vec::new(), 9).unwrap();
    assert_eq!(cheapest(&chain, 8), None);
    assert_eq!(cheapest(&chain, 9).map(|plan| (plan.choices.len(), plan.peak_bytes, plan.cost)), Some((0, 9, 0)));
    assert_eq!(in_cost_order(&chain, 9, Permutations::Every).count(), 1);
}

#[test]
fn unusable_chains_are_refused() {
    let region = |option| Region { options: vec![option] };
    let refused = |regions| Chain::new(regions, 0).unwrap_err();
    assert_eq!(refused(vec![Region::default()]), ChainError::NoOption { region: 0 });
    let span = refused(vec![region(ChainOption::new(0, 0, 0).over(2))]);
    assert_eq!(span, ChainError::Span { region: 0, option: 0, span: 2, left: 1 });
    assert_eq!(span.to_string(), "option 0 of region 0 covers 2 regions, 1 are left");
    assert!(matches!(refused(vec![region(ChainOption::new(0, 0, 0).over(0))]), ChainError::Span { span: 0, .. }));
    let dear = region(ChainOption::new(0, 0, u64::MAX));
    assert_eq!(refused(vec![dear.clone(), dear]), ChainError::CostOverflow);
}

#[test]
fn choices_that_are_no_plan_have_no_value() {
    let chain = Chain::new(vec![Region { options: vec![ChainOption::new(1, 2, 3)] }; 2], 0).unwrap();
    let at = |region, option| Choice { region, option };
    assert_eq!(chain.evaluate(&[at(0, 0), at(1, 0)]), Some((3, 6)));
    for choices in
        [vec![], vec![at(0, 0)], vec![at(1, 0), at(0, 0)], vec![at(0, 0), at(1, 1)], vec![at(0, 0), at(0, 0)]]
    {
        assert_eq!(chain.evaluate(&choices), None);
    }
}
