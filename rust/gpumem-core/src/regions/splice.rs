//! The loop under one plan.

use std::collections::BTreeMap;

use crate::assemble::carried;
use crate::error::Error;
use crate::formula::allocation_arguments;
use crate::poly::Poly;
use crate::regions::cut::Run;
use crate::regions::matching::NONE;
use crate::regions::space::RegionSpace;
use crate::spec::{Allocation, Event, FormulaCall, ModelSpec, Origin, SCHEMA_VERSION};

/// Formula of a handle's workspace, recorded at every call: only the first one requests it.
pub(super) const CUBLAS_WORKSPACE: &str = "cublas_workspace";

/// A place in the joined steps: step, run, and twice the event, plus one for the event itself.
type Place = (usize, usize, usize);

impl RegionSpace {
    /// The spec of the loop in which region `i` runs as in variant `choice[i]`.
    ///
    /// # Errors
    /// [`Error::Regions`] when a choice does not exist or cannot be joined; [`Error::InvalidSpec`] when the joined events
    /// contradict each other.
    pub fn splice(&self, choice: &[usize]) -> Result<ModelSpec, Error> {
        self.check(choice)?;
        let mut joiner = Joiner::new(self, choice);
        for step in 0..self.variants[0].steps.len() {
            joiner.join_step(step)?;
        }
        joiner.finish()
    }

    /// Whether every region can run as chosen.
    pub(super) fn check(&self, choice: &[usize]) -> Result<(), Error> {
        if choice.len() != self.paths.len() {
            let reason = format!("{} choices for {} regions", choice.len(), self.paths.len());
            return Err(Error::Regions { variant: 0, reason });
        }
        for (region, &variant) in choice.iter().enumerate() {
            if !self.is_allowed(region, variant) {
                let reason = format!("'{}' cannot be joined with the others", self.paths[region]);
                return Err(Error::Regions { variant, reason });
            }
            let mut segment = self.variants[variant].segment(region);
            if segment.any(|region| choice[region] != variant) {
                let reason = format!("'{}' is checkpointed as one with others that run otherwise", self.paths[region]);
                return Err(Error::Regions { variant, reason });
            }
        }
        Ok(())
    }
}

struct Joiner<'a> {
    space: &'a RegionSpace,
    choice: &'a [usize],
    /// Keys that end at each place, in order.
    ends: BTreeMap<Place, Vec<u32>>,
    /// The joined allocation that each key stands for.
    of_key: Vec<u32>,
    /// The same for allocations without a key, by variant.
    of_own: Vec<BTreeMap<u32, u32>>,
    /// Joined formula calls by variant and call.
    calls: Vec<BTreeMap<u32, u32>>,
    /// Threads whose handle's workspace was requested.
    workspaces: Vec<Vec<Poly>>,
    op_index: BTreeMap<&'a str, u32>,
    ops: Vec<String>,
    allocations: Vec<Allocation>,
    formulas: Vec<FormulaCall>,
    steps: Vec<Vec<Event>>,
}

impl<'a> Joiner<'a> {
    fn new(space: &'a RegionSpace, choice: &'a [usize]) -> Self {
        let variants = space.variants.len();
        Self {
            space,
            choice,
            ends: ends(space, choice),
            of_key: vec![NONE; space.matching.keys()],
            of_own: vec![BTreeMap::new(); variants],
            calls: vec![BTreeMap::new(); variants],
            workspaces: Vec::new(),
            op_index: BTreeMap::new(),
            ops: Vec::new(),
            allocations: Vec::new(),
            formulas: Vec::new(),
            steps: Vec::new(),
        }
    }

    fn join_step(&mut self, step: usize) -> Result<(), Error> {
        self.steps.push(Vec::new());
        for number in 0..self.space.variants[0].steps[step].len() {
            let variant = chosen(&self.space.variants[0].steps[step][number], self.choice);
            let source = &self.space.variants[variant];
            let run = &source.steps[step][number];
            for at in run.events.clone() {
                self.end((step, number, 2 * at));
                match source.spec.steps[step][at] {
                    Event::Alloc(index) => self.allocate(variant, index)?,
                    Event::Free(index) if self.space.matching.key_of[variant][index as usize] == NONE => {
                        let Some(&joined) = self.of_own[variant].get(&index) else {
                            return Err(contradiction("frees what it did not request"));
                        };
                        self.push(Event::Free(joined));
                    }
                    Event::Free(_) => self.end((step, number, 2 * at + 1)),
                    Event::Scratch { call, stage } => self.scratch(variant, call, stage)?,
                    Event::Mark(phase) => self.push(Event::Mark(phase)),
                }
            }
            self.end((step, number, 2 * run.events.end));
        }
        Ok(())
    }

    fn push(&mut self, event: Event) {
        if let Some(step) = self.steps.last_mut() {
            step.push(event);
        }
    }

    fn end(&mut self, place: Place) {
        for key in self.ends.remove(&place).unwrap_or_default() {
            let joined = self.of_key[key as usize];
            if joined != NONE {
                self.push(Event::Free(joined));
            }
        }
    }

    fn allocate(&mut self, variant: usize, index: u32) -> Result<(), Error> {
        let allocation = &self.space.variants[variant].spec.allocations[index as usize];
        let joined = number(self.allocations.len())?;
        let origin = self.origin(variant, allocation.origin)?;
        self.allocations.push(Allocation { origin, ..allocation.clone() });
        match self.space.matching.key_of[variant][index as usize] {
            NONE => {
                self.of_own[variant].insert(index, joined);
            }
            key => self.of_key[key as usize] = joined,
        }
        self.push(Event::Alloc(joined));
        Ok(())
    }

    fn origin(&mut self, variant: usize, origin: Origin) -> Result<Origin, Error> {
        let name = &self.space.variants[variant].spec.ops[origin.op as usize];
        if let Some(&op) = self.op_index.get(name.as_str()) {
            return Ok(Origin { op, ..origin });
        }
        let op = number(self.ops.len())?;
        self.ops.push(name.clone());
        self.op_index.insert(name, op);
        Ok(Origin { op, ..origin })
    }

    fn scratch(&mut self, variant: usize, call: u32, stage: u8) -> Result<(), Error> {
        let source = &self.space.variants[variant].spec.formulas[call as usize];
        if source.kind == CUBLAS_WORKSPACE {
            if self.workspaces.contains(&source.arguments) {
                return Ok(());
            }
            self.workspaces.push(source.arguments.clone());
        }
        let joined = if let Some(&joined) = self.calls[variant].get(&call) {
            joined
        } else {
            let joined = number(self.formulas.len())?;
            let origin = self.origin(variant, source.origin)?;
            let arguments = self.arguments(variant, source)?;
            self.formulas.push(FormulaCall { kind: source.kind.clone(), arguments, origin });
            self.calls[variant].insert(call, joined);
            joined
        };
        self.push(Event::Scratch { call: joined, stage });
        Ok(())
    }

    /// The call's arguments, those that name allocations renamed.
    fn arguments(&self, variant: usize, call: &FormulaCall) -> Result<Vec<Poly>, Error> {
        let mut arguments = call.arguments.clone();
        for &at in allocation_arguments(&call.kind) {
            let Some(named) = arguments[at].at(1).and_then(|index| u32::try_from(index).ok()) else { continue };
            let joined = match self.space.matching.key_of[variant][named as usize] {
                NONE => self.of_own[variant].get(&named).copied(),
                key => Some(self.of_key[key as usize]).filter(|&joined| joined != NONE),
            };
            let joined = joined.ok_or_else(|| contradiction("replaces what it did not request"))?;
            arguments[at] = Poly::constant(joined.into()).ok_or_else(|| contradiction("has too many allocations"))?;
        }
        Ok(arguments)
    }

    fn finish(self) -> Result<ModelSpec, Error> {
        let base = &self.space.variants[0].spec;
        let mut layers = base.layers.clone();
        for (region, &variant) in self.choice.iter().enumerate() {
            let path = &self.space.paths[region];
            for (layer, chosen) in layers.iter_mut().zip(&self.space.variants[variant].spec.layers) {
                let inside =
                    layer.path.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
                if inside {
                    layer.backward_flops = chosen.backward_flops;
                }
            }
        }
        let carried = carried(&self.steps, &self.allocations);
        let spec = ModelSpec {
            schema: SCHEMA_VERSION,
            about: base.about.clone(),
            batches: base.batches,
            traced_batches: base.traced_batches.clone(),
            ops: self.ops,
            layers,
            allocations: self.allocations,
            formulas: self.formulas,
            steps: self.steps,
            carried,
        };
        spec.validate()?;
        Ok(spec)
    }
}

fn number(length: usize) -> Result<u32, Error> {
    u32::try_from(length).map_err(|_| contradiction("has too many allocations"))
}

fn contradiction(what: &str) -> Error {
    Error::InvalidSpec { reason: format!("the joined loop {what}") }
}

fn chosen(run: &Run, choice: &[usize]) -> usize {
    run.region().map_or(0, |region| choice[region])
}

/// Where each key ends: the last place at which a chosen run holds it.
fn ends(space: &RegionSpace, choice: &[usize]) -> BTreeMap<Place, Vec<u32>> {
    let mut used = vec![false; space.variants.len()];
    for &variant in choice.iter().chain([&0]) {
        used[variant] = true;
    }
    let used: Vec<usize> = (0..used.len()).filter(|&variant| used[variant]).collect();
    let is_freed = |key: u32| used.iter().any(|&variant| space.matching.is_freed[variant][key as usize]);
    let mut last: Vec<Option<Place>> = vec![None; space.matching.keys()];
    let mut hold = |key: u32, place: Place| {
        if key != NONE && is_freed(key) {
            last[key as usize] = last[key as usize].max(Some(place));
        }
    };
    for (step, runs) in space.variants[0].steps.iter().enumerate() {
        for (number, base_run) in runs.iter().enumerate() {
            for &variant in &used {
                for &(at, key) in &space.matching.held_outside[variant][step][number] {
                    hold(key, (step, number, 2 * at));
                }
            }
            let variant = chosen(base_run, choice);
            let source = &space.variants[variant];
            let run = &source.steps[step][number];
            let keys = &space.matching.key_of[variant];
            if run.region().is_some() {
                for at in run.events.clone() {
                    if let Event::Free(index) = source.spec.steps[step][at] {
                        hold(keys[index as usize], (step, number, 2 * at + 1));
                    }
                }
                for &(at, index) in &run.touches {
                    hold(keys[index as usize], (step, number, 2 * at));
                }
            }
        }
    }
    let mut ends: BTreeMap<Place, Vec<u32>> = BTreeMap::new();
    for (key, place) in (0_u32..).zip(last) {
        if let Some(place) = place {
            ends.entry(place).or_default().push(key);
        }
    }
    ends
}
