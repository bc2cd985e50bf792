//! From a spec to the exact list of requests and frees for one batch on one target.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::formula::{self, Step};
use crate::spec::{Category, Event, ModelSpec, Origin, Phase};
use crate::target::Target;

/// Steps that are played: state appears in the first, the second starts with leftovers of the first, and the third
/// shows that nothing grows.
pub const STEPS: usize = 3;

/// One request of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Requested bytes, never zero.
    pub bytes: u64,
    /// Who asks.
    pub origin: Origin,
    /// What for.
    pub category: Category,
    /// Whether the program goes on without it: a convolution's workspace, for which cuDNN has a plan with less.
    pub dispensable: bool,
}

/// One event of the timeline. Numbers index [`Timeline::requests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Request memory.
    Alloc(u32),
    /// Give it back.
    Free(u32),
    /// A phase begins.
    Mark(Phase),
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
}

/// Requests and frees of setup and [`STEPS`] steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Every request, in order.
    pub requests: Vec<Request>,
    /// Every event, in order.
    pub actions: Vec<Action>,
}

/// No request stands in this place.
const NONE: u32 = u32::MAX;
/// Slots of a formula call.
const SLOTS: usize = 32;

impl Timeline {
    /// The timeline of `spec` at `batch` on `target`.
    ///
    /// # Errors
    /// [`Error::ZeroBatch`], [`Error::OnlyBatch`], [`Error::SizeOverflow`] or [`Error::Formula`];
    /// [`Error::InvalidSpec`] when something is freed twice.
    pub fn new(spec: &ModelSpec, batch: u64, target: &Target) -> Result<Self, Error> {
        spec.check_batch(batch)?;
        let mut builder = Builder {
            spec,
            batch,
            target,
            timeline: Self::default(),
            alive: Vec::new(),
            current: vec![NONE; spec.allocations.len()],
            slots: vec![[NONE; SLOTS]; spec.formulas.len()],
            kinds: spec.formulas.iter().map(|call| formula::kind_index(&call.kind).unwrap_or(usize::MAX)).collect(),
            stages: vec![None; spec.formulas.len()],
            measured: BTreeSet::new(),
        };
        for events in &spec.steps {
            builder.play(events)?;
        }
        if let (Some(carried), Some(last)) = (&spec.carried, spec.steps.last()) {
            // What the last step left takes the place of what it freed, then the step happens again.
            for _ in spec.steps.len() - 1..STEPS {
                let left: Vec<u32> = carried.iter().map(|&(_, left)| builder.current[left as usize]).collect();
                for (&(freed, _), request) in carried.iter().zip(left) {
                    builder.current[freed as usize] = request;
                }
                builder.play(last)?;
            }
        }
        Ok(builder.timeline)
    }
}

struct Builder<'a> {
    spec: &'a ModelSpec,
    batch: u64,
    target: &'a Target,
    timeline: Timeline,
    /// Whether each request has not been freed yet.
    alive: Vec<bool>,
    /// The request that each allocation of the spec stands for now.
    current: Vec<u32>,
    slots: Vec<[u32; SLOTS]>,
    kinds: Vec<usize>,
    stages: Vec<Option<formula::Stages>>,
    /// Convolutions that cuDNN has measured, by their integers.
    measured: BTreeSet<Vec<i64>>,
}

impl Builder<'_> {
    fn play(&mut self, events: &[Event]) -> Result<(), Error> {
        for event in events {
            match *event {
                Event::Alloc(index) => self.allocate(index)?,
                Event::Free(index) => {
                    self.free(self.current[index as usize], self.spec.allocations[index as usize].origin)?;
                }
                Event::Scratch { call, stage } => self.scratch(call as usize, usize::from(stage))?,
                Event::Mark(phase) => self.timeline.actions.push(Action::Mark(phase)),
            }
        }
        Ok(())
    }

    fn allocate(&mut self, index: u32) -> Result<(), Error> {
        let allocation = &self.spec.allocations[index as usize];
        let bytes = allocation.bytes.at(self.batch).and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| self.overflow(allocation.origin))?;
        self.current[index as usize] = self.request(bytes, allocation.origin, allocation.category, false);
        Ok(())
    }

    fn request(&mut self, bytes: u64, origin: Origin, category: Category, dispensable: bool) -> u32 {
        if bytes == 0 {
            return NONE;
        }
        let Ok(index) = u32::try_from(self.timeline.requests.len()) else { return NONE };
        self.timeline.requests.push(Request { bytes, origin, category, dispensable });
        self.timeline.actions.push(Action::Alloc(index));
        self.alive.push(true);
        index
    }

    fn free(&mut self, request: u32, origin: Origin) -> Result<(), Error> {
        if request == NONE {
            return Ok(());
        }
        // A trace cannot do it; a file that was edited can.
        if !std::mem::replace(&mut self.alive[request as usize], false) {
            let reason = format!("{} in '{}' is freed twice", self.op(origin), self.layer(origin));
            return Err(Error::InvalidSpec { reason });
        }
        self.timeline.actions.push(Action::Free(request));
        Ok(())
    }

    fn scratch(&mut self, call: usize, stage: usize) -> Result<(), Error> {
        let spec = self.spec;
        let formula_call = &spec.formulas[call];
        let origin = formula_call.origin;
        if self.stages[call].is_none() {
            let arguments = formula_call.arguments.iter().map(|poly| poly.at(self.batch)).collect::<Option<Vec<_>>>();
            let arguments = arguments.ok_or_else(|| self.overflow(origin))?;
            let stages = formula::expand(self.kinds[call], &arguments, self.target)
                .map_err(|source| Error::Formula { op: self.op(origin), layer: self.layer(origin), source })?;
            self.stages[call] = Some(stages);
            if self.target.cudnn_benchmark
                && formula_call.kind == formula::convolution::KIND
                && self.measured.insert(arguments)
            {
                self.timeline.actions.push(Action::EmptyCache);
            }
        }
        let steps = self.stages[call].as_ref().and_then(|stages| stages.get(stage)).cloned().unwrap_or_default();
        for step in steps {
            match step {
                Step::Alloc { slot, bytes } => {
                    self.slots[call][usize::from(slot)] = self.request(bytes, origin, Category::Workspace, false);
                }
                Step::TryAlloc { slot, bytes } => {
                    self.slots[call][usize::from(slot)] = self.request(bytes, origin, Category::Workspace, true);
                }
                Step::Renew { slot, allocation } => {
                    let Some(&former) = self.current.get(allocation as usize) else {
                        let reason = format!("{} in '{}' names no allocation", self.op(origin), self.layer(origin));
                        return Err(Error::InvalidSpec { reason });
                    };
                    self.slots[call][usize::from(slot)] = former;
                    self.allocate(allocation)?;
                }
                Step::Free { slot } => self.free(self.slots[call][usize::from(slot)], origin)?,
            }
        }
        Ok(())
    }

    fn op(&self, origin: Origin) -> String {
        self.spec.ops[origin.op as usize].clone()
    }

    fn layer(&self, origin: Origin) -> String {
        self.spec.layers[origin.layer as usize].path.clone()
    }

    fn overflow(&self, origin: Origin) -> Error {
        Error::SizeOverflow { op: self.op(origin), layer: self.layer(origin), batch: self.batch }
    }
}
