//! Which storages of one variant are those of another.
//!
//! A storage has a *key* when a run of another owner may hold it: everything requested outside regions, everything a
//! region requests in its forward pass (the same requests in the same order in all variants), and what its backward pass
//! leaves to others. The rest is a region's own business and is known in its own variant only. Regions that a variant
//! checkpoints as one segment are one region to all others there: what one of them leaves to the next is their business.

use std::ops::Range;

use crate::poly::Poly;
use crate::regions::cut::{Run, Variant};
use crate::spec::Event;

/// Per step and run, `(event of variant 0, key)`.
pub(super) type Holds = Vec<Vec<Vec<(usize, u32)>>>;

/// No key.
pub(super) const NONE: u32 = u32::MAX;

/// Keys of all allocations of all variants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Matching {
    /// Per variant and allocation, its key or [`NONE`].
    pub(super) key_of: Vec<Vec<u32>>,
    /// Per variant and key, whether it frees it: what none of a plan's variants frees is never freed.
    pub(super) is_freed: Vec<Vec<bool>>,
    /// Per variant, what it shows to be held outside regions, and until when.
    pub(super) held_outside: Vec<Holds>,
    /// Per region and variant, whether the region's runs of that variant can be joined with others.
    pub(super) allowed: Vec<Vec<bool>>,
}

/// Where each allocation of one variant begins and ends: `(step, run)`.
struct Lives {
    birth: Vec<Option<(usize, usize)>>,
    death: Vec<Option<(usize, usize)>>,
}

fn lives(variant: &Variant) -> Lives {
    let count = variant.spec.allocations.len();
    let mut lives = Lives { birth: vec![None; count], death: vec![None; count] };
    for (step, runs) in variant.steps.iter().enumerate() {
        for (number, run) in runs.iter().enumerate() {
            for event in &variant.spec.steps[step][run.events.clone()] {
                match *event {
                    Event::Alloc(index) => lives.birth[index as usize] = Some((step, number)),
                    Event::Free(index) => lives.death[index as usize] = Some((step, number)),
                    Event::Scratch { .. } | Event::Mark(_) => {}
                }
            }
        }
    }
    lives
}

/// Allocations of this run that get a key, in order; with `regions`, those that others than these regions do not see get
/// none either.
fn keyed(variant: &Variant, lives: &Lives, step: usize, run: &Run, regions: &Range<usize>) -> Vec<u32> {
    let requested = variant.spec.steps[step][run.events.clone()].iter().filter_map(|event| match *event {
        Event::Alloc(index) => Some(index),
        _ => None,
    });
    let own_business = |index: &u32| {
        let Some((at, number)) = lives.death[*index as usize] else { return false };
        at == step && variant.steps[at][number].region().is_some_and(|region| regions.contains(&region))
    };
    match run.region() {
        Some(_) if run.in_engine() => requested.filter(|index| !own_business(index)).collect(),
        _ => requested.collect(),
    }
}

fn sizes(variant: &Variant, allocations: &[u32]) -> Vec<Poly> {
    allocations.iter().map(|&index| variant.spec.allocations[index as usize].bytes).collect()
}

/// What happens in a run besides frees, without the numbers that differ between variants.
fn skeleton(variant: &Variant, step: usize, run: &Run) -> Vec<(u64, usize)> {
    let kind = |call: u32| crate::formula::kind_index(&variant.spec.formulas[call as usize].kind).unwrap_or(usize::MAX);
    let events = &variant.spec.steps[step][run.events.clone()];
    let shape = |event: &Event| match *event {
        Event::Alloc(_) => Some((0, 0)),
        Event::Free(_) => None,
        Event::Scratch { call, stage } => Some((1 + u64::from(stage), kind(call))),
        Event::Mark(_) => Some((event.to_tagged() << 32, 0)),
    };
    events.iter().filter_map(shape).collect()
}

/// Event of variant 0 at which each event of another variant's run stands, frees aside.
fn aligned(base: &Variant, other: &Variant, step: usize, base_run: &Run, run: &Run) -> Vec<usize> {
    let is_free = |event: &Event| matches!(event, Event::Free(_));
    let mut at = base_run.events.clone().filter(|&at| !is_free(&base.spec.steps[step][at]));
    let mut now = at.next().unwrap_or(base_run.events.end);
    let mut places = Vec::with_capacity(run.events.len() + 1);
    for event in &other.spec.steps[step][run.events.clone()] {
        places.push(now);
        if !is_free(event) {
            now = at.next().unwrap_or(base_run.events.end);
        }
    }
    places.push(now);
    places
}

impl Matching {
    /// Number of keys.
    pub(super) fn keys(&self) -> usize {
        self.is_freed.first().map_or(0, Vec::len)
    }

    /// Matches every variant with the first; the error says why one cannot be matched at all.
    pub(super) fn new(regions: usize, variants: &[Variant]) -> Result<Self, (usize, &'static str)> {
        let base = &variants[0];
        let mut matching = Self {
            key_of: variants.iter().map(|variant| vec![NONE; variant.spec.allocations.len()]).collect(),
            is_freed: Vec::new(),
            held_outside: Vec::new(),
            allowed: vec![vec![true; variants.len()]; regions],
        };
        let all_lives: Vec<Lives> = variants.iter().map(lives).collect();
        for (number, variant) in variants.iter().enumerate() {
            let codes = |variant: &Variant| -> Vec<Vec<u32>> {
                variant.steps.iter().map(|runs| runs.iter().map(|run| run.code).collect()).collect()
            };
            if codes(variant) != codes(base) {
                return Err((number, "regions are not run in the same order"));
            }
        }
        let mut keys = 0;
        for (step, runs) in base.steps.iter().enumerate() {
            for (number, run) in runs.iter().enumerate() {
                keys += matching.match_run(variants, &all_lives, (step, number), run, keys)?;
            }
        }
        for (number, (variant, lives)) in variants.iter().zip(&all_lives).enumerate() {
            matching.refuse_strangers(number, variant, lives);
            matching.refuse_torn(number, variant);
        }
        for (lives, keys_here) in all_lives.iter().zip(&matching.key_of) {
            let mut is_freed = vec![false; keys];
            for (death, &key) in lives.death.iter().zip(keys_here) {
                if let (Some(_), Some(freed)) = (death, is_freed.get_mut(key as usize)) {
                    *freed = true;
                }
            }
            matching.is_freed.push(is_freed);
        }
        matching.held_outside =
            variants.iter().zip(&matching.key_of).map(|(variant, keys)| held_outside(base, variant, keys)).collect();
        Ok(matching)
    }

    /// Regions that free what has no key and another region requested: that one could not be matched.
    fn refuse_strangers(&mut self, number: usize, variant: &Variant, lives: &Lives) {
        for (runs, events) in variant.steps.iter().zip(&variant.spec.steps) {
            for run in runs {
                let Some(region) = run.region() else { continue };
                let is_strange = |event: &Event| {
                    let Event::Free(index) = *event else { return false };
                    let is_own = lives.birth[index as usize]
                        .is_some_and(|(at, other)| variant.are_one(run, &variant.steps[at][other]));
                    self.key_of[number][index as usize] == NONE && !is_own
                };
                if events[run.events.clone()].iter().any(is_strange) {
                    self.allowed[region][number] = false;
                }
            }
        }
    }

    /// Segments of which a region cannot be joined; and, where there are segments, what is in none: it does as in the
    /// first variant.
    fn refuse_torn(&mut self, number: usize, variant: &Variant) {
        if variant.segments.is_empty() {
            return;
        }
        for region in 0..self.allowed.len() {
            let segment = variant.segment(region);
            let whole = segment.len() > 1 && segment.clone().all(|region| self.allowed[region][number]);
            if !whole {
                segment.for_each(|region| self.allowed[region][number] = false);
            }
        }
    }

    /// Gives keys from `first_key` on to what this run requests for others; returns how many.
    fn match_run(
        &mut self,
        variants: &[Variant],
        lives: &[Lives],
        (step, number): (usize, usize),
        run: &Run,
        first_key: usize,
    ) -> Result<usize, (usize, &'static str)> {
        let base = &variants[0];
        let alone = run.region().map_or(0..0, |region| region..region + 1);
        let ours = keyed(base, &lives[0], step, run, &alone);
        for (index, variant) in variants.iter().enumerate() {
            let other_run = &variant.steps[step][number];
            let together = run.region().map_or(0..0, |region| variant.segment(region));
            let theirs = keyed(variant, &lives[index], step, other_run, &together);
            let expected = keyed(base, &lives[0], step, run, &together);
            let same = sizes(base, &expected) == sizes(variant, &theirs);
            match run.region() {
                None if !same || skeleton(base, step, run) != skeleton(variant, step, other_run) => {
                    return Err((index, "what happens outside the regions differs"));
                }
                Some(region) if !same => self.allowed[region][index] = false,
                _ => {
                    let mut places = ours.iter().zip(first_key..);
                    for (&allocation, expected) in theirs.iter().zip(&expected) {
                        let key = places.find(|&(ours, _)| ours == expected).map_or(first_key, |(_, key)| key);
                        let key = u32::try_from(key).map_err(|_| (index, "too many allocations"))?;
                        self.key_of[index][allocation as usize] = key;
                    }
                }
            }
        }
        Ok(ours.len())
    }
}

/// What a variant shows to be held outside regions, and until which event of variant 0.
fn held_outside(base: &Variant, variant: &Variant, keys: &[u32]) -> Holds {
    let held = |step: usize, number: usize, run: &Run| -> Vec<(usize, u32)> {
        if run.region().is_some() {
            return Vec::new();
        }
        let places = aligned(base, variant, step, &base.steps[step][number], run);
        let events = variant.spec.steps[step][run.events.clone()].iter().enumerate();
        let frees = events.filter_map(|(at, event)| match *event {
            Event::Free(allocation) => Some((places[at], allocation)),
            _ => None,
        });
        let touches = run.touches.iter().map(|&(at, allocation)| (places[at - run.events.start], allocation));
        let held = frees.chain(touches).map(|(at, allocation)| (at, keys[allocation as usize]));
        held.filter(|&(_, key)| key != NONE).collect()
    };
    let steps = variant.steps.iter().enumerate();
    steps.map(|(step, runs)| runs.iter().enumerate().map(|(number, run)| held(step, number, run)).collect()).collect()
}
