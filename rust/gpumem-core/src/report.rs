//! The answer to one what-if: four quantities with their uncertainty, and what makes them up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocator::Driver;
use crate::error::Error;
use crate::formula::convolution;
use crate::play::{Counters, Outcome, PhasePeak, play};
use crate::setting::Setting;
use crate::spec::{Category, ModelSpec, Origin, Phase};
use crate::target::{Capability, ConvWorkspaces, End, Gpu, LibraryWorkspaces, Range, Stack, Target};
use crate::timeline::{Action, Timeline};
use crate::units::Bytes;

/// CUDA 13 dropped Maxwell, Pascal and Volta (NVIDIA's release notes).
const OLDEST_OF_CUDA_13: Capability = Capability::new(7, 5);

/// A peak in bytes with both ends of its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantity {
    /// No less than this is expected.
    pub low: u64,
    /// The best single answer.
    pub likely: u64,
    /// No more than this is expected.
    pub high: u64,
}

impl Quantity {
    /// Of the values at the low end of the uncertainty, the likely one, and the high end. Larger workspaces can fill a
    /// gap that smaller ones leave, so they need not come in order.
    pub(crate) fn of_ends(ends: [u64; 3]) -> Self {
        let [a, likely, b] = ends;
        Self { low: a.min(likely).min(b), likely, high: a.max(likely).max(b) }
    }

    /// Reserved bytes and those of the CUDA context.
    pub(crate) const fn with_context(self, context: Range) -> Self {
        Self {
            low: self.low.saturating_add(context.low_bytes),
            likely: self.likely.saturating_add(context.likely_bytes),
            high: self.high.saturating_add(context.high_bytes),
        }
    }
}

/// What the bytes at the peak are for, by layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerBytes {
    /// Module path, empty for the model itself and everything outside a module.
    pub path: String,
    /// Class of the module.
    pub kind: String,
    /// Requested bytes at the peak, by category.
    pub requested_bytes: BTreeMap<String, u64>,
    /// Their sum.
    pub total_bytes: u64,
}

/// Where and how the run stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemoryReport {
    /// Step from 0.
    pub step: usize,
    /// Phase of the failing request.
    pub phase: String,
    /// Layer that asked.
    pub layer: String,
    /// ATen op that asked.
    pub op: String,
    /// Bytes it asked for.
    pub requested_bytes: u64,
    /// What `torch.OutOfMemoryError` would say.
    pub message: String,
}

/// The answer to one what-if.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Model, input, loop, in words.
    pub model: String,
    /// The input, with the batch written `b`.
    pub input: String,
    /// `train` or `infer`.
    pub mode: String,
    /// Precision.
    pub precision: String,
    /// Optimizer.
    pub optimizer: String,
    /// Loss.
    pub criterion: String,
    /// Batch size.
    pub batch: u64,
    /// Canonical name of the card.
    pub gpu: String,
    /// Software stack.
    pub stack: String,
    /// The allocator's configuration.
    pub alloc_conf: String,
    /// Bytes asked for by the program.
    pub requested_peak: Quantity,
    /// `torch.cuda.max_memory_allocated()`.
    pub allocated_peak: Quantity,
    /// `torch.cuda.max_memory_reserved()`.
    pub reserved_peak: Quantity,
    /// Reserved plus the context: what nvidia-smi shows.
    pub device_peak: Quantity,
    /// The CUDA context.
    pub context: Quantity,
    /// The budget of the process, if there is one.
    pub budget_bytes: Option<u64>,
    /// Whether the loop runs through within the budget at the upper end of the uncertainty.
    pub fits: Option<bool>,
    /// The out-of-memory, if it does not.
    pub out_of_memory: Option<OutOfMemoryReport>,
    /// Times the cache had to be released to go on.
    pub num_alloc_retries: u64,
    /// Convolution calls whose workspace was out of memory, so that cuDNN takes a slower plan.
    pub num_ooms: u64,
    /// Requested bytes by category at the peak of allocated bytes; `rounding` is what blocks are larger.
    pub breakdown: BTreeMap<String, u64>,
    /// The same by layer, largest first.
    pub layers: Vec<LayerBytes>,
    /// Where the peak is.
    pub peak_phase: String,
    /// Peaks by step and phase.
    pub phases: Vec<PhasePeak>,
    /// What was assumed.
    pub assumptions: Vec<String>,
    /// ATen ops that were never compared with CUDA.
    pub unsupported: Vec<String>,
}

/// Answers one what-if.
///
/// # Errors
/// [`Error`] for a batch the spec does not answer for, a size overflow or a budget below the context.
pub fn estimate(spec: &ModelSpec, batch: u64, setting: &Setting) -> Result<Report, Error> {
    let budget_bytes = setting.budget_bytes();
    let mut failure = None;
    let mut outcomes = Vec::with_capacity(3);
    let mut likely = Timeline::default();
    let target = setting.target_for([spec], batch, End::Likely)?;
    for end in [End::Low, End::Likely, End::High] {
        let timeline = Timeline::new(spec, batch, &target.at(end))?;
        let mut outcome = play(&timeline, &setting.alloc_conf, setting.driver(end)?, |_, _| ());
        if let Some(stopped) = outcome.failure {
            if end == End::High {
                failure = Some(out_of_memory(spec, &timeline, &stopped));
            }
            // How much it would have needed.
            outcome = play(&timeline, &setting.alloc_conf, Driver::unlimited(), |_, _| ());
        }
        if end == End::Likely {
            likely = timeline;
        }
        outcomes.push(outcome);
    }
    let (context, context_source) = setting.context();
    let quantity = |of: &dyn Fn(&Outcome) -> u64| Quantity::of_ends([0, 1, 2].map(|end: usize| of(&outcomes[end])));
    let reserved_peak = quantity(&|outcome| outcome.peak.reserved_bytes);
    let (breakdown, layers, peak_phase) = at_peak(spec, &likely, &outcomes[1]);
    Ok(Report {
        model: spec.about.model.clone(),
        input: spec.about.input.clone(),
        mode: spec.about.mode.clone(),
        precision: spec.about.precision.clone(),
        optimizer: spec.about.optimizer.clone(),
        criterion: spec.about.criterion.clone(),
        batch,
        gpu: setting.gpu.name.clone(),
        stack: setting.stack.to_string(),
        alloc_conf: setting.alloc_conf.to_string(),
        requested_peak: quantity(&|outcome| outcome.peak.requested_bytes),
        allocated_peak: quantity(&|outcome| outcome.peak.allocated_bytes),
        reserved_peak,
        device_peak: reserved_peak.with_context(context),
        context: Quantity { low: context.low_bytes, likely: context.likely_bytes, high: context.high_bytes },
        budget_bytes,
        fits: budget_bytes.map(|_| failure.is_none()),
        out_of_memory: failure,
        num_alloc_retries: outcomes[1].num_alloc_retries,
        num_ooms: outcomes[1].num_ooms,
        breakdown,
        layers,
        peak_phase: peak_phase.name().to_owned(),
        phases: outcomes[1].phases.clone(),
        assumptions: assumptions(spec, batch, setting, &target, context_source, &likely)?,
        unsupported: spec.about.unverified_ops.clone(),
    })
}

fn out_of_memory(spec: &ModelSpec, timeline: &Timeline, failure: &crate::play::Failure) -> OutOfMemoryReport {
    let Action::Alloc(request) = timeline.actions[failure.action] else {
        unreachable!("only requests fail");
    };
    let request = timeline.requests[request as usize];
    OutOfMemoryReport {
        step: failure.step,
        phase: request.origin.phase.name().to_owned(),
        layer: spec.layers[request.origin.layer as usize].path.clone(),
        op: spec.ops[request.origin.op as usize].clone(),
        requested_bytes: request.bytes,
        message: failure.out_of_memory.message(0, None),
    }
}

type AtPeak = (BTreeMap<String, u64>, Vec<LayerBytes>, Phase);

/// Who holds the bytes when the allocated bytes are at their peak.
fn at_peak(spec: &ModelSpec, timeline: &Timeline, outcome: &Outcome) -> AtPeak {
    let mut alive = vec![false; timeline.requests.len()];
    let mut phase = Phase::Setup;
    for action in &timeline.actions[..=outcome.peak_action.min(timeline.actions.len().saturating_sub(1))] {
        match *action {
            Action::Alloc(request) => alive[request as usize] = true,
            Action::Free(request) => alive[request as usize] = false,
            Action::Mark(next) => phase = next,
            Action::EmptyCache => {}
        }
    }
    let mut breakdown: BTreeMap<String, u64> = Category::ALL.iter().map(|c| (c.name().to_owned(), 0)).collect();
    let mut by_layer: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    let mut total = 0_u64;
    for request in alive.iter().zip(&timeline.requests).filter_map(|(&alive, request)| alive.then_some(request)) {
        let name = request.category.name().to_owned();
        *breakdown.entry(name.clone()).or_default() += request.bytes;
        *by_layer.entry(request.origin.layer).or_default().entry(name).or_default() += request.bytes;
        total += request.bytes;
    }
    breakdown.insert("rounding".to_owned(), outcome.peak.allocated_bytes.saturating_sub(total));
    let mut layers: Vec<LayerBytes> = by_layer
        .into_iter()
        .map(|(layer, requested_bytes)| LayerBytes {
            path: spec.layers[layer as usize].path.clone(),
            kind: spec.layers[layer as usize].kind.clone(),
            total_bytes: requested_bytes.values().sum(),
            requested_bytes,
        })
        .collect();
    layers.sort_by(|a, b| b.total_bytes.cmp(&a.total_bytes).then_with(|| a.path.cmp(&b.path)));
    (breakdown, layers, phase)
}

fn assumptions(
    spec: &ModelSpec,
    batch: u64,
    setting: &Setting,
    target: &Target,
    context_source: &str,
    timeline: &Timeline,
) -> Result<Vec<String>, Error> {
    let mut found = spec.about.assumptions.clone();
    found.extend(which_gpu(setting)?);
    if setting.gpu_asked.is_some() && setting.budget_bytes.is_some_and(|bytes| bytes > setting.gpu.total_bytes) {
        found.push(format!("the budget is more than {} has: {:#}", setting.gpu.name, Bytes(setting.gpu.total_bytes)));
    }
    found.push(format!("CUDA context: {context_source}"));
    found.extend(conv_source(spec, setting, target));
    if setting.cudnn_benchmark {
        found.push(
            "cudnn.benchmark empties the cache at each new convolution; which plan wins the measurement is not known \
             (workspaces are those of cuDNN's first plans), and its buffer can raise the peaks of the first step"
                .to_owned(),
        );
    }
    let capability = setting.gpu.capability.to_string();
    if spec.about.depends_on_capability && capability != spec.about.capability {
        found.push(format!(
            "kernels were chosen for compute capability {}, {} has {capability}: extract with gpu=\"{}\" for its own",
            spec.about.capability, setting.gpu.name, setting.gpu.name
        ));
    }
    if setting.gpu.capability < OLDEST_OF_CUDA_13 && setting.stack.cuda.is_some_and(|cuda| cuda.major >= 13) {
        found.push(format!(
            "builds for CUDA 13 have no kernels for compute capability {capability}: pass the stack of your {}",
            setting.gpu.name
        ));
    }
    let traced = Stack::traced(&spec.about.torch);
    if setting.stack.torch != traced.torch {
        found.push(format!(
            "the program's requests are those of {traced}, with which it was traced; of {} only the CUDA context, the \
             size of cuBLAS's workspace and the rules for convolutions are its own",
            setting.stack
        ));
    }
    if batch == 1 && !spec.traced_batches.contains(&1) {
        found.push(
            "batch 1 was extrapolated from larger batches: dimensions of size 1 can change memory formats".to_owned(),
        );
    }
    if spec.carried.is_none() && spec.steps.len() <= crate::timeline::STEPS {
        found.push(unsteady(timeline));
    }
    found.extend(
        spec.about.host_reads.iter().map(|site| format!("a value read by the program was taken as zero: {site}")),
    );
    Ok(found)
}

/// Who said how large the workspaces of convolutions are, where there are any.
fn conv_source(spec: &ModelSpec, setting: &Setting, target: &Target) -> Option<String> {
    if target.library_workspaces == LibraryWorkspaces::Zero
        || !spec.formulas.iter().any(|call| call.kind == convolution::KIND)
    {
        return None;
    }
    let rules = |because: &str| {
        let because = if because.is_empty() { String::new() } else { format!(" ({because})") };
        format!("convolution workspaces: rules fitted to cuDNN's answers, with a range{because}")
    };
    Some(match (&target.conv_answers, &setting.conv_workspaces) {
        (Some(said), _) => match &said.failure {
            Some(reason) => rules(reason),
            None if said.unanswered == 0 => {
                format!("convolution workspaces: {}'s own answers for {}", said.library, setting.gpu.name)
            }
            None => format!(
                "convolution workspaces: {}'s own answers for {}; rules for {} convolutions that it has no plan for",
                said.library, setting.gpu.name, said.unanswered
            ),
        },
        (None, ConvWorkspaces::Rules { because }) => rules(because),
        (None, ConvWorkspaces::Library { .. }) => return None,
    })
}

/// What was decided about the card, unless the user named exactly one.
fn which_gpu(setting: &Setting) -> Result<Option<String>, Error> {
    let sized = |gpu: &Gpu| format!("{} ({:#})", gpu.name, Bytes(gpu.total_bytes));
    let Some(asked) = &setting.gpu_asked else {
        return Ok(Some(format!("no GPU named: kernels and context of {}", setting.gpu.name)));
    };
    let others: Vec<String> = setting.gpu.also_meant_by(asked)?.into_iter().map(sized).collect();
    let said = (!others.is_empty()).then(|| {
        format!("\"{asked}\" is several cards: {} was taken, not {}", sized(setting.gpu), others.join(" or "))
    });
    Ok(said)
}

/// What a loop leaves behind that does not repeat itself.
fn unsteady(timeline: &Timeline) -> String {
    let mut held: u64 = 0;
    let mut after_steps = Vec::new();
    for action in &timeline.actions {
        match *action {
            Action::Alloc(request) => held += timeline.requests[request as usize].bytes,
            Action::Free(request) => held -= timeline.requests[request as usize].bytes,
            Action::Mark(Phase::End) => after_steps.push(held),
            Action::Mark(_) | Action::EmptyCache => {}
        }
    }
    match after_steps[..] {
        [.., before, last] if last > before => format!(
            "memory grows from step to step: step {} left {} more than the one before, and a longer run needs more than \
             this answer, which is for {} steps (is a loss or an output kept without .item() or .detach()?)",
            after_steps.len(),
            Bytes(last - before),
            after_steps.len(),
        ),
        _ => format!(
            "no steady state was reached: steps differ in what they leave behind, and the answer is for {} steps only",
            after_steps.len()
        ),
    }
}

/// One row of the full timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineRow {
    /// The action.
    pub action: Action,
    /// Bytes requested or freed; zero at the begin of a phase.
    pub bytes: u64,
    /// Who asked for them.
    pub origin: Origin,
    /// Counters after it.
    pub counters: Counters,
}

/// The whole run, action by action, without a limit.
///
/// # Errors
/// As [`estimate`].
pub fn timeline(spec: &ModelSpec, batch: u64, setting: &Setting) -> Result<Vec<TimelineRow>, Error> {
    let timeline = Timeline::new(spec, batch, &setting.target_for([spec], batch, End::Likely)?)?;
    let mut rows = Vec::with_capacity(timeline.actions.len());
    let mut current = Phase::Setup;
    play(&timeline, &setting.alloc_conf, Driver::unlimited(), |index, counters| {
        let action = timeline.actions[index];
        if let Action::Mark(phase) = action {
            current = phase;
        }
        let (bytes, origin) = match action {
            Action::Alloc(request) | Action::Free(request) => {
                let request = timeline.requests[request as usize];
                (request.bytes, request.origin)
            }
            Action::Mark(_) | Action::EmptyCache => (0, Origin { op: 0, layer: 0, phase: current }),
        };
        rows.push(TimelineRow { action, bytes, origin, counters });
    });
    Ok(rows)
}
