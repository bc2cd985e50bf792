//! A region space at one batch on one target: every run with its bytes known, so that a plan is joined and played in
//! little more than the time that its events take.
//!
//! What is joined here is what [`RegionSpace::splice`] and [`Timeline::new`](crate::timeline::Timeline::new) make of the
//! same choice, action for action (`tests/regions.rs` compares them); it is only kept in another form. A *place* is a
//! storage of the joined loop: a key of the [matching](super::matching), an allocation of one variant that has no key,
//! or a slot of a formula call. The emptied cache of `cudnn.benchmark` is not played here: the report of the plan has it.

use crate::error::Error;
use crate::regions::cut::Run;
use crate::regions::matching::NONE;
use crate::regions::parallel::map;
use crate::regions::pieces::Pieces;
use crate::regions::source::{Shared, Source};
use crate::regions::space::RegionSpace;
use crate::spec::Event;
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
        let numbers: Vec<usize> = (0..space.variants.len()).collect();
        let sources = map(&numbers, |&number| Source::new(space, number, &place_of[number], batch, target));
        let mut sources = sources.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut shared = Shared::default();
        for (source, key_of) in sources.iter_mut().zip(&space.matching.key_of) {
            prepared.places += source.begin_at(prepared.places)?;
            for (allocation, &key) in source.variant.spec.allocations.iter().zip(key_of) {
                // The same requests are made of a key in every variant.
                if let Some(class) = prepared.class.get_mut(key as usize).filter(|class| **class == NONE) {
                    *class = shared.class(allocation.bytes, allocation.category);
                }
            }
            source.variant.spec.formulas.iter().for_each(|call| shared.know(call));
        }
        let acts = map(&numbers, |&number| sources[number].acts(number, space, &shared));
        prepared.acts = acts.into_iter().collect::<Result<_, _>>()?;
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
