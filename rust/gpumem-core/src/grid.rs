//! Many what-ifs of one spec: batch sizes times settings, each answered exactly as [`estimate`] answers, work shared.
//!
//! What is shared cannot change an answer. Cards on which a loop makes the same requests and frees have one timeline, and
//! that is played once without a limit. A limit then needs a play of its own only where the two proofs do not decide:
//! what reserves no more than the limit without one runs the same way within it, and what holds more than the limit in
//! live blocks alone cannot get through.
//!
//! [`estimate`]: crate::report::estimate

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::allocator::{AllocConf, Driver};
use crate::error::Error;
use crate::play::{Counters, play};
use crate::report::Quantity;
use crate::setting::Setting;
use crate::spec::ModelSpec;
use crate::target::{End, Target};
use crate::timeline::{Action, Timeline};
use crate::units::round_up;

/// Quantum of a block (facts/allocator.md section 1).
const BLOCK_BYTES: u64 = 512;

/// The figures of a [`Report`](crate::report::Report), without what makes them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Bytes asked for by the program.
    pub requested_peak: Quantity,
    /// `torch.cuda.max_memory_allocated()`.
    pub allocated_peak: Quantity,
    /// `torch.cuda.max_memory_reserved()`.
    pub reserved_peak: Quantity,
    /// Reserved plus the context.
    pub device_peak: Quantity,
    /// Whether the loop runs through within the budget at the upper end; `None` without a budget.
    pub fits: Option<bool>,
}

/// The figures of every batch under every setting: one vector per batch, in the order of `settings`.
///
/// With `upper_only` the upper end of every uncertainty alone is played, a third of the work: what fits is the same, and
/// every end of a figure is that of the upper end (whose reserved bytes are hardly ever less than those of another).
///
/// An error concerns its own what-if only: a batch that the spec does not answer for, a size overflow, a budget below the
/// context. The answer does not depend on `threads`.
#[must_use]
pub fn figures(
    spec: &ModelSpec,
    batches: &[u64],
    settings: &[Setting],
    upper_only: bool,
    threads: usize,
) -> Vec<Vec<Result<Figures, Error>>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(batches.len()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&batch) = batches.get(index) else { break };
            let mut runs = Runs { spec, batch, upper_only, by_target: Vec::new(), played: Vec::new() };
            let answers: Vec<_> = settings.iter().map(|setting| runs.figures(setting)).collect();
            if let Ok(mut done) = done.lock() {
                done.push((index, answers));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(batches.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, answers)| answers).collect()
}

/// The timelines of one batch.
struct Runs<'a> {
    spec: &'a ModelSpec,
    batch: u64,
    upper_only: bool,
    /// What each target asked about has: its place in `played`.
    by_target: Vec<(Target, Result<usize, Error>)>,
    played: Vec<Run>,
}

/// One timeline, and what came of it without a limit under each configuration of the allocator.
struct Run {
    timeline: Timeline,
    /// Most bytes of live blocks that the loop cannot do without.
    live_bytes: u64,
    unlimited: Vec<(AllocConf, Counters)>,
}

impl Runs<'_> {
    fn figures(&mut self, setting: &Setting) -> Result<Figures, Error> {
        let mut peaks = [Counters::default(); 3];
        let mut stopped = false;
        for (peak, end) in peaks.iter_mut().zip([End::Low, End::Likely, End::High]) {
            let driver = setting.driver(end)?;
            if self.upper_only && end != End::High {
                continue;
            }
            let run = self.run(setting.target_for([self.spec], self.batch, end)?)?;
            (*peak, stopped) = self.played[run].within(&setting.alloc_conf, driver);
        }
        if self.upper_only {
            peaks = [peaks[2]; 3];
        }
        let reserved_peak = Quantity::of_ends(peaks.map(|peak| peak.reserved_bytes));
        Ok(Figures {
            requested_peak: Quantity::of_ends(peaks.map(|peak| peak.requested_bytes)),
            allocated_peak: Quantity::of_ends(peaks.map(|peak| peak.allocated_bytes)),
            reserved_peak,
            device_peak: reserved_peak.with_context(setting.context().0),
            // The last end is the high one.
            fits: setting.budget_bytes().map(|_| !stopped),
        })
    }

    fn run(&mut self, target: Target) -> Result<usize, Error> {
        if let Some((_, known)) = self.by_target.iter().find(|(other, _)| *other == target) {
            return known.clone();
        }
        let run = Timeline::new(self.spec, self.batch, &target).map(|timeline| {
            let known = self.played.iter().position(|run| run.timeline == timeline);
            known.unwrap_or_else(|| {
                let live_bytes = live_bytes(&timeline);
                self.played.push(Run { timeline, live_bytes, unlimited: Vec::new() });
                self.played.len() - 1
            })
        });
        self.by_target.push((target, run.clone()));
        run
    }
}

impl Run {
    /// Peaks within what the driver has (without a limit where that does not do), and whether it did not do.
    fn within(&mut self, conf: &AllocConf, driver: Driver) -> (Counters, bool) {
        let peak = self.unlimited(conf);
        let capacity_bytes = driver.capacity_bytes();
        if self.live_bytes > capacity_bytes {
            return (peak, true);
        }
        let unlimited = Driver::unlimited();
        let is_unlimited =
            (capacity_bytes, driver.total_bytes()) == (unlimited.capacity_bytes(), unlimited.total_bytes());
        if is_unlimited || (conf.acts_at_the_limit_only() && peak.reserved_bytes <= capacity_bytes) {
            return (peak, false);
        }
        let outcome = play(&self.timeline, conf, driver, |_, _| ());
        if outcome.failure.is_some() { (peak, true) } else { (outcome.peak, false) }
    }

    fn unlimited(&mut self, conf: &AllocConf) -> Counters {
        if let Some((_, peak)) = self.unlimited.iter().find(|(other, _)| other == conf) {
            return *peak;
        }
        let peak = play(&self.timeline, conf, Driver::unlimited(), |_, _| ()).peak;
        self.unlimited.push((conf.clone(), peak));
        peak
    }
}

fn live_bytes(timeline: &Timeline) -> u64 {
    let block_bytes = |request: u32| {
        let request = &timeline.requests[request as usize];
        if request.dispensable { 0 } else { round_up(request.bytes, BLOCK_BYTES).unwrap_or(request.bytes) }
    };
    let (mut live, mut most) = (0_u64, 0);
    for action in &timeline.actions {
        match *action {
            Action::Alloc(request) => {
                live = live.saturating_add(block_bytes(request));
                most = live.max(most);
            }
            Action::Free(request) => live = live.saturating_sub(block_bytes(request)),
            Action::Mark(_) | Action::EmptyCache => {}
        }
    }
    most
}
