//! Properties of the whole engine on random loops: what the search answers is true, and nothing depends on luck.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use gpumem_core::allocator::AllocConf;
use gpumem_core::assemble::{Structure, Trace, assemble};
use gpumem_core::error::Error;
use gpumem_core::play::{Counters, play};
use gpumem_core::report::estimate;
use gpumem_core::search::{fits, max_batch};
use gpumem_core::setting::{DEFAULT_GPU, Setting};
use gpumem_core::spec::{About, Category, Event, ModelSpec, Origin, Phase};
use gpumem_core::target::{ConvWorkspaces, End, Gpu, LibraryWorkspaces, Stack};
use gpumem_core::timeline::{Action, Timeline};
use gpumem_core::units::MIB;
use proptest::prelude::*;

/// One tensor of a random forward pass.
#[derive(Debug, Clone)]
struct Tensor {
    constant_bytes: u32,
    bytes_per_sample: u32,
    /// Whether backward needs it; else it dies within the forward pass.
    saved: bool,
}

/// A random model: parameters, one forward pass, and whether its last tensor lives until the next step.
#[derive(Debug, Clone)]
struct Loop {
    params: Vec<u32>,
    forward: Vec<Tensor>,
    keeps_output: bool,
}

fn loops() -> impl Strategy<Value = Loop> {
    let tensor = (0..3_000_000_u32, 1..4_000_000_u32, any::<bool>())
        .prop_map(|(constant_bytes, bytes_per_sample, saved)| Tensor { constant_bytes, bytes_per_sample, saved });
    (prop::collection::vec(1..30_000_000_u32, 1..8), prop::collection::vec(tensor, 1..25), any::<bool>())
        .prop_map(|(params, forward, keeps_output)| Loop { params, forward, keeps_output })
}

/// Writes down what a recorder would: setup, then two steps.
struct Writer {
    batch: u64,
    events: Vec<u64>,
    sizes: Vec<i64>,
    origins: Vec<Origin>,
}

impl Writer {
    fn alloc(&mut self, bytes: u64, phase: Phase) -> u32 {
        let index = u32::try_from(self.sizes.len()).unwrap();
        self.sizes.push(i64::try_from(bytes).unwrap());
        self.origins.push(Origin { op: 0, layer: 0, phase });
        self.events.push(Event::Alloc(index).to_tagged());
        index
    }

    fn free(&mut self, index: u32) {
        self.events.push(Event::Free(index).to_tagged());
    }

    fn mark(&mut self, phase: Phase) {
        self.events.push(Event::Mark(phase).to_tagged());
    }

    fn forward(&mut self, tensors: &[Tensor]) -> Vec<u32> {
        let mut saved = Vec::new();
        for tensor in tensors {
            let bytes = u64::from(tensor.constant_bytes) + self.batch * u64::from(tensor.bytes_per_sample);
            let index = self.alloc(bytes, Phase::Forward);
            if tensor.saved { saved.push(index) } else { self.free(index) }
        }
        saved
    }
}

fn trace(model: &Loop, batch: u64) -> (Writer, Vec<Option<Category>>) {
    let mut writer = Writer { batch, events: vec![], sizes: vec![], origins: vec![] };
    let params: Vec<u32> = model.params.iter().map(|&bytes| writer.alloc(bytes.into(), Phase::Setup)).collect();
    let mut categories = vec![Some(Category::Param); params.len()];
    let mut output = None;
    for _ in 0..2 {
        writer.mark(Phase::Forward);
        let saved = writer.forward(&model.forward);
        let next = writer.alloc(1000 * batch, Phase::Forward);
        if let Some(previous) = output.replace(next) {
            writer.free(previous);
        }
        writer.mark(Phase::Backward);
        let grads: Vec<u32> = model.params.iter().map(|&bytes| writer.alloc(bytes.into(), Phase::Backward)).collect();
        for index in saved.into_iter().rev() {
            writer.free(index);
        }
        writer.mark(Phase::Optimizer);
        for grad in grads {
            writer.free(grad);
        }
        if !model.keeps_output {
            writer.free(next);
            output = None;
        }
        writer.mark(Phase::End);
    }
    categories.resize(writer.sizes.len(), None);
    (writer, categories)
}

fn spec_of(model: &Loop) -> ModelSpec {
    let (first, categories) = trace(model, 2);
    let structure = Structure {
        about: About::default(),
        ops: vec!["op".to_owned()],
        layers: vec![(String::new(), "Model".to_owned())],
        origins: first.origins.clone(),
        categories,
        formulas: vec![],
    };
    let traces: Vec<Trace> = [2, 3, 5]
        .map(|batch| {
            let (writer, _) = trace(model, batch);
            Trace { batch, events: writer.events, sizes: writer.sizes, arguments: vec![], flops: vec![(0, 0)] }
        })
        .into();
    assemble(structure, &traces).unwrap()
}

fn setting(budget_bytes: u64) -> Setting {
    Setting {
        gpu: Gpu::by_name(DEFAULT_GPU).unwrap(),
        gpu_asked: None,
        stack: Stack::MEASURED,
        budget_bytes: Some(budget_bytes),
        context_override_bytes: Some(0),
        alloc_conf: AllocConf::default(),
        library_workspaces: LibraryWorkspaces::Modelled,
        cudnn_benchmark: false,
        conv_workspaces: ConvWorkspaces::Rules { because: String::new() },
    }
}

/// Random loops per property; `PROPTEST_CASES` in the environment overrides it.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not(model in loops(), budget_mib in 300..4000_u64) {
        let spec = spec_of(&model);
        let setting = setting(budget_mib * MIB);
        match max_batch(&spec, &setting) {
            Ok(batch) => {
                prop_assert!(fits(&spec, batch, &setting).unwrap());
                prop_assert!(!fits(&spec, batch + 1, &setting).unwrap());
                prop_assert_eq!(estimate(&spec, batch, &setting).unwrap().fits, Some(true));
            }
            Err(Error::NothingFits { .. }) => prop_assert!(!fits(&spec, 1, &setting).unwrap()),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// Of two budgets the larger is not always the kinder: see `more_budget_can_give_a_smaller_batch`. It is as long as
    /// the allocator never had to give its cached segments back, since nothing that it does then depends on the limit.
    #[test]
    fn what_fits_without_a_retry_fits_with_more_budget(
        model in loops(), batch in 1..200_u64, percent in 90..110_u64, more_mib in 1..500_u64
    ) {
        let spec = spec_of(&model);
        let needs_bytes = estimate(&spec, batch, &setting(1 << 50)).unwrap().reserved_peak.high;
        let less_bytes = needs_bytes * percent / 100;
        let less = estimate(&spec, batch, &setting(less_bytes)).unwrap();
        prop_assert_eq!(less.fits == Some(true) && less.num_alloc_retries == 0, needs_bytes <= less_bytes);
        if needs_bytes <= less_bytes {
            let more = estimate(&spec, batch, &setting(less_bytes + more_mib * MIB)).unwrap();
            prop_assert_eq!((more.fits, more.reserved_peak), (Some(true), less.reserved_peak));
        }
    }

    #[test]
    fn quantities_are_ordered_and_everything_is_freed(model in loops(), batch in 1..64_u64) {
        let spec = spec_of(&model);
        let setting = setting(1 << 50);
        let report = estimate(&spec, batch, &setting).unwrap();
        prop_assert!(report.requested_peak.likely <= report.allocated_peak.likely);
        prop_assert!(report.allocated_peak.likely <= report.reserved_peak.likely);
        prop_assert!(report.reserved_peak.likely <= report.device_peak.likely);
        prop_assert_eq!(report.breakdown.values().sum::<u64>(), report.allocated_peak.likely);

        let mut timeline = Timeline::new(&spec, batch, &setting.target(End::Likely)).unwrap();
        let mut alive: Vec<u32> = vec![];
        for action in &timeline.actions {
            match *action {
                Action::Alloc(request) => alive.push(request),
                Action::Free(request) => alive.retain(|&other| other != request),
                Action::Mark(_) | Action::EmptyCache => {}
            }
        }
        timeline.actions.extend(alive.into_iter().map(Action::Free));
        let end = play(&timeline, &setting.alloc_conf, setting.driver(End::Likely).unwrap(), |_, _| ()).end;
        prop_assert_eq!(Counters { reserved_bytes: 0, ..end }, Counters::default());
    }

    #[test]
    fn the_third_step_is_the_second_again(model in loops(), batch in 1..64_u64) {
        let spec = spec_of(&model);
        let timeline = Timeline::new(&spec, batch, &setting(1 << 50).target(End::Likely)).unwrap();
        let ends: Vec<usize> = timeline
            .actions
            .iter()
            .enumerate()
            .filter_map(|(at, action)| (*action == Action::Mark(Phase::End)).then_some(at))
            .collect();
        prop_assert_eq!(ends.len(), 3);
        let sizes = |range: &[Action]| -> Vec<i64> {
            let bytes = |request: u32| i64::try_from(timeline.requests[request as usize].bytes).unwrap();
            range
                .iter()
                .map(|action| match *action {
                    Action::Alloc(request) => bytes(request),
                    Action::Free(request) => -bytes(request),
                    Action::Mark(_) | Action::EmptyCache => 0,
                })
                .collect()
        };
        prop_assert_eq!(sizes(&timeline.actions[ends[0]..ends[1]]), sizes(&timeline.actions[ends[1]..ends[2]]));
    }

    #[test]
    fn json_is_the_spec(model in loops()) {
        let spec = spec_of(&model);
        prop_assert_eq!(ModelSpec::from_json(&spec.to_json().unwrap()).unwrap(), spec);
    }
}

/// `PyTorch` 2.14.1's allocator, asked on the virtual GPU with `set_per_process_memory_fraction`, says the same of these
/// sizes: at 1,680 MiB a retry gives back what a later request could have used, and with 16 MiB more it does not come.
#[test]
fn more_budget_can_give_a_smaller_batch() {
    let forward = [
        (0, 3_407_873, false),
        (0, 2_696_647, true),
        (1_031_809, 2_880_128, true),
        (2_223_924, 1_327_786, true),
        (1_553_363, 1_919_408, false),
        (1_420_856, 3_551_339, true),
        (1_555_860, 2_904_396, false),
        (2_298_901, 3_164_252, false),
        (945_283, 716_367, true),
        (2_498_358, 3_670_703, false),
        (2_745_071, 1_959_911, true),
        (1_886_576, 2_016_451, true),
        (1_603_671, 3_864_875, true),
    ];
    let model = Loop {
        params: vec![10_485_249, 1],
        forward: forward
            .map(|(constant_bytes, bytes_per_sample, saved)| Tensor { constant_bytes, bytes_per_sample, saved })
            .into(),
        keeps_output: true,
    };
    let spec = spec_of(&model);
    let [less, more] = [1680, 1696].map(|mib| estimate(&spec, 76, &setting(mib * MIB)).unwrap());
    assert_eq!((less.fits, less.num_alloc_retries, less.reserved_peak.high), (Some(true), 1, 1672 * MIB));
    assert_eq!(more.fits, Some(false));
    assert_eq!(max_batch(&spec, &setting(1680 * MIB)).unwrap(), 76);
    assert_eq!(max_batch(&spec, &setting(1696 * MIB)).unwrap(), 75);
}

#[test]
fn a_damaged_spec_is_refused() {
    let model = Loop {
        params: vec![1000],
        forward: vec![Tensor { constant_bytes: 0, bytes_per_sample: 8, saved: true }],
        keeps_output: true,
    };
    let spec = spec_of(&model);
    let text = spec.to_json().unwrap();
    assert!(matches!(ModelSpec::from_json("{"), Err(Error::InvalidSpec { .. })));
    assert!(matches!(
        ModelSpec::from_json(&text.replacen("\"schema\":1", "\"schema\":99", 1)),
        Err(Error::SchemaVersion { found: 99, .. })
    ));
    let mut twice = spec.clone();
    twice.steps[0].push(Event::Alloc(0));
    assert!(matches!(twice.validate(), Err(Error::InvalidSpec { .. })));
    let mut dangling = spec.clone();
    dangling.steps[1].push(Event::Free(10_000));
    assert!(matches!(dangling.validate(), Err(Error::InvalidSpec { .. })));
    let mut carried_twice = spec;
    let pairs = carried_twice.carried.as_mut().unwrap();
    let first = pairs[0];
    pairs.push(first);
    assert!(matches!(carried_twice.validate(), Err(Error::InvalidSpec { .. })));
}

#[test]
fn other_events_at_another_batch_are_reported_with_the_place() {
    let model = Loop { params: vec![1000], forward: vec![], keeps_output: false };
    let (first, categories) = trace(&model, 2);
    let structure = Structure {
        about: About::default(),
        ops: vec!["aten.mm.default".to_owned()],
        layers: vec![("encoder".to_owned(), "Linear".to_owned())],
        origins: first.origins.clone(),
        categories,
        formulas: vec![],
    };
    let plain =
        |batch, events| Trace { batch, events, sizes: first.sizes.clone(), arguments: vec![], flops: vec![(0, 0)] };
    let mut other = first.events.clone();
    other.swap(3, 4);
    let error = assemble(structure, &[plain(2, first.events.clone()), plain(3, other)]).unwrap_err();
    assert!(
        matches!(&error, Error::BatchDependent { first: 2, second: 3, position: 3, layer, .. } if layer == "encoder"),
        "{error}"
    );
}
