//! Plans joined and played on the allocator.

use crate::allocator::{AllocConf, Allocator, BlockId, Driver, StreamId};
use crate::error::Error;
use crate::regions::joined::Joined;
use crate::regions::prepared::{Act, Deed, Prepared};
use crate::setting::Setting;
use crate::target::End;
use crate::units::round_up;

/// Quantum of a block (facts/allocator.md section 1).
const BLOCK_BYTES: u64 = 512;

/// Bytes of the block that a request gets at least.
pub(super) fn block_bytes(bytes: u64) -> u64 {
    round_up(bytes, BLOCK_BYTES).unwrap_or(bytes)
}

/// Bytes of blocks around and in one run of the last traced step. What the loop can do without is left out: whether a
/// plan fits does not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) before: u64,
    pub(super) most: u64,
    pub(super) after: u64,
}

/// Plays one plan after the other.
pub(super) struct Trials<'a> {
    prepared: &'a Prepared<'a>,
    conf: &'a AllocConf,
    driver: Driver,
    joined: Joined,
    blocks: Vec<BlockId>,
    /// Block bytes of each place.
    held: Vec<u64>,
    /// Plans that were played on the allocator.
    pub(super) played: usize,
}

impl<'a> Trials<'a> {
    pub(super) fn new(prepared: &'a Prepared<'a>, setting: &'a Setting) -> Result<Self, Error> {
        Ok(Self {
            prepared,
            conf: &setting.alloc_conf,
            driver: setting.driver(End::High)?,
            joined: Joined::default(),
            blocks: Vec::new(),
            held: Vec::new(),
            played: 0,
        })
    }

    /// One more for the same space and setting.
    pub(super) fn another(&self) -> Self {
        Self {
            prepared: self.prepared,
            conf: self.conf,
            driver: self.driver.clone(),
            joined: Joined::default(),
            blocks: Vec::new(),
            held: Vec::new(),
            played: 0,
        }
    }

    /// What is joined and played.
    pub(super) const fn prepared(&self) -> &'a Prepared<'a> {
        self.prepared
    }

    /// Bytes that the driver can hand out.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.driver.capacity_bytes()
    }

    /// Moments of the last traced step's runs under a plan.
    pub(super) fn moments(&mut self, choice: &[usize]) -> Vec<Moment> {
        self.joined.join(self.prepared, choice);
        let first = self.prepared.last_step();
        let begins = &self.joined.run_begins;
        let mut tally = Tally::new(&mut self.held, self.prepared.places);
        tally.acts(&self.joined.acts[..begins.get(first).copied().unwrap_or(0)]);
        let ends = begins.iter().skip(first + 1).copied().chain([self.joined.acts.len()]);
        let moment = |(&begin, end): (&usize, usize)| {
            let before = tally.live;
            tally.peak = before;
            tally.acts(&self.joined.acts[begin..end]);
            Moment { before, most: tally.peak, after: tally.live }
        };
        begins[first..].iter().zip(ends).map(moment).collect()
    }

    /// The most bytes of blocks that a plan holds at a time, all steps considered: it fits nothing smaller.
    pub(super) fn live_bytes(&mut self, choice: &[usize]) -> u64 {
        self.joined.join(self.prepared, choice);
        self.live_of_joined()
    }

    fn live_of_joined(&mut self) -> u64 {
        let mut tally = Tally::new(&mut self.held, self.prepared.places);
        tally.acts(&self.joined.acts);
        if let Some(carried) = &self.joined.carried {
            for _ in 0..self.joined.repetitions {
                take_over(tally.held, carried);
                tally.acts(&self.joined.acts[self.joined.last_step..]);
            }
        }
        tally.peak
    }

    /// Whether the loop runs through under a plan.
    pub(super) fn fits(&mut self, choice: &[usize]) -> bool {
        if self.live_bytes(choice) > self.capacity_bytes() {
            return false;
        }
        self.play(self.driver.clone(), true).is_some()
    }

    /// Bytes within which a plan was seen to get through: what it reserves when nothing limits it, or less where it can
    /// do without some workspaces.
    pub(super) fn sufficient_bytes(&mut self, choice: &[usize]) -> u64 {
        self.joined.join(self.prepared, choice);
        let total_bytes = self.driver.total_bytes();
        let unlimited = Driver::new(Driver::unlimited().capacity_bytes(), total_bytes);
        let reserved_bytes = self.play(unlimited.clone(), true).unwrap_or(u64::MAX);
        let without_bytes = self.play(unlimited, false).unwrap_or(u64::MAX);
        let does = without_bytes < reserved_bytes && self.play(Driver::new(without_bytes, total_bytes), true).is_some();
        if does { without_bytes } else { reserved_bytes }
    }

    /// Plays what is joined, with or without what the loop can do without; `None` when memory runs out, else the most
    /// bytes reserved at a time.
    fn play(&mut self, driver: Driver, dispensables: bool) -> Option<u64> {
        self.played += 1;
        let mut allocator = Allocator::new(self.conf, driver).without_block_statistics();
        self.blocks.clear();
        self.blocks.resize(self.prepared.places, BlockId::NULL);
        let Joined { acts, carried, repetitions, last_step, .. } = &self.joined;
        run(&mut allocator, &mut self.blocks, acts, dispensables)?;
        if let Some(carried) = carried {
            for _ in 0..*repetitions {
                take_over(&mut self.blocks, carried);
                run(&mut allocator, &mut self.blocks, &acts[*last_step..], dispensables)?;
            }
        }
        Some(allocator.stats().reserved_bytes.all.peak)
    }
}

/// What the last step left takes the place of what it freed.
fn take_over<T: Copy>(of_place: &mut [T], carried: &[(u32, u32)]) {
    let left: Vec<T> = carried.iter().map(|&(_, left)| of_place[left as usize]).collect();
    for (&(freed, _), value) in carried.iter().zip(left) {
        of_place[freed as usize] = value;
    }
}

fn run(allocator: &mut Allocator, blocks: &mut [BlockId], acts: &[Act], dispensables: bool) -> Option<()> {
    for act in acts {
        let place = act.place as usize;
        match act.deed {
            Deed::Alloc => blocks[place] = allocator.alloc(act.bytes, StreamId(0)).ok()?,
            Deed::TryAlloc if !dispensables => blocks[place] = BlockId::NULL,
            Deed::TryAlloc => blocks[place] = allocator.alloc(act.bytes, StreamId(0)).unwrap_or(BlockId::NULL),
            Deed::Free => allocator.free(std::mem::replace(&mut blocks[place], BlockId::NULL)),
            Deed::TakeOver => blocks[place] = blocks[usize::try_from(act.bytes).ok()?],
            Deed::Once => {}
        }
    }
    Some(())
}

/// An action of a plan as the search plays it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Played {
    /// The next request.
    Request {
        /// Bytes, never zero.
        bytes: u64,
        /// Whether the loop goes on without them.
        dispensable: bool,
    },
    /// The request with this number, from 0, ends.
    Free(usize),
}

/// The actions of a joined plan.
pub(super) fn played(prepared: &Prepared<'_>, joined: &Joined) -> Vec<Played> {
    let mut actions = Vec::new();
    let mut requests = 0;
    let mut current: Vec<Option<usize>> = vec![None; prepared.places];
    let mut act = |act: &Act, current: &mut Vec<Option<usize>>| {
        let place = act.place as usize;
        match act.deed {
            Deed::Alloc | Deed::TryAlloc => {
                current[place] = (act.bytes > 0).then_some(requests);
                if act.bytes > 0 {
                    actions.push(Played::Request { bytes: act.bytes, dispensable: act.deed == Deed::TryAlloc });
                    requests += 1;
                }
            }
            Deed::Free => actions.extend(current[place].take().map(Played::Free)),
            Deed::TakeOver => current[place] = usize::try_from(act.bytes).ok().and_then(|former| current[former]),
            Deed::Once => {}
        }
    };
    joined.acts.iter().for_each(|one| act(one, &mut current));
    for carried in joined.carried.iter().cycle().take(joined.repetitions) {
        take_over(&mut current, carried);
        joined.acts[joined.last_step..].iter().for_each(|one| act(one, &mut current));
    }
    actions
}

/// Sums up blocks.
struct Tally<'a> {
    held: &'a mut [u64],
    live: u64,
    peak: u64,
}

impl<'a> Tally<'a> {
    fn new(held: &'a mut Vec<u64>, places: usize) -> Self {
        held.clear();
        held.resize(places, 0);
        Self { held, live: 0, peak: 0 }
    }

    fn acts(&mut self, acts: &[Act]) {
        for act in acts {
            let place = act.place as usize;
            match act.deed {
                Deed::Alloc => {
                    let bytes = block_bytes(act.bytes);
                    self.held[place] = bytes;
                    self.live = self.live.saturating_add(bytes);
                    self.peak = self.peak.max(self.live);
                }
                Deed::Free => self.live = self.live.saturating_sub(std::mem::take(&mut self.held[place])),
                Deed::TakeOver => {
                    let former = usize::try_from(act.bytes).ok().map_or(0, |former| self.held[former]);
                    self.held[place] = former;
                }
                Deed::TryAlloc | Deed::Once => {}
            }
        }
    }
}
