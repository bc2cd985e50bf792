//! A region space at one batch on one target: every run with its bytes known, so that a plan is joined and played in
//! little more than the time that its events take.
//!
//! What is joined here is what [`RegionSpace::splice`] and [`Timeline::new`](crate::timeline::Timeline::new) make of the
//! same choice, action for action (`tests/regions.rs` compares them); it is only kept in another form. A *place* is a
//! storage of the joined loop: a key of the [matching](super::matching), an allocation of one variant that has no key,
//! or a slot of a formula call. The emptied cache of `cudnn.benchmark` is not played here: the report of the plan has it.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::formula::{self, Stages, Step};
use crate::poly::Poly;
use crate::regions::cut::{Run, Variant};
use crate::regions::matching::NONE;
use crate::regions::pieces::Pieces;
use crate::regions::space::RegionSpace;
use crate::regions::splice::CUBLAS_WORKSPACE;
use crate::spec::{Category, Event, Origin};
use crate::target::Target;

/// What happens to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// Its bytes are requested.
    Alloc,
    /// The same, and without them the loop goes on.
    TryAlloc,
    /// It is given back.
    Free,
    /// It takes over the storage of the place whose number stands for the bytes.
    TakeOver,
    /// The place is the number of a workspace; as many steps as the bytes say follow if it was never requested.
    Once,
}

/// One step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) bytes: u64,
    pub(super) place: u32,
    /// Event of the variant's step.
    pub(super) at: u32,
    pub(super) deed: Deed,
}

/// A region space at one batch on one target.
pub(super) struct Prepared<'a> {
    pub(super) space: &'a RegionSpace,
    /// Codes and variant 0's runs of all steps in a row.
    pub(super) runs: Vec<&'a Run>,
    /// First run of each step, and their number.
    pub(super) step_begins: Vec<usize>,
    /// Per variant and run; empty where the variant's run is never joined. Frees of keys are not among them.
    pub(super) acts: Vec<Vec<Vec<Act>>>,
    /// Where these runs are interrupted.
    pub(super) pieces: Pieces,
    /// Places that are keys; they come first.
    pub(super) keys: usize,
    pub(super) places: usize,
    pub(super) workspaces: usize,
    /// Per key, a number that is equal for equal sizes and categories.
    pub(super) class: Vec<u32>,
}

impl<'a> Prepared<'a> {
    pub(super) fn new(space: &'a RegionSpace, batch: u64, target: &Target) -> Result<Self, Error> {
        space.variants[0].spec.check_batch(batch)?;
        let mut step_begins = vec![0];
        let mut runs = Vec::new();
        for step in &space.variants[0].steps {
            runs.extend(step);
            step_begins.push(runs.len());
        }
        let keys = space.matching.keys();
        let (place_of, own) = places(space)?;
        let mut prepared = Self {
            space,
            runs,
            step_begins,
            acts: Vec::with_capacity(space.variants.len()),
            pieces: Pieces::default(),
            keys,
            places: keys + own,
            workspaces: 0,
            class: vec![NONE; keys],
        };
        let mut shared = Shared::default();
        for (number, place_of) in place_of.into_iter().enumerate() {
            let variant = &space.variants[number];
            for (allocation, &key) in variant.spec.allocations.iter().zip(&space.matching.key_of[number]) {
                if let Some(class) = prepared.class.get_mut(key as usize) {
                    *class = shared.class(allocation.bytes, allocation.category);
                }
            }
            let mut source =
                Source { variant, keys, batch, target, place_of, first_slot: Vec::new(), stages: Vec::new() };
            source.expand(&mut prepared.places)?;
            let acts = source.acts(number, space, &mut shared)?;
            prepared.acts.push(acts);
        }
        prepared.workspaces = shared.workspaces.len();
        prepared.pieces = Pieces::new(space, &prepared.acts, keys)?;
        Ok(prepared)
    }

    /// About how many actions are played for a plan.
    pub(super) fn actions(&self) -> usize {
        let of_runs = |runs: &[Vec<Act>]| -> usize { runs.iter().map(Vec::len).sum() };
        of_runs(&self.acts[0]) + of_runs(&self.acts[0][self.last_step()..])
    }

    /// First run of the last traced step.
    pub(super) fn last_step(&self) -> usize {
        self.step_begins.iter().rev().nth(1).copied().unwrap_or(0)
    }
}

/// Numbers that all variants share.
#[derive(Default)]
struct Shared {
    workspaces: Vec<Vec<Poly>>,
    classes: BTreeMap<(Poly, Category), u32>,
}

impl Shared {
    fn class(&mut self, bytes: Poly, category: Category) -> u32 {
        let next = u32::try_from(self.classes.len()).unwrap_or(NONE);
        *self.classes.entry((bytes, category)).or_insert(next)
    }

    fn workspace(&mut self, arguments: &[Poly]) -> Result<u32, Error> {
        let known = self.workspaces.iter().position(|other| other == arguments);
        let number = known.unwrap_or_else(|| {
            self.workspaces.push(arguments.to_vec());
            self.workspaces.len() - 1
        });
        index(number)
    }
}

pub(super) fn index(number: usize) -> Result<u32, Error> {
    u32::try_from(number).map_err(|_| Error::InvalidSpec { reason: "the joined loop is too long".to_owned() })
}

/// The place of every allocation of every variant, and how many places there are beside the keys.
///
/// What has no key begins and ends in one region's backward pass, and a region runs as in one variant: all variants of a
/// region share its places.
fn places(space: &RegionSpace) -> Result<(Vec<Vec<u32>>, usize), Error> {
    let mut place_of = space.matching.key_of.clone();
    let mut own: Vec<Vec<(usize, usize)>> = vec![Vec::new(); space.paths.len()];
    let mut most = vec![0; space.paths.len()];
    for (number, variant) in space.variants.iter().enumerate() {
        let mut count = vec![0; space.paths.len()];
        for (runs, events) in variant.steps.iter().zip(&variant.spec.steps) {
            for run in runs {
                let Some(region) = run.region() else { continue };
                for event in &events[run.events.clone()] {
                    match *event {
                        Event::Alloc(allocation) if place_of[number][allocation as usize] == NONE => {
                            place_of[number][allocation as usize] = index(count[region])?;
                            own[region].push((number, allocation as usize));
                            count[region] += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
        for (most, count) in most.iter_mut().zip(count) {
            *most = count.max(*most);
        }
    }
    let mut first = space.matching.keys();
    for (own, most) in own.iter().zip(&most) {
        for &(number, allocation) in own {
            place_of[number][allocation] = index(first + place_of[number][allocation] as usize)?;
        }
        first += most;
    }
    Ok((place_of, first - space.matching.keys()))
}

/// One variant on its way into acts.
struct Source<'a> {
    variant: &'a Variant,
    keys: usize,
    batch: u64,
    target: &'a Target,
    place_of: Vec<u32>,
    /// Place of slot 0 of each formula call.
    first_slot: Vec<u32>,
    stages: Vec<Stages>,
}

impl Source<'_> {
    fn overflow(&self, origin: Origin) -> Error {
        Error::SizeOverflow { op: self.op(origin), layer: self.layer(origin), batch: self.batch }
    }

    fn op(&self, origin: Origin) -> String {
        self.variant.spec.ops[origin.op as usize].clone()
    }

    fn layer(&self, origin: Origin) -> String {
        self.variant.spec.layers[origin.layer as usize].path.clone()
    }

    /// Works out every formula call and gives its slots places.
    fn expand(&mut self, places: &mut usize) -> Result<(), Error> {
        for call in &self.variant.spec.formulas {
            let failed = |source| Error::Formula { op: self.op(call.origin), layer: self.layer(call.origin), source };
            let arguments = call.arguments.iter().map(|poly| poly.at(self.batch)).collect::<Option<Vec<_>>>();
            let arguments = arguments.ok_or_else(|| self.overflow(call.origin))?;
            let kind = formula::kind_index(&call.kind).map_err(failed)?;
            let stages = formula::expand(kind, &arguments, self.target).map_err(failed)?;
            let slots = stages.iter().flatten().map(|step| usize::from(slot(step)) + 1).max().unwrap_or(0);
            self.first_slot.push(index(*places)?);
            self.stages.push(stages);
            *places += slots;
        }
        Ok(())
    }

    fn acts(&self, number: usize, space: &RegionSpace, shared: &mut Shared) -> Result<Vec<Vec<Act>>, Error> {
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

    fn event(&self, at: u32, event: Event, shared: &mut Shared, acts: &mut Vec<Act>) -> Result<(), Error> {
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
        shared: &mut Shared,
        acts: &mut Vec<Act>,
    ) -> Result<(), Error> {
        let formula_call = &self.variant.spec.formulas[call];
        let begin = acts.len();
        if formula_call.kind == CUBLAS_WORKSPACE {
            let place = shared.workspace(&formula_call.arguments)?;
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
        if formula_call.kind == CUBLAS_WORKSPACE {
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
