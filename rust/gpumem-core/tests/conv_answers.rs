//! A library that says the workspaces of convolutions: what it says is played, and where it is silent the rules are.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gpumem_core::allocator::AllocConf;
use gpumem_core::assemble::{Structure, Trace, assemble};
use gpumem_core::error::Error;
use gpumem_core::report::estimate;
use gpumem_core::search::{fits, max_batch};
use gpumem_core::setting::{DEFAULT_GPU, Setting};
use gpumem_core::spec::{About, Event, ModelSpec, Origin, Phase, convolutions};
use gpumem_core::target::{ConvIntegers, ConvLibrary, ConvWorkspaces, Gpu, LibraryWorkspaces, Stack};

const MIB: u64 = 1 << 20;

/// Answers with some bytes per sample, or not at all.
#[derive(Debug)]
struct Library {
    bytes_per_sample: Option<u64>,
    fails: bool,
    asked: AtomicUsize,
    batches: Mutex<Vec<i64>>,
}

impl Library {
    fn new(bytes_per_sample: Option<u64>, fails: bool) -> Arc<Self> {
        Arc::new(Self { bytes_per_sample, fails, asked: AtomicUsize::new(0), batches: Mutex::default() })
    }
}

impl ConvLibrary for Library {
    fn name(&self) -> String {
        "cuDNN 1.2.3".to_owned()
    }

    fn workspaces(&self, gpu: &Gpu, calls: &[ConvIntegers]) -> Result<Vec<Option<u64>>, String> {
        assert_eq!(gpu.name, DEFAULT_GPU);
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.batches.lock().unwrap().extend(calls.iter().map(|call| call[7]));
        if self.fails {
            return Err("it is out".to_owned());
        }
        let bytes = |call: &ConvIntegers| Some(self.bytes_per_sample? * u64::try_from(call[7]).unwrap());
        Ok(calls.iter().map(bytes).collect())
    }
}

fn integers(batch: i64) -> Vec<i64> {
    // Forward, fp32 with TF32, NCHW, one group, two dimensions; 64 channels of 56 x 56; 3 x 3.
    [vec![0, 0, 1, 0, 0, 1, 2, batch, 64, 64], vec![56, 56, 3, 3, 1, 1, 1, 1, 1, 1]].concat()
}

/// A loop of one convolution whose output of 1 MiB per sample stays for the step.
fn spec() -> ModelSpec {
    let origin = Origin { op: 0, layer: 0, phase: Phase::Forward };
    let structure = Structure {
        about: About::default(),
        ops: vec!["aten.convolution.default".to_owned()],
        layers: vec![(String::new(), "Conv2d".to_owned())],
        origins: vec![origin],
        categories: vec![None],
        formulas: vec![("conv_workspace".to_owned(), origin); 2],
    };
    let scratch = |call| Event::Scratch { call, stage: 0 };
    let events = [Event::Mark(Phase::Forward), Event::Alloc(0), scratch(0), scratch(1), Event::Free(0)];
    let events: Vec<u64> = events.into_iter().chain([Event::Mark(Phase::End)]).map(Event::to_tagged).collect();
    let traces = [2, 3, 67].map(|batch: u64| {
        let arguments = integers(i64::try_from(batch).unwrap());
        Trace {
            batch,
            events: events.clone(),
            sizes: vec![i64::try_from(batch * MIB).unwrap()],
            arguments: vec![arguments.clone(), arguments],
            flops: vec![(0, 0)],
        }
    });
    assemble(structure, &traces).unwrap()
}

fn setting(conv_workspaces: ConvWorkspaces) -> Setting {
    Setting {
        gpu: Gpu::by_name(DEFAULT_GPU).unwrap(),
        gpu_asked: None,
        stack: Stack::MEASURED,
        budget_bytes: None,
        context_override_bytes: Some(0),
        alloc_conf: AllocConf::default(),
        library_workspaces: LibraryWorkspaces::Modelled,
        cudnn_benchmark: false,
        conv_workspaces,
    }
}

fn asking(library: &Arc<Library>, required: bool) -> Setting {
    setting(ConvWorkspaces::Library { library: Arc::<Library>::clone(library), required })
}

fn rules() -> Setting {
    setting(ConvWorkspaces::Rules { because: "nobody is there".to_owned() })
}

fn said(setting: &Setting) -> String {
    let report = estimate(&spec(), 8, setting).unwrap();
    report.assumptions.into_iter().find(|line| line.starts_with("convolution workspaces")).unwrap_or_default()
}

#[test]
fn equal_calls_are_one_question() {
    assert_eq!(convolutions([&spec(), &spec()], 8).unwrap(), vec![integers(8)]);
    assert_eq!(convolutions([&spec()], 0), Err(Error::ZeroBatch));
}

#[test]
fn what_the_library_says_is_played_and_the_range_closes() {
    let (by_rules, library) = (estimate(&spec(), 8, &rules()).unwrap(), Library::new(Some(5 * MIB), false));
    let report = estimate(&spec(), 8, &asking(&library, false)).unwrap();
    assert_eq!(report.requested_peak.likely, 8 * MIB + 8 * 5 * MIB);
    assert_eq!(report.requested_peak.low, report.requested_peak.high);
    assert!(by_rules.requested_peak.low < by_rules.requested_peak.high);
    // One question for the three ends.
    assert_eq!(library.asked.load(Ordering::Relaxed), 1);
    assert_eq!(said(&asking(&library, false)), "convolution workspaces: cuDNN 1.2.3's own answers for rtx3090");
}

#[test]
fn where_it_is_silent_the_rules_speak_and_the_report_says_so() {
    let by_rules = estimate(&spec(), 8, &rules()).unwrap();
    let expected = [
        (Library::new(None, false), "rules for 1 convolution"),
        (Library::new(None, true), "rules fitted to cuDNN's answers, with a range (it is out)"),
    ];
    for (library, words) in expected {
        let report = estimate(&spec(), 8, &asking(&library, false)).unwrap();
        assert_eq!(report.requested_peak, by_rules.requested_peak);
        let said = said(&asking(&library, false));
        assert!(said.contains(words), "{said}");
    }
    assert!(said(&rules()).ends_with("with a range (nobody is there)"));
}

#[test]
fn a_library_that_is_required_and_out_is_an_error() {
    let setting = asking(&Library::new(None, true), true);
    assert_eq!(estimate(&spec(), 8, &setting), Err(Error::ConvLibrary { reason: "it is out".to_owned() }));
}

#[test]
fn without_workspaces_nobody_is_asked() {
    let library = Library::new(Some(MIB), false);
    let setting = Setting { library_workspaces: LibraryWorkspaces::Zero, ..asking(&library, true) };
    assert_eq!(said(&setting), "");
    assert_eq!(library.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn the_largest_batch_is_by_its_answers_and_few_batches_are_asked_about() {
    for bytes_per_sample in [0, MIB, 20 * MIB] {
        let library = Library::new(Some(bytes_per_sample), false);
        let setting = Setting { budget_bytes: Some(1 << 30), ..asking(&library, true) };
        let largest = max_batch(&spec(), &setting).unwrap();
        let mut batches = library.batches.lock().unwrap().clone();
        batches.sort_unstable();
        batches.dedup();
        assert!(batches.len() <= 24, "{batches:?}");
        assert!(fits(&spec(), largest, &setting).unwrap());
        assert!(!fits(&spec(), largest + 1, &setting).unwrap());
    }
}
