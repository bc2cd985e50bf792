//! The actions of a plan, from the prepared runs.

use crate::regions::holds::{End, Ends};
use crate::regions::prepared::{Act, Deed, Prepared};
use crate::timeline::STEPS;

/// Not there.
const NEVER: u32 = u32::MAX;

/// Setup and traced steps of a plan, and how the last step is repeated. Kept, and filled again for the next plan.
#[derive(Default)]
pub(super) struct Joined {
    pub(super) acts: Vec<Act>,
    /// Act at which each run begins, all steps in a row.
    pub(super) run_begins: Vec<usize>,
    /// Act at which the last traced step begins.
    pub(super) last_step: usize,
    /// What the last step frees of the step before, and what it leaves itself in its place; `None` when the two do not
    /// match and it cannot be repeated.
    pub(super) carried: Option<Vec<(u32, u32)>>,
    /// How often the last traced step happens once more.
    pub(super) repetitions: usize,
    ends: Ends,
    /// Per key, the act that first requests it.
    born: Vec<u32>,
    is_freed: Vec<bool>,
    was_requested: Vec<bool>,
}

fn refill<T: Clone>(vector: &mut Vec<T>, length: usize, value: T) {
    vector.clear();
    vector.resize(length, value);
}

impl Joined {
    /// Fills in the actions of `choice`, whose variants are all allowed.
    pub(super) fn join(&mut self, prepared: &Prepared<'_>, choice: &[usize]) {
        prepared.space.holders.ends(choice, &mut self.ends);
        self.acts.clear();
        self.run_begins.clear();
        refill(&mut self.born, prepared.keys, NEVER);
        refill(&mut self.is_freed, prepared.keys, false);
        refill(&mut self.was_requested, prepared.workspaces, false);
        let last_step = prepared.last_step();
        let mut ended = 0;
        for (number, base_run) in (0_u32..).zip(&prepared.runs) {
            if number as usize == last_step {
                self.last_step = self.acts.len();
            }
            self.run_begins.push(self.acts.len());
            let variant = base_run.region().map_or(0, |region| choice[region]);
            let mut skipped = 0;
            for act in &prepared.acts[variant][number as usize] {
                self.end_until(&mut ended, (number, act.at.saturating_mul(2)));
                if skipped > 0 {
                    skipped -= 1;
                } else if act.deed == Deed::Once {
                    let again = std::mem::replace(&mut self.was_requested[act.place as usize], true);
                    skipped = if again { act.bytes } else { 0 };
                } else {
                    self.push(*act);
                }
            }
            self.end_until(&mut ended, (number, u32::MAX));
        }
        self.carried = self.carried(prepared);
        let traced = prepared.step_begins.len() - 1;
        self.repetitions = if self.carried.is_some() { (STEPS + 1).saturating_sub(traced) } else { 0 };
    }

    fn push(&mut self, act: Act) {
        if let Some(born) = self.born.get_mut(act.place as usize) {
            match act.deed {
                // What is requested anew by a kernel keeps its number.
                Deed::Alloc if *born == NEVER => *born = u32::try_from(self.acts.len()).unwrap_or(NEVER),
                Deed::Free => self.is_freed[act.place as usize] = true,
                _ => {}
            }
        }
        self.acts.push(act);
    }

    /// Frees the keys that end at `until` or before.
    fn end_until(&mut self, ended: &mut usize, until: End) {
        while let Some(&(end, key)) = self.ends.found.get(*ended).filter(|(end, _)| *end <= until) {
            *ended += 1;
            if self.born[key as usize] != NEVER {
                self.push(Act { bytes: 0, place: key, at: end.1 / 2, deed: Deed::Free });
            }
        }
    }

    /// See [`crate::assemble::carried`].
    fn carried(&self, prepared: &Prepared<'_>) -> Option<Vec<(u32, u32)>> {
        let (mut freed_of_before, mut left) = (Vec::new(), Vec::new());
        for (index, act) in (0_u32..).zip(&self.acts).skip(self.last_step) {
            let Some(&born) = self.born.get(act.place as usize) else { continue };
            match act.deed {
                Deed::Alloc if born == index && !self.is_freed[act.place as usize] => left.push(act.place),
                Deed::Free if (born as usize) < self.last_step => freed_of_before.push((born, act.place)),
                _ => {}
            }
        }
        freed_of_before.sort_unstable();
        let class = |place: u32| prepared.class[place as usize];
        let same = freed_of_before.len() == left.len()
            && freed_of_before.iter().zip(&left).all(|(&(_, freed), &own)| class(freed) == class(own));
        same.then(|| freed_of_before.into_iter().map(|(_, freed)| freed).zip(left).collect())
    }
}
