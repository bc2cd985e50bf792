//! A timeline on the allocator: where spec and allocator meet.

use serde::{Deserialize, Serialize};

use crate::allocator::{AllocConf, Allocator, BlockId, Driver, OutOfMemory, StreamId};
use crate::spec::Phase;
use crate::timeline::{Action, Timeline};

/// Bytes of the three quantities that `PyTorch` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes the program asked for.
    pub requested_bytes: u64,
    /// Bytes of the blocks handed out.
    pub allocated_bytes: u64,
    /// Bytes of the segments taken from the driver.
    pub reserved_bytes: u64,
}

impl Counters {
    fn raise(&mut self, other: Self) {
        self.requested_bytes = self.requested_bytes.max(other.requested_bytes);
        self.allocated_bytes = self.allocated_bytes.max(other.allocated_bytes);
        self.reserved_bytes = self.reserved_bytes.max(other.reserved_bytes);
    }
}

/// Peaks within one phase of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePeak {
    /// Step from 0; setup counts as step 0.
    pub step: usize,
    /// The phase.
    pub phase: Phase,
    /// Peaks between its begin and the next phase's.
    #[serde(flatten)]
    pub peak: Counters,
}

/// An out-of-memory that nothing could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Index of the action that failed.
    pub action: usize,
    /// Step from 0.
    pub step: usize,
    /// What the allocator says.
    pub out_of_memory: OutOfMemory,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Peaks of the whole run (up to the failure, if there is one).
    pub peak: Counters,
    /// Index of the action at which the allocated bytes first reached their peak.
    pub peak_action: usize,
    /// Peaks by step and phase.
    pub phases: Vec<PhasePeak>,
    /// Driver calls repeated after the cache was released.
    pub num_alloc_retries: u64,
    /// Workspaces that were out of memory and done without.
    pub num_ooms: u64,
    /// Counters after the last action.
    pub end: Counters,
    /// The out-of-memory that stopped the run.
    pub failure: Option<Failure>,
}

fn counters(allocator: &Allocator) -> Counters {
    let stats = allocator.stats();
    Counters {
        requested_bytes: stats.requested_bytes.all.current,
        allocated_bytes: stats.allocated_bytes.all.current,
        reserved_bytes: stats.reserved_bytes.all.current,
    }
}

/// Plays `timeline` on a fresh allocator; `observe` sees the counters after every action.
pub fn play(
    timeline: &Timeline,
    conf: &AllocConf,
    driver: Driver,
    mut observe: impl FnMut(usize, Counters),
) -> Outcome {
    let mut allocator = Allocator::new(conf, driver);
    let mut blocks = vec![BlockId::NULL; timeline.requests.len()];
    let mut outcome = Outcome {
        peak: Counters::default(),
        peak_action: 0,
        phases: vec![PhasePeak { step: 0, phase: Phase::Setup, peak: Counters::default() }],
        num_alloc_retries: 0,
        num_ooms: 0,
        end: Counters::default(),
        failure: None,
    };
    let mut phase_peak = Counters::default();
    let mut step = 0;
    for (index, action) in timeline.actions.iter().enumerate() {
        match *action {
            Action::Alloc(request) => {
                let wanted = &timeline.requests[request as usize];
                match allocator.alloc(wanted.bytes, StreamId(0)) {
                    Ok(block) => blocks[request as usize] = block,
                    Err(_) if wanted.dispensable => outcome.num_ooms += 1,
                    Err(out_of_memory) => {
                        outcome.failure = Some(Failure { action: index, step, out_of_memory });
                        break;
                    }
                }
                let now = counters(&allocator);
                if now.allocated_bytes > outcome.peak.allocated_bytes {
                    outcome.peak_action = index;
                }
                phase_peak.raise(now);
                outcome.peak.raise(now);
            }
            Action::Free(request) => allocator.free(blocks[request as usize]),
            Action::EmptyCache => allocator.empty_cache(),
            Action::Mark(phase) => {
                if let Some(last) = outcome.phases.last_mut() {
                    // What follows the end of a step still belongs to its last phase.
                    last.peak.raise(phase_peak);
                }
                phase_peak = counters(&allocator);
                if phase == Phase::End {
                    step += 1;
                } else {
                    outcome.phases.push(PhasePeak { step, phase, peak: phase_peak });
                }
            }
        }
        observe(index, counters(&allocator));
    }
    if let Some(last) = outcome.phases.last_mut() {
        last.peak.raise(phase_peak);
    }
    outcome.num_alloc_retries = allocator.stats().num_alloc_retries;
    outcome.end = counters(&allocator);
    outcome
}
