//! Where a run's acts are interrupted when a plan is joined: known beforehand, whatever the plan.
//!
//! In a run of a region only that region holds anything, as in the variant that it runs in; outside regions, whatever the
//! variants show. So the places at which a key may end are few and known, and joining is copying what lies between them.

use crate::error::Error;
use crate::regions::holds::End;
use crate::regions::matching::NONE;
use crate::regions::parallel::map;
use crate::regions::prepared::{Act, Deed, index};
use crate::regions::space::RegionSpace;

/// An interruption of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Acts of the run before it.
    pub(super) acts: u32,
    pub(super) what: What,
}

/// What comes between two acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The key ends here, if that is where its last holder lets go.
    End { key: u32, end: End },
    /// The next act is [`Deed::Once`], with so many steps after it.
    Once { workspace: u32, steps: u32 },
}

/// Every run's interruptions, and where keys begin.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces {
    /// Per variant and run.
    of_run: Vec<Vec<Vec<Piece>>>,
    /// Per variant and run, keys that begin in this run of other variants but not of this one: what is within a segment.
    absent: Vec<Vec<Vec<u32>>>,
    /// Per key, the run in which it is requested; [`NONE`] when nothing requests it.
    pub(super) birth: Vec<u32>,
}

impl Pieces {
    pub(super) fn new(space: &RegionSpace, acts: &[Vec<Vec<Act>>], keys: usize) -> Result<Self, Error> {
        let mut birth = vec![NONE; keys];
        for runs in acts {
            for (number, run) in (0_u32..).zip(runs) {
                for act in run.iter().filter(|act| act.deed == Deed::Alloc) {
                    if let Some(birth) = birth.get_mut(act.place as usize) {
                        *birth = number.min(*birth);
                    }
                }
            }
        }
        let numbers: Vec<usize> = (0..acts.len()).collect();
        let of_run = map(&numbers, |&variant| of_runs(space.holders.possible(variant), &acts[variant], &birth));
        let of_run = of_run.into_iter().collect::<Result<_, _>>()?;
        let absent = map(acts, |runs| absent(runs, &birth));
        Ok(Self { of_run, absent, birth })
    }

    /// Keys that begin in this run, but not as it runs in this variant.
    pub(super) fn absent(&self, variant: usize, run: usize) -> &[u32] {
        &self.absent[variant][run]
    }

    /// Interruptions of a run, in order.
    pub(super) fn of(&self, variant: usize, run: usize) -> &[Piece] {
        &self.of_run[variant][run]
    }
}

/// Interruptions of every run of one variant, given where keys may end in it.
fn of_runs(mut ends: &[(End, u32)], runs: &[Vec<Act>], birth: &[u32]) -> Result<Vec<Vec<Piece>>, Error> {
    // Per key, one more than the run in which it was last seen to begin.
    let mut seen = vec![0; birth.len()];
    let of_run = (0_u32..).zip(runs).map(|(number, run)| {
        let (own, behind) = ends.split_at(ends.partition_point(|(end, _)| end.run() <= number));
        ends = behind;
        pieces(number, run, own, birth, &mut seen)
    });
    of_run.collect()
}

fn absent(runs: &[Vec<Act>], birth: &[u32]) -> Vec<Vec<u32>> {
    let mut is_there = vec![false; birth.len()];
    for act in runs.iter().flatten().filter(|act| act.deed == Deed::Alloc) {
        if let Some(is_there) = is_there.get_mut(act.place as usize) {
            *is_there = true;
        }
    }
    let mut absent = vec![Vec::new(); runs.len()];
    for (key, &run) in (0_u32..).zip(birth).filter(|&(key, _)| !is_there[key as usize]) {
        if let Some(absent) = absent.get_mut(run as usize) {
            absent.push(key);
        }
    }
    absent
}

fn pieces(number: u32, run: &[Act], ends: &[(End, u32)], birth: &[u32], seen: &mut [u32]) -> Result<Vec<Piece>, Error> {
    let mut found = Vec::with_capacity(ends.len());
    let mut ends = ends.iter().peekable();
    let is_born = |key: u32, seen: &[u32]| birth[key as usize] < number || seen[key as usize] == number + 1;
    for (at, act) in run.iter().enumerate() {
        while let Some(&(end, key)) = ends.next_if(|(end, _)| end.doubled() <= act.at.saturating_mul(2)) {
            if is_born(key, seen) {
                found.push(Piece { acts: index(at)?, what: What::End { key, end } });
            }
        }
        match act.deed {
            Deed::Once => {
                let steps = u32::try_from(act.bytes).unwrap_or(0);
                found.push(Piece { acts: index(at)?, what: What::Once { workspace: act.place, steps } });
            }
            Deed::Alloc => {
                if let Some(seen) = seen.get_mut(act.place as usize) {
                    *seen = number + 1;
                }
            }
            _ => {}
        }
    }
    for &(end, key) in ends.filter(|&&(_, key)| is_born(key, seen)) {
        found.push(Piece { acts: index(run.len())?, what: What::End { key, end } });
    }
    Ok(found)
}
