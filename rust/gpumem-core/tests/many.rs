//! Many what-ifs at once are the what-ifs one by one, and what is said without playing is true of what is played.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "regions/program.rs"]
#[allow(dead_code, reason = "the other test that has it needs more of it")]
mod program;

use gpumem_core::allocator::AllocConf;
use gpumem_core::grid::figures;
use gpumem_core::report::estimate;
use gpumem_core::search::fits;
use gpumem_core::setting::Setting;
use gpumem_core::spec::ModelSpec;
use gpumem_core::target::{ConvWorkspaces, Gpu, LibraryWorkspaces, Stack};
use proptest::prelude::*;

use program::{Block, Program, WAYS};

const CARDS: [&str; 3] = ["rtx3090", "t4", "h100"];
const CONFS: [&str; 4] = [
    "",
    "expandable_segments:True",
    "garbage_collection_threshold:0.5",
    "max_split_size_mb:64,roundup_power2_divisions:8",
];
/// Two groups of lanes, the second one with room.
const BATCHES: [u64; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 21, 30, 33, 47, 64, 70, 90];
const CASES: u32 = 24;

fn setting(card: &str, conf: &str, budget_bytes: Option<u64>) -> Setting {
    Setting {
        gpu: Gpu::by_name(card).unwrap(),
        gpu_asked: None,
        stack: Stack::MEASURED,
        budget_bytes,
        context_override_bytes: Some(0),
        alloc_conf: AllocConf::parse(conf).unwrap(),
        library_workspaces: LibraryWorkspaces::Modelled,
        cudnn_benchmark: false,
        conv_workspaces: ConvWorkspaces::Rules { because: String::new() },
    }
}

fn programs() -> impl Strategy<Value = Program> {
    let size = || 1..6_000_000_u32;
    let block = (size(), size(), size(), size(), any::<bool>(), any::<bool>()).prop_map(
        |(first, second, output, gradient, saves_bias, renews)| Block {
            inner: [first, second],
            output,
            gradient,
            saves_bias,
            renews,
            idle: false,
        },
    );
    (prop::collection::vec(block, 1..6), any::<bool>())
        .prop_map(|(blocks, keeps_output)| Program { keeps_output, ..Program::new(blocks) })
}

fn assert_one_by_one(spec: &ModelSpec, batches: &[u64], settings: &[Setting]) {
    let many = figures(spec, batches, settings, false, 2);
    let upper = figures(spec, batches, settings, true, 1);
    for ((&batch, answers), upper) in batches.iter().zip(&many).zip(&upper) {
        for ((setting, answer), upper) in settings.iter().zip(answers).zip(upper) {
            let answer = answer.as_ref().unwrap();
            let report = estimate(spec, batch, setting).unwrap();
            assert_eq!(answer.requested_peak, report.requested_peak);
            assert_eq!(answer.allocated_peak, report.allocated_peak);
            assert_eq!(answer.reserved_peak, report.reserved_peak, "batch {batch}, {setting:?}");
            assert_eq!(answer.device_peak, report.device_peak);
            assert_eq!(answer.fits, report.fits, "batch {batch}, {setting:?}");
            assert_eq!(upper.as_ref().unwrap().fits, report.fits);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn a_grid_is_its_what_ifs(program in programs(), seed in prop::collection::vec(0..WAYS.len(), 6)) {
        let spec = program.space().splice(&seed[..program.blocks.len()]).unwrap();
        let needs = |batch| estimate(&spec, batch, &setting(CARDS[0], "", None)).unwrap().reserved_peak.high;
        let near = needs(8);
        let budgets = [None, Some(near), Some(near - (2 << 20)), Some(near * 9 / 10), Some(near * 3 / 4), Some(near / 4)];
        let settings: Vec<Setting> = CARDS
            .iter()
            .flat_map(|card| CONFS.iter().map(move |conf| (card, conf)))
            .flat_map(|(card, conf)| budgets.iter().map(move |&budget| setting(card, conf, budget)))
            .collect();
        assert_one_by_one(&spec, &[1, 8, 9], &settings);
    }

    #[test]
    fn a_table_of_plans_is_true_of_each(program in programs(), seeds in prop::collection::vec(prop::collection::vec(0..WAYS.len(), 6), 1..8)) {
        let space = program.space();
        let choices: Vec<Vec<usize>> = seeds.iter().map(|seed| seed[..program.blocks.len()].to_vec()).collect();
        let unlimited = setting(CARDS[0], "", None);
        let table = space.plan_table(&choices, &BATCHES, &unlimited, 2).unwrap();
        prop_assert_eq!(&table, &space.plan_table(&choices, &BATCHES, &unlimited, 1).unwrap());
        for (row, (choice, &batch)) in choices.iter().flat_map(|choice| BATCHES.iter().map(move |batch| (choice, batch))).enumerate() {
            let spec = space.splice(choice).unwrap();
            let report = estimate(&spec, batch, &unlimited).unwrap();
            let least = table.least_reserved_bytes[row];
            prop_assert_eq!(table.requested_bytes[row], report.requested_peak.high);
            prop_assert!(least <= report.allocated_peak.high);
            prop_assert_eq!(table.recompute_ps[row], space.recompute_ps(choice, batch, &unlimited).unwrap());
            // Whatever the allocator does, with less than that nothing gets through.
            for conf in CONFS {
                prop_assert!(!fits(&spec, batch, &setting(CARDS[0], conf, Some(least - 1))).unwrap());
            }
        }
    }

    #[test]
    fn a_front_falls_and_each_plan_gets_through(program in programs()) {
        let space = program.space();
        let unlimited = setting(CARDS[0], "", None);
        let (plans, step_ps) = space.pareto_front(8, &unlimited, 16).unwrap();
        prop_assert!(step_ps > 0 && !plans.is_empty());
        prop_assert_eq!(plans.last().unwrap().recompute_ps, 0);
        for pair in plans.windows(2) {
            prop_assert!(pair[0].reserved_bytes < pair[1].reserved_bytes && pair[0].recompute_ps > pair[1].recompute_ps);
        }
        for plan in &plans {
            let limited = setting(CARDS[0], "", Some(plan.reserved_bytes));
            prop_assert!(space.fits(&plan.choice, 8, &limited).unwrap());
            prop_assert_eq!(plan.recompute_ps, space.recompute_ps(&plan.choice, 8, &unlimited).unwrap());
            let found = space.cheapest_plan(8, &limited, None).unwrap().unwrap();
            prop_assert!(found.recompute_ps >= plan.recompute_ps);
        }
        let least = space.smallest_bytes(8, &unlimited).unwrap();
        prop_assert!(plans[0].reserved_bytes <= least);
    }
}
