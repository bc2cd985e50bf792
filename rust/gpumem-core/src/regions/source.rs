//! One variant on its way into [acts](Act): sizes at one batch, formula calls worked out, storages given places.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::formula::{self, Stages, Step};
use crate::poly::Poly;
use crate::regions::cut::Variant;
use crate::regions::matching::NONE;
use crate::regions::prepared::{Act, Deed, index};
use crate::regions::space::RegionSpace;
use crate::regions::splice::CUBLAS_WORKSPACE;
use crate::spec::{Category, Event, FormulaCall, Origin};
use crate::target::Target;

/// Numbers that all variants share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) workspaces: Vec<Vec<Poly>>,
    classes: BTreeMap<(Poly, Category), u32>,
}

impl Shared {
    pub(super) fn class(&mut self, bytes: Poly, category: Category) -> u32 {
        let next = u32::try_from(self.classes.len()).unwrap_or(NONE);
        *self.classes.entry((bytes, category)).or_insert(next)
    }

    /// Numbers the workspace that a call asks for.
    pub(super) fn know(&mut self, call: &FormulaCall) {
        if call.kind == CUBLAS_WORKSPACE && !self.workspaces.contains(&call.arguments) {
            self.workspaces.push(call.arguments.clone());
        }
    }

    /// The number of the workspace that a call asks for, if it does.
    fn workspace(&self, call: &FormulaCall) -> Result<Option<u32>, Error> {
        let known = if call.kind == CUBLAS_WORKSPACE { &self.workspaces[..] } else { &[] };
        known.iter().position(|other| *other == call.arguments).map(index).transpose()
    }
}

/// One variant on its way into acts.
pub(super) struct Source<'a> {
    pub(super) variant: &'a Variant,
    keys: usize,
    batch: u64,
    place_of: &'a [u32],
    /// Place of slot 0 of each formula call.
    first_slot: Vec<u32>,
    stages: Vec<Stages>,
}

impl<'a> Source<'a> {
    /// Works out every formula call.
    pub(super) fn new(
        space: &'a RegionSpace,
        number: usize,
        place_of: &'a [u32],
        batch: u64,
        target: &Target,
    ) -> Result<Self, Error> {
        let variant = &space.variants[number];
        let calls = variant.spec.formulas.len();
        let (first_slot, stages) = (Vec::with_capacity(calls), Vec::with_capacity(calls));
        let mut source = Self { variant, keys: space.matching.keys(), batch, place_of, first_slot, stages };
        for call in &variant.spec.formulas {
            let failed =
                |error| Error::Formula { op: source.op(call.origin), layer: source.layer(call.origin), source: error };
            let arguments = call.arguments.iter().map(|poly| poly.at(batch)).collect::<Option<Vec<_>>>();
            let arguments = arguments.ok_or_else(|| source.overflow(call.origin))?;
            let kind = formula::kind_index(&call.kind).map_err(failed)?;
            let stages = formula::expand(kind, &arguments, target).map_err(failed)?;
            source.stages.push(stages);
        }
        Ok(source)
    }

    fn overflow(&self, origin: Origin) -> Error {
        Error::SizeOverflow { op: self.op(origin), layer: self.layer(origin), batch: self.batch }
    }

    fn op(&self, origin: Origin) -> String {
        self.variant.spec.ops[origin.op as usize].clone()
    }

    fn layer(&self, origin: Origin) -> String {
        self.variant.spec.layers[origin.layer as usize].path.clone()
    }

    /// Gives the slots of its formula calls places from `first` on, and says how many.
    pub(super) fn begin_at(&mut self, first: usize) -> Result<usize, Error> {
        let mut next = first;
        for stages in &self.stages {
            self.first_slot.push(index(next)?);
            next += stages.iter().flatten().map(|step| usize::from(slot(step)) + 1).max().unwrap_or(0);
        }
        Ok(next - first)
    }

    pub(super) fn acts(&self, number: usize, space: &RegionSpace, shared: &Shared) -> Result<Vec<Vec<Act>>, Error> {
        let mut all = Vec::new();
        for (step, runs) in self.variant.steps.iter().enumerate() {
            for run in runs {
                let is_joined = run.region().map_or(number == 0, |region| space.is_allowed(region, number));
                let mut acts = Vec::with_capacity(if is_joined { run.events.len() } else { 0 });
                if is_joined {
                    for at in run.events.clone() {
                        self.event(index(at)?, self.variant.spec.steps[step][at], shared, &mut acts)?;
                    }
                }
                all.push(acts);
            }
        }
        Ok(all)
    }

    fn bytes(&self, allocation: u32) -> Result<u64, Error> {
        let allocation = &self.variant.spec.allocations[allocation as usize];
        let bytes = allocation.bytes.at(self.batch).and_then(|bytes| u64::try_from(bytes).ok());
        bytes.ok_or_else(|| self.overflow(allocation.origin))
    }

    fn event(&self, at: u32, event: Event, shared: &Shared, acts: &mut Vec<Act>) -> Result<(), Error> {
        match event {
            Event::Alloc(allocation) => {
                let place = self.place_of[allocation as usize];
                acts.push(Act { bytes: self.bytes(allocation)?, place, at, deed: Deed::Alloc });
            }
            Event::Free(allocation) => {
                let place = self.place_of[allocation as usize];
                // A key ends where the plan's last holder lets go.
                if place as usize >= self.keys {
                    acts.push(Act { bytes: 0, place, at, deed: Deed::Free });
                }
            }
            Event::Scratch { call, stage } => self.scratch(at, (call as usize, stage.into()), shared, acts)?,
            Event::Mark(_) => {}
        }
        Ok(())
    }

    fn scratch(
        &self,
        at: u32,
        (call, stage): (usize, usize),
        shared: &Shared,
        acts: &mut Vec<Act>,
    ) -> Result<(), Error> {
        let formula_call = &self.variant.spec.formulas[call];
        let begin = acts.len();
        let workspace = shared.workspace(formula_call)?;
        if let Some(place) = workspace {
            acts.push(Act { bytes: 0, place, at, deed: Deed::Once });
        }
        for &step in self.stages[call].get(stage).into_iter().flatten() {
            let place = self.first_slot[call] + u32::from(slot(&step));
            match step {
                Step::Alloc { bytes, .. } => acts.push(Act { bytes, place, at, deed: Deed::Alloc }),
                Step::TryAlloc { bytes, .. } => acts.push(Act { bytes, place, at, deed: Deed::TryAlloc }),
                Step::Free { .. } => acts.push(Act { bytes: 0, place, at, deed: Deed::Free }),
                Step::Renew { allocation, .. } => {
                    let Some(&renewed) = self.place_of.get(allocation as usize) else {
                        let reason = format!("{} names no allocation", self.op(formula_call.origin));
                        return Err(Error::InvalidSpec { reason });
                    };
                    acts.push(Act { bytes: renewed.into(), place, at, deed: Deed::TakeOver });
                    acts.push(Act { bytes: self.bytes(allocation)?, place: renewed, at, deed: Deed::Alloc });
                }
            }
        }
        if workspace.is_some() {
            acts[begin].bytes = (acts.len() - begin - 1) as u64;
        }
        Ok(())
    }
}

const fn slot(step: &Step) -> u8 {
    match *step {
        Step::Alloc { slot, .. } | Step::TryAlloc { slot, .. } | Step::Renew { slot, .. } | Step::Free { slot } => slot,
    }
}
