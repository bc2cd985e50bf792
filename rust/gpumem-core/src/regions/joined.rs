//! The actions of a plan, from the prepared runs.

use crate::regions::holds::End;
use crate::regions::matching::NONE;
use crate::regions::pieces::What;
use crate::regions::prepared::{Act, Deed, Prepared};
use crate::timeline::STEPS;

/// Stands for the end of a key that was freed, or that never begins.
const GONE: End = End::new(u32::MAX, u32::MAX);

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
    /// Per key, where it ends.
    last: Vec<End>,
    /// Variants that have a part in it.
    used: Vec<usize>,
    was_requested: Vec<bool>,
}

fn refill<T: Clone>(vector: &mut Vec<T>, length: usize, value: T) {
    vector.clear();
    vector.resize(length, value);
}

impl Joined {
    /// Fills in the actions of `choice`, whose variants are all allowed.
    pub(super) fn join(&mut self, prepared: &Prepared<'_>, choice: &[usize]) {
        let holders = &prepared.space.holders;
        holders.last(choice, &mut self.last, &mut self.used);
        self.acts.clear();
        self.run_begins.clear();
        refill(&mut self.was_requested, prepared.workspaces, false);
        let last_step = prepared.last_step();
        // Keys of earlier steps that the last one frees.
        let mut freed_of_before = Vec::new();
        for (number, base_run) in prepared.runs.iter().enumerate() {
            if number == last_step {
                self.last_step = self.acts.len();
            }
            self.run_begins.push(self.acts.len());
            let variant = base_run.region().map_or(0, |region| choice[region]);
            let acts = &prepared.acts[variant][number];
            for &key in prepared.pieces.absent(variant, number) {
                self.last[key as usize] = GONE;
            }
            let mut copied = 0;
            for piece in prepared.pieces.of(variant, number) {
                let until = piece.acts as usize;
                self.acts.extend_from_slice(&acts[copied..until]);
                copied = until;
                match piece.what {
                    What::End { key, end } => {
                        let last = &mut self.last[key as usize];
                        if *last != end || !holders.is_freed(key as usize, &self.used) {
                            continue;
                        }
                        *last = GONE;
                        self.acts.push(Act { bytes: 0, place: key, at: end.doubled() / 2, deed: Deed::Free });
                        if number >= last_step && (prepared.pieces.birth[key as usize] as usize) < last_step {
                            freed_of_before.push(key);
                        }
                    }
                    What::Once { workspace, steps } => {
                        let again = std::mem::replace(&mut self.was_requested[workspace as usize], true);
                        copied += 1 + if again { steps as usize } else { 0 };
                    }
                }
            }
            self.acts.extend_from_slice(&acts[copied..]);
        }
        self.carried = self.carried(prepared, freed_of_before);
        let traced = prepared.step_begins.len() - 1;
        self.repetitions = if self.carried.is_some() { (STEPS + 1).saturating_sub(traced) } else { 0 };
    }

    /// See [`crate::assemble::carried`]; keys are numbered in the order in which they begin.
    fn carried(&self, prepared: &Prepared<'_>, mut freed_of_before: Vec<u32>) -> Option<Vec<(u32, u32)>> {
        freed_of_before.sort_unstable();
        let last_step = u32::try_from(prepared.last_step()).ok()?;
        let births = (0_u32..).zip(&prepared.pieces.birth);
        let of_last_step = births.filter(|&(_, &birth)| birth >= last_step && birth != NONE);
        let left = of_last_step.map(|(key, _)| key).filter(|&key| self.last[key as usize] != GONE);
        let left: Vec<u32> = left.collect();
        let class = |key: u32| prepared.class[key as usize];
        let same = freed_of_before.len() == left.len()
            && freed_of_before.iter().zip(&left).all(|(&freed, &own)| class(freed) == class(own));
        same.then(|| freed_of_before.into_iter().zip(left).collect())
    }
}
