//! Until when each key is held, whatever the plan: what decides where it is freed.

use crate::error::Error;
use crate::regions::cut::Variant;
use crate::regions::matching::{Matching, NONE};
use crate::regions::prepared::index;
use crate::spec::Event;

/// Where a hold ends: run (of all steps in a row), and twice the event, plus one after the event itself. In one number,
/// since they are compared more often than anything else here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End(u64);

impl End {
    /// Before everything: nobody holds it.
    pub(super) const NEVER: Self = Self(0);

    pub(super) const fn new(run: u32, doubled: u32) -> Self {
        Self(((run as u64) << u32::BITS) | doubled as u64)
    }

    pub(super) const fn run(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half is asked for")]
    pub(super) const fn doubled(self) -> u32 {
        self.0 as u32
    }
}

/// The last moment at which each holder lets go of each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holders {
    /// Per region and variant, keys that the region's runs hold.
    of_region: Vec<Vec<Vec<(u32, End)>>>,
    /// Per variant, keys that it shows to be held outside regions.
    outside: Vec<Vec<(u32, End)>>,
    /// Per variant and key, whether it frees it.
    freed_by: Vec<Vec<bool>>,
    /// Per key, who holds it in every plan in which they are not within a segment with the region that requests it, and
    /// until when; no region for what is held outside of them.
    sure: Vec<Vec<(Option<usize>, End)>>,
    /// Per key, the region whose forward pass requests it.
    requested_by: Vec<Option<usize>>,
    /// Per variant, where keys may end in the runs that are joined from it, in order.
    possible: Vec<Vec<(End, u32)>>,
}

impl Holders {
    pub(super) fn new(variants: &[Variant], matching: &Matching) -> Result<Self, Error> {
        let mut of_region = vec![vec![Vec::new(); variants.len()]; matching.allowed.len()];
        let mut outside = vec![Vec::new(); variants.len()];
        for (number, variant) in variants.iter().enumerate() {
            let keys = &matching.key_of[number];
            let mut flat = 0;
            for (step, runs) in variant.steps.iter().enumerate() {
                for (place, run) in runs.iter().enumerate() {
                    let end = |doubled: usize| -> Result<End, Error> { Ok(End::new(index(flat)?, index(doubled)?)) };
                    for &(at, key) in &matching.held_outside[number][step][place] {
                        outside[number].push((key, end(2 * at)?));
                    }
                    if let Some(region) = run.region().filter(|&region| matching.allowed[region][number]) {
                        let held = &mut of_region[region][number];
                        for at in run.events.clone() {
                            if let Event::Free(allocation) = variant.spec.steps[step][at] {
                                held.push((keys[allocation as usize], end(2 * at + 1)?));
                            }
                        }
                        for &(at, allocation) in &run.touches {
                            held.push((keys[allocation as usize], end(2 * at)?));
                        }
                    }
                    flat += 1;
                }
            }
        }
        of_region.iter_mut().flatten().chain(&mut outside).for_each(keep_last);
        let requested_by = requested_by(&variants[0], matching);
        let mut sure = vec![Vec::new(); matching.keys()];
        // Variant 0 is always consulted for what is held outside regions.
        for &(key, end) in &outside[0] {
            sure[key as usize].push((None, end));
        }
        for (region, (held, allowed)) in of_region.iter().zip(&matching.allowed).enumerate() {
            let counts = |key: u32, number: usize| {
                let requester = requested_by[key as usize].filter(|&requester| requester != region);
                allowed[number] && !requester.is_some_and(|other| variants[number].segment(region).contains(&other))
            };
            for (key, end) in in_all(held, |key| (0..variants.len()).filter(|&number| counts(key, number)).count()) {
                sure[key as usize].push((Some(region), end));
            }
        }
        let of_variant = |number: usize| {
            // What is outside regions runs as in variant 0.
            let outside = if number == 0 { &outside[..] } else { &[] };
            in_order(of_region.iter().map(|held| &held[number]).chain(outside))
        };
        let possible = (0..variants.len()).map(of_variant).collect();
        Ok(Self { of_region, outside, freed_by: matching.is_freed.clone(), sure, requested_by, possible })
    }

    /// Whether a key is held when run `number` begins in every plan in which the region that requests it runs as in this
    /// variant.
    pub(super) fn is_sure_at(&self, key: usize, number: u32, variant: &Variant) -> bool {
        let requester = self.requested_by[key];
        let segment = requester.map_or(0..0, |region| variant.segment(region));
        self.sure[key].iter().any(|&(region, end)| {
            let is_within = region != requester && region.is_some_and(|region| segment.contains(&region));
            end.run() >= number && !is_within
        })
    }

    /// Keys that a region holds in a variant, and until when.
    pub(super) fn of(&self, region: usize, variant: usize) -> &[(u32, End)] {
        &self.of_region[region][variant]
    }

    /// Where keys may end in the runs that are joined from a variant, in order.
    pub(super) fn possible(&self, variant: usize) -> &[(End, u32)] {
        &self.possible[variant]
    }

    /// Whether any of these variants frees a key: what none frees is never freed.
    pub(super) fn is_freed(&self, key: usize, variants: &[usize]) -> bool {
        variants.iter().any(|&variant| self.freed_by[variant][key])
    }

    /// Works out until when each key is held under a choice, and which variants have a part in that.
    pub(super) fn last(&self, choice: &[usize], last: &mut Vec<End>, used: &mut Vec<usize>) {
        last.clear();
        last.resize(self.sure.len(), End::NEVER);
        let mut is_used = vec![false; self.outside.len()];
        is_used[0] = true;
        for (region, &variant) in choice.iter().enumerate() {
            is_used[variant] = true;
            raise(last, &self.of_region[region][variant]);
        }
        used.clear();
        used.extend((0..is_used.len()).filter(|&variant| is_used[variant]));
        for &variant in &*used {
            raise(last, &self.outside[variant]);
        }
    }
}

fn raise(ends: &mut [End], held: &[(u32, End)]) {
    for &(key, end) in held {
        let last = &mut ends[key as usize];
        *last = end.max(*last);
    }
}

/// Ends, each once.
fn in_order<'a>(held: impl Iterator<Item = &'a Vec<(u32, End)>>) -> Vec<(End, u32)> {
    let mut ends: Vec<(End, u32)> = held.flatten().map(|&(key, end)| (end, key)).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Per key, the region whose forward pass requests it.
fn requested_by(variant: &Variant, matching: &Matching) -> Vec<Option<usize>> {
    let mut requested_by = vec![None; matching.keys()];
    for (runs, events) in variant.steps.iter().zip(&variant.spec.steps) {
        for run in runs.iter().filter(|run| !run.in_engine()) {
            for event in &events[run.events.clone()] {
                if let Event::Alloc(allocation) = *event {
                    let key = matching.key_of[0][allocation as usize];
                    if let Some(requested_by) = requested_by.get_mut(key as usize) {
                        *requested_by = run.region();
                    }
                }
            }
        }
    }
    requested_by
}

/// Keys that a region holds in as many variants as `variants` says of them, and until when at least.
fn in_all(held: &[Vec<(u32, End)>], variants: impl Fn(u32) -> usize) -> Vec<(u32, End)> {
    let mut all: Vec<(u32, End)> = held.iter().flatten().copied().collect();
    all.sort_unstable();
    all.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() == variants(same[0].0)).map(|same| same[0]).collect()
}

/// One entry for each key: its last.
fn keep_last(held: &mut Vec<(u32, End)>) {
    held.retain(|&(key, _)| key != NONE);
    held.sort_unstable_by_key(|&(key, end)| (key, std::cmp::Reverse(end)));
    held.dedup_by_key(|&mut (key, _)| key);
}
