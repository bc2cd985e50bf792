//! The bytes of many plans at many batch sizes, without playing them.
//!
//! Joining a plan does not depend on the batch: only sizes do. So a plan is joined once, and its requests and frees are
//! summed up for [`LANES`] batch sizes side by side. The most *requested* bytes are exact: they are what the timeline of
//! the spliced plan asks for at once. The most bytes of live *blocks*, each rounded up to the allocator's quantum, with what
//! the loop can do without left out, are a proven lower bound of what is allocated and reserved: a plan that has more of
//! them than the driver can hand out fits nothing, whatever the allocator does. Whether one below that fits is only known
//! once it was played.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::Error;
use crate::regions::joined::Joined;
use crate::regions::prepared::{Act, Deed, Prepared, index};
use crate::regions::space::RegionSpace;
use crate::regions::trial::block_bytes;
use crate::setting::Setting;
use crate::target::Throughput;

/// Batch sizes that are summed up side by side.
const LANES: usize = 16;
/// Plans that a thread takes at a time.
const CHUNK: usize = 256;
/// Integers up to this are exact in double precision, in which sums and maxima of several lanes are one instruction.
const EXACT_BYTES: u64 = 1 << 53;

type Lanes = [f64; LANES];

/// Bytes and time of every plan at every batch size, plan by plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanTable {
    /// Most requested bytes at a time without a limit, exact at the upper end of every uncertainty.
    pub requested_bytes: Vec<u64>,
    /// Most bytes of live blocks that the loop cannot do without: no less is ever reserved.
    pub least_reserved_bytes: Vec<u64>,
    /// Least time of recomputation, in picoseconds.
    pub recompute_ps: Vec<u64>,
    /// Per batch size, least time of the step without recomputation.
    pub step_ps: Vec<u64>,
}

impl RegionSpace {
    /// Bytes and time of every plan of `choices` at every one of `batches`. The answer does not depend on `threads`.
    ///
    /// # Errors
    /// [`Error::Regions`] for a choice that does not exist; [`Error::SizeOverflow`] for a batch at which sums are beyond
    /// 2^53 bytes; otherwise as [`RegionSpace::cheapest_plan`].
    pub fn plan_table(
        &self,
        choices: &[Vec<usize>],
        batches: &[u64],
        setting: &Setting,
        threads: usize,
    ) -> Result<PlanTable, Error> {
        for choice in choices {
            self.check(choice)?;
        }
        let throughput = Throughput::of(setting.gpu)?;
        let costs: Vec<_> = batches.iter().map(|&batch| self.costs(batch, &throughput)).collect::<Result<_, _>>()?;
        let mut prepared = Vec::with_capacity(batches.len());
        for &batch in batches {
            prepared.push(Prepared::new(self, batch, &self.target(batch, setting)?)?);
        }
        let groups = Group::all(&prepared)?;
        if let Some(&batch) = groups.iter().flat_map(|group| group.inexact(batches)).next() {
            return Err(Error::SizeOverflow { op: "all of them".to_owned(), layer: String::new(), batch });
        }
        let next = AtomicUsize::new(0);
        let parts = Mutex::new(Vec::new());
        let work = || {
            let mut summed = Summed::default();
            loop {
                let begin = next.fetch_add(CHUNK, Ordering::Relaxed);
                let Some(chunk) = choices.get(begin..choices.len().min(begin + CHUNK)).filter(|c| !c.is_empty()) else {
                    break;
                };
                let mut part = vec![(0, 0); chunk.len() * batches.len()];
                for (choice, row) in chunk.iter().zip(part.chunks_mut(batches.len())) {
                    for group in &groups {
                        group.sum(choice, &mut summed, row);
                    }
                }
                if let Ok(mut parts) = parts.lock() {
                    parts.push((begin, part));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.min(choices.len().div_ceil(CHUNK)) {
                scope.spawn(work);
            }
            work();
        });
        let mut parts = parts.into_inner().unwrap_or_default();
        parts.sort_unstable_by_key(|&(begin, _)| begin);
        let (requested_bytes, least_reserved_bytes) = parts.into_iter().flat_map(|(_, part)| part).unzip();
        let recompute_ps = |choice: &Vec<usize>| -> Vec<u64> {
            let of_batch = |costs: &crate::regions::cost::StepCosts| {
                let regions = costs.recompute_ps.iter().zip(choice);
                regions.fold(0, |sum: u64, (of_region, &variant)| sum.saturating_add(of_region[variant]))
            };
            costs.iter().map(of_batch).collect()
        };
        Ok(PlanTable {
            requested_bytes,
            least_reserved_bytes,
            recompute_ps: choices.iter().flat_map(recompute_ps).collect(),
            step_ps: costs.iter().map(|costs| costs.step_ps).collect(),
        })
    }
}

/// Batch sizes at which the same acts happen, with other bytes.
struct Group<'a> {
    /// Acts, whose bytes are a number in `sizes` where they are bytes.
    prepared: Prepared<'a>,
    /// Index of each lane's batch.
    batches: Vec<usize>,
    /// Requested bytes, and those of a block, per lane.
    sizes: Vec<(Lanes, Lanes)>,
}

/// Sums of one plan; kept, and filled again for the next plan.
#[derive(Default)]
struct Summed {
    joined: Joined,
    /// Per place, the number of its size.
    held: Vec<u32>,
}

impl<'a> Group<'a> {
    fn all(prepared: &[Prepared<'a>]) -> Result<Vec<Self>, Error> {
        let mut alike: Vec<Vec<usize>> = Vec::new();
        for (number, one) in prepared.iter().enumerate() {
            let room = |group: &&mut Vec<usize>| group.len() < LANES && same_acts(&prepared[group[0]], one);
            match alike.iter_mut().find(room) {
                Some(group) => group.push(number),
                None => alike.push(vec![number]),
            }
        }
        alike.into_iter().map(|batches| Self::new(prepared, batches)).collect()
    }

    fn new(all: &[Prepared<'a>], batches: Vec<usize>) -> Result<Self, Error> {
        let first = &all[batches[0]];
        // Number 0 is nothing, for places that hold nothing and for what can be done without.
        let mut sizes = vec![([0.0; LANES], [0.0; LANES])];
        let mut known: BTreeMap<(bool, Vec<u64>), u64> = BTreeMap::new();
        let mut acts = first.acts.clone();
        for (variant, runs) in acts.iter_mut().enumerate() {
            for (run, acts) in runs.iter_mut().enumerate() {
                for (at, act) in acts.iter_mut().enumerate() {
                    if !matches!(act.deed, Deed::Alloc | Deed::TryAlloc) {
                        continue;
                    }
                    let dispensable = act.deed == Deed::TryAlloc;
                    let bytes: Vec<u64> =
                        batches.iter().map(|&batch| all[batch].acts[variant][run][at].bytes).collect();
                    act.bytes = *known.entry((dispensable, bytes)).or_insert_with_key(|(_, bytes)| {
                        let blocks = |&bytes: &u64| if dispensable { 0 } else { block_bytes(bytes) };
                        sizes.push((lanes(bytes.iter().copied()), lanes(bytes.iter().map(blocks))));
                        (sizes.len() - 1) as u64
                    });
                }
            }
        }
        index(sizes.len())?;
        let prepared = Prepared {
            space: first.space,
            runs: first.runs.clone(),
            step_begins: first.step_begins.clone(),
            acts,
            pieces: first.pieces.clone(),
            keys: first.keys,
            places: first.places,
            workspaces: first.workspaces,
            class: first.class.clone(),
        };
        Ok(Self { prepared, batches, sizes })
    }

    /// Batch sizes whose sums could be inexact in double precision.
    fn inexact<'b>(&self, batches: &'b [u64]) -> impl Iterator<Item = &'b u64> {
        let requests = self.prepared.acts.iter().flatten().flatten().filter(|act| act.deed != Deed::TakeOver);
        let mut total = [0.0; LANES];
        for act in requests {
            let size = usize::try_from(act.bytes).ok().and_then(|size| self.sizes.get(size));
            if let (Some((_, blocks)), Deed::Alloc | Deed::TryAlloc) = (size, act.deed) {
                add(&mut total, blocks);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let limit = EXACT_BYTES as f64;
        let over: Vec<usize> = (0..self.batches.len()).filter(|&lane| total[lane] >= limit).collect();
        let own = self.batches.clone();
        over.into_iter().map(move |lane| &batches[own[lane]])
    }

    /// Puts the sums of a plan into the row of its batches.
    fn sum(&self, choice: &[usize], Summed { joined, held }: &mut Summed, row: &mut [(u64, u64)]) {
        joined.join(&self.prepared, choice);
        held.clear();
        held.resize(self.prepared.places, 0);
        let mut tally =
            Tally { sizes: &self.sizes, held, live: ([0.0; LANES], [0.0; LANES]), most: ([0.0; LANES], [0.0; LANES]) };
        tally.acts(&joined.acts[..joined.last_step]);
        let before = tally.live;
        tally.acts(&joined.acts[joined.last_step..]);
        if let Some(carried) = joined.carried.as_ref().filter(|_| tally.live != before) {
            // A step that begins with as much as the one before has the same sums.
            for _ in 0..joined.repetitions {
                let left: Vec<u32> = carried.iter().map(|&(_, left)| tally.held[left as usize]).collect();
                for (&(freed, _), size) in carried.iter().zip(left) {
                    tally.held[freed as usize] = size;
                }
                tally.acts(&joined.acts[joined.last_step..]);
            }
        }
        for (lane, &batch) in self.batches.iter().enumerate() {
            row[batch] = (whole(tally.most.0[lane]), whole(tally.most.1[lane]));
        }
    }
}

/// Whether the same things happen in the same order to the same places.
fn same_acts(one: &Prepared<'_>, other: &Prepared<'_>) -> bool {
    let same = |(a, b): (&Act, &Act)| {
        let is_size = matches!(a.deed, Deed::Alloc | Deed::TryAlloc);
        (a.place, a.at, a.deed) == (b.place, b.at, b.deed) && (is_size || a.bytes == b.bytes)
    };
    one.places == other.places
        && one.acts.iter().flatten().zip(other.acts.iter().flatten()).all(|(a, b)| {
            // The runs of both are those of the space.
            a.len() == b.len() && a.iter().zip(b).all(same)
        })
}

/// Sums up sizes.
struct Tally<'a> {
    sizes: &'a [(Lanes, Lanes)],
    held: &'a mut [u32],
    live: (Lanes, Lanes),
    most: (Lanes, Lanes),
}

impl Tally<'_> {
    fn acts(&mut self, acts: &[Act]) {
        for act in acts {
            let place = act.place as usize;
            match act.deed {
                Deed::Alloc | Deed::TryAlloc => {
                    let number = u32::try_from(act.bytes).unwrap_or(0);
                    let (requested, blocks) = &self.sizes[number as usize];
                    self.held[place] = number;
                    add(&mut self.live.0, requested);
                    add(&mut self.live.1, blocks);
                    raise(&mut self.most.0, &self.live.0);
                    raise(&mut self.most.1, &self.live.1);
                }
                Deed::Free => {
                    let (requested, blocks) = &self.sizes[std::mem::take(&mut self.held[place]) as usize];
                    subtract(&mut self.live.0, requested);
                    subtract(&mut self.live.1, blocks);
                }
                Deed::TakeOver => {
                    self.held[place] = usize::try_from(act.bytes).map_or(0, |former| self.held[former]);
                }
                Deed::Once => {}
            }
        }
    }
}

fn add(sum: &mut Lanes, more: &Lanes) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

fn subtract(sum: &mut Lanes, less: &Lanes) {
    sum.iter_mut().zip(less).for_each(|(sum, less)| *sum -= less);
}

fn raise(most: &mut Lanes, value: &Lanes) {
    // A comparison, unlike `f64::max`, is one instruction: there is no NaN here.
    most.iter_mut().zip(value).for_each(|(most, value)| *most = if *value > *most { *value } else { *most });
}

#[expect(clippy::cast_precision_loss, reason = "sums are below 2^53, which is checked")]
fn lanes(values: impl Iterator<Item = u64>) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane = value as f64);
    lanes
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number from 0 to 2^53")]
fn whole(value: f64) -> u64 {
    value as u64
}
