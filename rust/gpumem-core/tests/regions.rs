//! Plans joined from traced variants are what the program does when it runs so.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "regions/program.rs"]
mod program;

use gpumem_core::allocator::AllocConf;
use gpumem_core::error::Error;
use gpumem_core::play::play;
use gpumem_core::poly::Poly;
use gpumem_core::regions::{Played, RegionSpace, RegionTrace, Variant};
use gpumem_core::setting::{DEFAULT_GPU, Setting};
use gpumem_core::spec::{Event, ModelSpec};
use gpumem_core::target::{ConvWorkspaces, End, Gpu, LibraryWorkspaces, Stack, Target};
use gpumem_core::timeline::{Action, Timeline};
use proptest::prelude::*;

use program::{Block, Program, WAYS, Way};

const BATCH: u64 = 3;

fn setting(budget_bytes: Option<u64>) -> Setting {
    Setting {
        gpu: Gpu::by_name(DEFAULT_GPU).unwrap(),
        gpu_asked: None,
        stack: Stack::MEASURED,
        budget_bytes,
        context_override_bytes: Some(0),
        alloc_conf: AllocConf::default(),
        library_workspaces: LibraryWorkspaces::Modelled,
        cudnn_benchmark: false,
        conv_workspaces: ConvWorkspaces::Rules { because: String::new() },
    }
}

fn target() -> Target {
    setting(None).target(End::High)
}

/// With frees in a row in the order of their requests: the allocator is the same after them in any order.
fn in_order(mut actions: Vec<Played>) -> Vec<Played> {
    let is_free = |action: &Played| matches!(action, Played::Free(_));
    for frees in actions.chunk_by_mut(|a, b| is_free(a) && is_free(b)) {
        frees.sort_unstable_by_key(|action| match *action {
            Played::Free(request) => request,
            Played::Request { .. } => 0,
        });
    }
    actions
}

/// Requests and frees of a spec.
fn actions(spec: &ModelSpec) -> Vec<Played> {
    let timeline = Timeline::new(spec, BATCH, &target()).unwrap();
    let action = |action: &Action| match *action {
        Action::Alloc(request) => {
            let request = &timeline.requests[request as usize];
            Some(Played::Request { bytes: request.bytes, dispensable: request.dispensable })
        }
        Action::Free(request) => Some(Played::Free(request as usize)),
        Action::Mark(_) | Action::EmptyCache => None,
    };
    in_order(timeline.actions.iter().filter_map(action).collect())
}

fn choices(regions: usize) -> impl Iterator<Item = Vec<usize>> {
    let count = WAYS.len().pow(u32::try_from(regions).unwrap());
    (0..count).map(move |mut number| {
        let mut choice = vec![0; regions];
        for variant in &mut choice {
            *variant = number % WAYS.len();
            number /= WAYS.len();
        }
        choice
    })
}

/// Joined, played by the search, and run so: all the same.
fn assert_joined_as_run(program: &Program, space: &RegionSpace, choice: &[usize]) {
    let ways: Vec<Way> = choice.iter().map(|&variant| WAYS[variant]).collect();
    let truth = program.run(&ways);
    let truth_actions = actions(&truth);
    let joined = space.splice(choice).unwrap();
    assert_eq!(actions(&joined), truth_actions, "{choice:?}");
    assert_eq!(in_order(space.played(choice, BATCH, &target()).unwrap()), truth_actions, "{choice:?}");
    assert_eq!(joined.carried.is_some(), truth.carried.is_some());
}

fn three() -> Vec<Block> {
    vec![Block::PLAIN, Block { output: 900_000, ..Block::PLAIN }, Block { inner: [500_000, 4_000_000], ..Block::PLAIN }]
}

fn assert_every_mixture(program: &Program) {
    let space = program.space();
    for choice in choices(program.blocks.len()) {
        assert_joined_as_run(program, &space, &choice);
    }
}

#[test]
fn neighbours_share_what_passes_between_them() {
    assert_every_mixture(&Program::new(three()));
}

#[test]
fn three_regions_share_what_the_first_made() {
    let blocks = three().into_iter().map(|block| Block { saves_bias: true, ..block }).collect();
    assert_every_mixture(&Program::new(blocks));
}

/// Every plan of four blocks with segments of two, three and four of them is what the program does.
#[test]
fn segments_of_several_regions_join_with_all_others() {
    let program = Program::new([three(), vec![Block { output: 300_000, renews: true, ..Block::PLAIN }]].concat());
    let sets = [vec![(0, 2), (2, 2)], vec![(1, 3)], vec![(0, 3)], vec![(1, 2)], vec![(0, 4)]];
    let mut variants: Vec<Variant> = WAYS.into_iter().map(|way| program.variant(way)).collect();
    variants.extend(sets.iter().map(|segments| program.segments_variant(segments)));
    let space = RegionSpace::new(program.paths(), variants.clone()).unwrap();
    let mut joined = 0;
    for number in 0..variants.len().pow(4) {
        let choice: Vec<usize> = (0..4).map(|region| number / variants.len().pow(region) % variants.len()).collect();
        let torn = |(region, &variant): (usize, &usize)| {
            let own = variants[variant].segment(region);
            (variant >= WAYS.len() && own.len() == 1) || own.clone().any(|other| choice[other] != variant)
        };
        if choice.iter().enumerate().any(torn) {
            assert!(matches!(space.splice(&choice), Err(Error::Regions { .. })), "{choice:?}");
            continue;
        }
        let ways: Vec<Way> = choice.iter().map(|&variant| WAYS.get(variant).copied().unwrap_or(Way::Segment)).collect();
        let mut segments: Vec<(usize, usize)> = (choice.iter().enumerate())
            .map(|(region, &variant)| variants[variant].segment(region))
            .filter_map(|segment| (segment.len() > 1).then_some((segment.start, segment.len())))
            .collect();
        segments.dedup();
        let truth = actions(&program.run_with(&ways, &segments));
        assert_eq!(actions(&space.splice(&choice).unwrap()), truth, "{choice:?}");
        assert_eq!(in_order(space.played(&choice, BATCH, &target()).unwrap()), truth, "{choice:?}");
        joined += 1;
    }
    // Without a segment 3^4; with one of the five sets, the rest as it likes: 19 + 3 + 3 + 9 + 1.
    assert_eq!(joined, 116);
}

#[test]
fn segments_must_be_of_several_regions_that_exist_and_be_apart() {
    let program = Program::new(three());
    for segments in [vec![(0, 1)], vec![(2, 2)], vec![(0, 2), (1, 2)], vec![(1, 2), (0, 1)]] {
        let (spec, trace) = program.traced(&[Way::Keep; 3]);
        let variant = Variant::cut(spec, RegionTrace { segments, ..trace }).unwrap();
        let variants = vec![program.variant(Way::Keep), variant];
        assert!(matches!(RegionSpace::new(program.paths(), variants), Err(Error::InvalidSpec { .. })));
    }
}

#[test]
fn outputs_that_persist_or_do_not() {
    for keeps_output in [true, false] {
        let program = Program { keeps_output, ..Program::new(three()) };
        assert_every_mixture(&program);
        let spec = program.space().splice(&[1, 0, 2]).unwrap();
        assert!(spec.carried.is_some_and(|carried| carried.len() >= 2));
    }
}

#[test]
fn a_region_that_is_called_twice() {
    let program = Program { calls: vec![0, 1, 0, 2, 1], ..Program::new(three()) };
    assert_every_mixture(&program);
}

#[test]
fn regions_without_events() {
    let mut blocks = three();
    blocks[1].idle = true;
    assert_every_mixture(&Program::new(blocks));
}

#[test]
fn gradients_that_a_kernel_replaces_are_renumbered() {
    let blocks = three().into_iter().map(|block| Block { renews: true, ..block }).collect();
    let program = Program::new(blocks);
    assert_every_mixture(&program);
    let names = |spec: &ModelSpec| -> Vec<Poly> {
        spec.formulas.iter().filter(|call| call.kind == "layer_norm_backward").map(|call| call.arguments[3]).collect()
    };
    let space = program.space();
    let (kept, mixed) = (space.splice(&[0, 0, 0]).unwrap(), space.splice(&[1, 2, 1]).unwrap());
    assert_eq!(names(&kept).len(), names(&mixed).len());
    assert_ne!(names(&kept), names(&mixed));
    for call in names(&mixed) {
        let gradient = usize::try_from(call.at(BATCH).unwrap()).unwrap();
        assert_eq!(mixed.allocations[gradient].bytes, Poly::constant(5_000_000).unwrap());
    }
}

#[test]
fn a_handles_workspace_is_requested_once() {
    let space = Program::new(three()).space();
    for choice in [[0, 0, 0], [1, 1, 1], [2, 1, 0]] {
        let spec = space.splice(&choice).unwrap();
        let calls = spec.steps.iter().flatten().filter(|event| match **event {
            Event::Scratch { call, .. } => spec.formulas[call as usize].kind == "cublas_workspace",
            _ => false,
        });
        // One for the thread of the forward pass, one for autograd's.
        assert_eq!(calls.count(), 2, "{choice:?}");
    }
}

#[test]
fn everything_returns_to_what_persists() {
    let program = Program { keeps_output: false, ..Program::new(three()) };
    let space = program.space();
    let mut ends = Vec::new();
    for choice in choices(3) {
        let timeline = Timeline::new(&space.splice(&choice).unwrap(), BATCH, &target()).unwrap();
        let outcome = play(&timeline, &AllocConf::default(), setting(None).driver(End::High).unwrap(), |_, _| ());
        ends.push(outcome.end.requested_bytes);
        assert!(outcome.peak.requested_bytes > outcome.end.requested_bytes);
    }
    // Parameters, the last batch and loss, two cuBLAS workspaces: whatever the plan.
    ends.dedup();
    assert_eq!(ends.len(), 1, "{ends:?}");
}

#[test]
fn a_variant_that_does_other_things_outside_regions_is_refused() {
    let program = Program::new(three());
    let other = Program { keeps_output: false, ..program.clone() };
    let longer = Program { calls: vec![0, 1, 2, 0], ..program.clone() };
    for (variant, reason) in [
        (other.variant(Way::Checkpoint), ""),
        (longer.variant(Way::Checkpoint), "regions are not run in the same order"),
    ] {
        let joined = RegionSpace::new(program.paths(), vec![program.variant(Way::Keep), variant]);
        if reason.is_empty() {
            // Only frees differ: the two can be joined.
            assert!(joined.is_ok());
        } else {
            assert!(matches!(joined, Err(Error::Regions { variant: 1, reason: found }) if found == reason));
        }
    }
    let mut renamed = program.variant(Way::Checkpoint);
    let batch = renamed.spec.steps[1].iter().find_map(|event| match event {
        Event::Alloc(index) => Some(*index),
        _ => None,
    });
    renamed.spec.allocations[batch.unwrap() as usize].bytes = Poly::constant(7).unwrap();
    let joined = RegionSpace::new(program.paths(), vec![program.variant(Way::Keep), renamed]);
    assert!(matches!(joined, Err(Error::Regions { variant: 1, .. })));
}

#[test]
fn a_region_that_requests_something_else_stays_as_it_is() {
    let program = Program::new(three());
    let mut changed = program.clone();
    changed.blocks[1].inner[0] += 512;
    let variants = vec![program.variant(Way::Keep), changed.variant(Way::Checkpoint)];
    let space = RegionSpace::new(program.paths(), variants).unwrap();
    // The one behind it takes its output, which has no counterpart.
    assert_eq!([0, 1, 2].map(|region| space.is_allowed(region, 1)), [true, false, false]);
    assert!(matches!(space.splice(&[0, 1, 0]), Err(Error::Regions { variant: 1, .. })));
    assert!(matches!(space.splice(&[0, 0, 2]), Err(Error::Regions { variant: 2, .. })));
    assert!(matches!(space.splice(&[0, 0]), Err(Error::Regions { .. })));
    let truth = program.run(&[Way::Checkpoint, Way::Keep, Way::Keep]);
    assert_eq!(actions(&space.splice(&[1, 0, 0]).unwrap()), actions(&truth));
    let found = space.cheapest_plan(BATCH, &setting(Some(u64::MAX >> 20)), None).unwrap().unwrap();
    assert_eq!(found.choice, [0, 0, 0]);
}

#[test]
fn notes_out_of_order_are_refused() {
    let program = Program::new(three());
    let (spec, trace) = program.traced(&[Way::Keep; 3]);
    let mut borders = trace.clone();
    borders.borders.swap(0, 3);
    let mut touches = trace.clone();
    touches.touches.reverse();
    for damaged in [borders, touches] {
        assert!(matches!(Variant::cut(spec.clone(), damaged), Err(Error::InvalidSpec { .. })));
    }
    assert!(matches!(RegionSpace::new(vec![], vec![]), Err(Error::InvalidSpec { .. })));
    // A region that is not among the paths.
    let variant = Variant::cut(spec.clone(), trace.clone()).unwrap();
    assert!(matches!(RegionSpace::new(vec!["block0".to_owned()], vec![variant]), Err(Error::InvalidSpec { .. })));
    // A touch of an allocation that is not there.
    let touches = vec![(trace.touches[0].0, u32::MAX - 1, trace.touches[0].2)];
    let variant = Variant::cut(spec, RegionTrace { touches, ..trace }).unwrap();
    assert!(matches!(RegionSpace::new(program.paths(), vec![variant]), Err(Error::InvalidSpec { .. })));
}

#[test]
fn json_keeps_everything() {
    let program = Program { calls: vec![0, 1, 0, 2], ..Program::new(three()) };
    let space = program.space();
    let again = RegionSpace::from_json(&space.to_json().unwrap()).unwrap();
    assert_eq!(again, space);
    assert_joined_as_run(&program, &again, &[2, 1, 0]);
    for text in ["", "[]", r#"{"paths": [], "variants": []}"#] {
        assert!(matches!(RegionSpace::from_json(text), Err(Error::InvalidSpec { .. })));
    }
    let damaged = space.to_json().unwrap().replacen("\"start\":0", "\"start\":1", 1);
    assert!(matches!(RegionSpace::from_json(&damaged), Err(Error::InvalidSpec { .. })));
}

/// Cost and reserved bytes of every plan.
fn every_plan(space: &RegionSpace) -> Vec<(Vec<usize>, u64, u64)> {
    let plan = |choice: Vec<usize>| {
        let cost = space.recompute_ps(&choice, BATCH, &setting(None)).unwrap();
        let timeline = Timeline::new(&space.splice(&choice).unwrap(), BATCH, &target()).unwrap();
        let driver = setting(None).driver(End::High).unwrap();
        let outcome = play(&timeline, &AllocConf::default(), driver, |_, _| ());
        (choice, cost, outcome.peak.reserved_bytes)
    };
    choices(space.paths().len()).map(plan).collect()
}

/// For every budget: what is found fits, is the cheapest of all that fit, and is no slower than with less budget.
fn assert_cheapest(space: &RegionSpace) {
    let plans = every_plan(space);
    let mut budgets: Vec<u64> = plans.iter().flat_map(|&(_, _, bytes)| [bytes, bytes - (2 << 20)]).collect();
    budgets.sort_unstable();
    budgets.dedup();
    for budget in budgets {
        let limited = setting(Some(budget));
        let fitting = plans.iter().filter(|(choice, ..)| space.fits(choice, BATCH, &limited).unwrap());
        let cheapest = fitting.map(|&(_, cost, _)| cost).min();
        // All of these programs' plans are few enough to be played.
        let found = space.cheapest_plan(BATCH, &limited, Some(usize::MAX)).unwrap();
        assert_eq!(found.as_ref().map(|found| found.recompute_ps), cheapest, "{budget}");
        if let Some(found) = found {
            assert!(space.fits(&found.choice, BATCH, &limited).unwrap());
            assert_eq!(space.recompute_ps(&found.choice, BATCH, &limited).unwrap(), found.recompute_ps);
            assert!(found.recompute_lower_bound_ps <= found.recompute_ps);
            let without_luck = plans.iter().filter(|&&(_, _, bytes)| bytes <= budget).map(|&(_, cost, _)| cost).min();
            assert!(without_luck.is_none_or(|cost| found.recompute_ps <= cost));
        }
    }
}

#[test]
fn the_cheapest_of_all_that_fit_is_found() {
    assert_cheapest(&Program::new(three()).space());
    let blocks = (0..5).map(|block| Block { inner: [2_000_000 + 300_000 * block, 800_000], ..Block::PLAIN }).collect();
    assert_cheapest(&Program::new(blocks).space());
}

#[test]
fn the_smallest_budget_does() {
    let space = Program::new(three()).space();
    let smallest_bytes = space.smallest_bytes(BATCH, &setting(None)).unwrap();
    assert!(space.cheapest_plan(BATCH, &setting(Some(smallest_bytes)), None).unwrap().is_some());
    assert_eq!(every_plan(&space).into_iter().map(|(_, _, bytes)| bytes).min(), Some(smallest_bytes));
    let largest = space.max_batch(&setting(Some(4 * smallest_bytes))).unwrap();
    assert!(largest > BATCH);
    assert!(space.cheapest_plan(largest, &setting(Some(4 * smallest_bytes)), None).unwrap().is_some());
    assert!(matches!(space.max_batch(&setting(Some(1 << 20))), Err(Error::NothingFits { .. })));
    assert!(matches!(space.max_batch(&setting(None)), Err(Error::NoBudget)));
}

fn programs() -> impl Strategy<Value = Program> {
    let block = (
        [0..4_000_000_u32, 0..2_000_000_u32],
        1..1_500_000_u32,
        1..3_000_000_u32,
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
    );
    let block = block.prop_map(|(inner, output, gradient, saves_bias, renews, idle)| Block {
        inner,
        output,
        gradient,
        saves_bias,
        renews,
        idle,
    });
    (prop::collection::vec(block, 1..6), any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..4))
        .prop_map(|(blocks, keeps_output, again)| {
            let calls = (0..blocks.len()).chain(again.iter().map(|index| index.index(blocks.len()))).collect();
            Program { blocks, calls, keeps_output }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_uniform_plan_is_the_variant(program in programs()) {
        let space = program.space();
        for (variant, way) in WAYS.into_iter().enumerate() {
            let joined = space.splice(&vec![variant; program.blocks.len()]).unwrap();
            let own = program.run(&vec![way; program.blocks.len()]);
            prop_assert_eq!(actions(&joined), actions(&own));
            prop_assert_eq!(joined.carried.is_some(), own.carried.is_some());
        }
    }

    #[test]
    fn any_mixture_is_joined_as_it_runs(program in programs(), seed in prop::collection::vec(0..WAYS.len(), 6)) {
        let choice = &seed[..program.blocks.len()];
        assert_joined_as_run(&program, &program.space(), choice);
    }
}
