//! Until when each key is held, whatever the plan: what decides where it is freed.

use crate::error::Error;
use crate::regions::cut::Variant;
use crate::regions::matching::{Matching, NONE};
use crate::regions::prepared::index;
use crate::spec::Event;

/// Where a hold ends: run (of all steps in a row), and twice the event, plus one after the event itself.
pub(super) type End = (u32, u32);

/// The last moment at which each holder lets go of each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holders {
    /// Per region and variant, keys that the region's runs hold.
    of_region: Vec<Vec<Vec<(u32, End)>>>,
    /// Per variant, keys that it shows to be held outside regions.
    outside: Vec<Vec<(u32, End)>>,
    /// Per variant and key, whether it frees it.
    freed_by: Vec<Vec<bool>>,
    /// Per key, until when it is held whatever the plan.
    sure: Vec<Option<End>>,
}

/// Where keys end under a choice. Kept, and filled again for the next.
#[derive(Default)]
pub(super) struct Ends {
    /// In the order in which they come.
    pub(super) found: Vec<(End, u32)>,
    last: Vec<Option<End>>,
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
                    let end = |doubled: usize| -> Result<End, Error> { Ok((index(flat)?, index(doubled)?)) };
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
        let mut sure = vec![None; matching.keys()];
        // Variant 0 is always consulted for what is held outside regions.
        raise(&mut sure, &outside[0]);
        for (held, allowed) in of_region.iter().zip(&matching.allowed) {
            let allowed = allowed.iter().filter(|&&allowed| allowed).count();
            raise(&mut sure, &in_all(held, allowed));
        }
        Ok(Self { of_region, outside, freed_by: matching.is_freed.clone(), sure })
    }

    /// Whether a key is held when run `number` begins, whatever the plan.
    pub(super) fn is_sure_at(&self, key: usize, number: u32) -> bool {
        self.sure[key].is_some_and(|(run, _)| run >= number)
    }

    /// Keys that a region holds in a variant, and until when.
    pub(super) fn of(&self, region: usize, variant: usize) -> &[(u32, End)] {
        &self.of_region[region][variant]
    }

    /// Works out where keys end.
    pub(super) fn ends(&self, choice: &[usize], Ends { found, last }: &mut Ends) {
        let keys = self.freed_by.first().map_or(0, Vec::len);
        last.clear();
        last.resize(keys, None);
        let mut used = vec![false; self.outside.len()];
        used[0] = true;
        for (region, &variant) in choice.iter().enumerate() {
            used[variant] = true;
            raise(last, &self.of_region[region][variant]);
        }
        let used: Vec<usize> = (0..used.len()).filter(|&variant| used[variant]).collect();
        for &variant in &used {
            raise(last, &self.outside[variant]);
        }
        found.clear();
        for (key, end) in (0_u32..).zip(&*last) {
            if let Some(end) = *end {
                if used.iter().any(|&variant| self.freed_by[variant][key as usize]) {
                    found.push((end, key));
                }
            }
        }
        found.sort_unstable();
    }
}

fn raise(ends: &mut [Option<End>], held: &[(u32, End)]) {
    for &(key, end) in held {
        ends[key as usize] = ends[key as usize].max(Some(end));
    }
}

/// Keys that a region holds in every of its `allowed` variants, and until when at least.
fn in_all(held: &[Vec<(u32, End)>], allowed: usize) -> Vec<(u32, End)> {
    let mut all: Vec<(u32, End)> = held.iter().flatten().copied().collect();
    all.sort_unstable();
    all.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() == allowed).map(|same| same[0]).collect()
}

/// One entry for each key: its last.
fn keep_last(held: &mut Vec<(u32, End)>) {
    held.retain(|&(key, _)| key != NONE);
    held.sort_unstable_by_key(|&(key, end)| (key, std::cmp::Reverse(end)));
    held.dedup_by_key(|&mut (key, _)| key);
}
