//! The rotor program and the chain search agree where memory is not rounded; nothing else is cheaper.

use gpumem_core::chain::{Chain, cheapest};
use proptest::prelude::*;

use crate::rivals::{Block, equal_segments, every_kth, greedy, nested_segments, rotor, segments, single_blocks};

fn block(bytes: u64) -> impl Strategy<Value = Block> {
    (0..bytes, 1..bytes, 0..bytes, 1..20_u64).prop_map(|(input_bytes, saved_bytes, running_bytes, cost)| Block {
        input_bytes,
        saved_bytes,
        running_bytes: saved_bytes + running_bytes,
        cost,
    })
}

fn least_cost(chain: &Chain, budget_bytes: u64) -> Option<u64> {
    cheapest(chain, budget_bytes).map(|plan| plan.cost)
}

/// As a number that "does not fit" exceeds.
fn or_never(cost: Option<u64>) -> u64 {
    cost.unwrap_or(u64::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn nested_segments_cost_what_rotor_finds(blocks in prop::collection::vec(block(9), 1..=7), tail in 0..12_u64) {
        let chain = nested_segments(&blocks, tail);
        for budget_bytes in (0..110).step_by(3) {
            let slots = usize::try_from(budget_bytes).unwrap();
            prop_assert_eq!(least_cost(&chain, budget_bytes), rotor(&blocks, tail, budget_bytes, slots), "{}", budget_bytes);
        }
    }

    #[test]
    fn nothing_is_cheaper(blocks in prop::collection::vec(block(1 << 20), 1..=12), tail in 0..1_u64 << 20, part in 1..=20_u64) {
        let everything = blocks.iter().map(|block| block.saved_bytes).sum::<u64>() + (1 << 21);
        let budget_bytes = everything / 20 * part;
        let single = or_never(least_cost(&single_blocks(&blocks, tail), budget_bytes));
        prop_assert!(single <= or_never(every_kth(&blocks, tail, budget_bytes)));
        prop_assert!(single <= or_never(greedy(&blocks, tail, budget_bytes)));
        let whole = or_never(least_cost(&segments(&blocks, tail, blocks.len()), budget_bytes));
        prop_assert!(whole <= single);
        prop_assert!(whole <= or_never(equal_segments(&blocks, tail, budget_bytes)));
        let nested = or_never(least_cost(&nested_segments(&blocks, tail), budget_bytes));
        prop_assert!(nested <= whole);
        prop_assert!(nested <= or_never(rotor(&blocks, tail, budget_bytes, 50)));
    }
}
