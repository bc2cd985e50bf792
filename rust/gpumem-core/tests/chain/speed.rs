//! Numbers, no verdict: `cargo test --release -p gpumem-core --test chain -- --ignored --nocapture`.

#![allow(clippy::print_stdout, reason = "they print numbers")]

use std::time::{Duration, Instant};

use gpumem_core::chain::{
    Chain, ChainOption, Permutations, Region, cheapest, front, in_cost_order, pareto, smallest_peak,
};

use crate::rivals::{Block, equal_segments, every_kth, greedy, nested_segments, rotor, segments, single_blocks};

const MIB: u64 = 1 << 20;

/// The same numbers on every machine (Knuth's multiplier of MMIX).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Options between keeping everything and checkpointing everything: more left behind, less cost, not quite in line.
fn options(numbers: &mut Numbers, count: u64) -> Vec<ChainOption> {
    let saved = 400 * MIB + numbers.below(200 * MIB);
    let cost = 2_000_000 + numbers.below(2_000_000);
    let option = |step: u64, numbers: &mut Numbers| {
        let part = |whole: u64, step: u64| whole * step / (count - 1);
        let left = 20 * MIB + part(saved, step) + numbers.below(40 * MIB);
        let price = part(cost, count - 1 - step) + numbers.below(cost / 10);
        ChainOption::new(left, saved + 100 * MIB + numbers.below(50 * MIB), price)
    };
    (0..count).map(|step| option(step, numbers)).collect()
}

fn timed<T>(work: impl Fn() -> T) -> (T, Duration) {
    let mut best = Duration::MAX;
    let mut result = work();
    for _ in 0..20 {
        let start = Instant::now();
        result = work();
        best = best.min(start.elapsed());
    }
    (result, best)
}

fn measure(name: &str, chain: &Chain) {
    let (smallest, time) = timed(|| smallest_peak(chain).unwrap());
    println!("{name}: smallest peak {} MiB in {time:?}", smallest.peak_bytes / MIB);
    let most = cheapest(chain, u64::MAX).unwrap().peak_bytes;
    for part in [10, 30, 50, 70, 90] {
        let budget_bytes = smallest.peak_bytes + (most - smallest.peak_bytes) / 100 * part;
        let (plan, time) = timed(|| cheapest(chain, budget_bytes).unwrap());
        let (found, first) = timed(|| in_cost_order(chain, budget_bytes, Permutations::Canonical).take(100).count());
        println!("  {part} %: cost {} gap {} in {time:?}; {found} in cost order in {first:?}", plan.cost, plan.gap());
    }
    let (points, lazy) = timed(|| pareto(chain).len());
    let (plans, time) = timed(|| front(chain));
    let gap = plans.iter().map(gpumem_core::chain::Solution::gap).max();
    println!("  front of {} plans, largest gap {gap:?}, in {time:?}; {points} points alone in {lazy:?}", plans.len());
}

#[test]
#[ignore = "prints times"]
fn times() {
    let mut numbers = Numbers(7);
    let block = Region { options: options(&mut numbers, 6) };
    measure("96 identical regions, 6 options", &Chain::new(vec![block.clone(); 96], 300 * MIB).unwrap());
    let shifted = (0..96).map(|index| {
        let shift =
            |option: &ChainOption| ChainOption { extra_bytes: option.extra_bytes + (96 - index) * 30 * MIB, ..*option };
        Region { options: block.options.iter().map(shift).collect() }
    });
    measure("96 regions, gradients appear", &Chain::new(shifted.collect(), 300 * MIB).unwrap());
    let distinct = (0..100).map(|_| Region { options: options(&mut numbers, 4) });
    measure("100 distinct regions, 4 options", &Chain::new(distinct.collect(), 300 * MIB).unwrap());
    let rounded = (0..96).map(|index| Region {
        options: vec![ChainOption::new(500 * MIB, 600 * MIB, 0), ChainOption::new(20 * MIB, 620 * MIB + index, 3000)],
    });
    measure("96 regions, 2 options", &Chain::new(rounded.collect(), 300 * MIB).unwrap());
}

#[test]
#[ignore = "prints a table"]
fn quality() {
    let mut numbers = Numbers(11);
    let mut block = || {
        let saved_bytes = 300 * MIB + numbers.below(300 * MIB);
        let running_bytes = saved_bytes + 50 * MIB + numbers.below(100 * MIB);
        Block {
            input_bytes: 10 * MIB + numbers.below(20 * MIB),
            saved_bytes,
            running_bytes,
            cost: 500 + numbers.below(1000),
        }
    };
    let identical = vec![block(); 48];
    let distinct: Vec<Block> = (0..48).map(|_| block()).collect();
    let few: Vec<Block> = (0..12).map(|_| block()).collect();
    for (name, blocks) in
        [("48 identical blocks", identical), ("48 distinct blocks", distinct), ("12 distinct blocks", few)]
    {
        let tail = 200 * MIB;
        let mut chains = vec![single_blocks(&blocks, tail), segments(&blocks, tail, 48)];
        if blocks.len() <= 12 {
            chains.push(nested_segments(&blocks, tail));
        }
        let kept = cheapest(&chains[0], u64::MAX).unwrap().peak_bytes;
        println!("{name}, {} MiB when kept; cost at parts of that", kept / MIB);
        println!(
            "budget   every-k    greedy equal-seg rotor(500)  time | single blocks, segments (, nested) with time"
        );
        for percent in [4, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90] {
            let budget_bytes = kept / 100 * percent;
            let shown = |cost: Option<u64>| cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string());
            let start = Instant::now();
            let rotor = shown(rotor(&blocks, tail, budget_bytes, 500));
            let rotor_time = start.elapsed();
            let ours: Vec<String> = chains
                .iter()
                .map(|chain| {
                    let (plan, time) = timed(|| cheapest(chain, budget_bytes));
                    format!("{:>6} {:>8}", shown(plan.map(|plan| plan.cost)), format!("{time:.1?}"))
                })
                .collect();
            let [kth, greedy, equal] =
                [every_kth, greedy, equal_segments].map(|rival| shown(rival(&blocks, tail, budget_bytes)));
            println!(
                "{percent:>4} % {kth:>9} {greedy:>9} {equal:>9} {rotor:>9} {rotor_time:>7.1?} | {}",
                ours.join(" ")
            );
        }
    }
}
