//! Allocator histories that other people recorded on real GPUs, replayed: every address, every segment size and
//! every segment the allocator gave back must come out as recorded, in the recorded order, and so must the state at
//! the end.
//!
//! Taken from a trace: requests, frees, where the driver placed each new segment, whether the trace opens with a
//! cache release (a recording that starts with `empty_cache`), and one number for the device: its capacity. That
//! number is not recorded; it must lie between what the trace shows to fit and the smallest attempt it shows to
//! fail, and the replay is run at both ends. Which segments are then released, and when, is the simulator's answer.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "replay/trace.rs"]
mod trace;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use gpumem_core::allocator::{DriverCall, RecordedEvent, ReplayError, Replayed, TieBreak};

/// Traces in `../shared` whose starting state is known, and what they contain (truth/README.md).
const SHARED: Counts =
    Counts { traces: 29, allocations: 61_831, segments: 7_215, segment_frees: 4_420, frees: 49_621, retries: 41 };
/// The same for the traces in this repository.
const COMMITTED: Counts =
    Counts { traces: 8, allocations: 10_038, segments: 874, segment_frees: 11, frees: 8_772, retries: 1 };

/// What was compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    traces: u64,
    allocations: u64,
    segments: u64,
    segment_frees: u64,
    frees: u64,
    /// Allocations for which the cache had to be released.
    retries: u64,
}

impl Counts {
    fn add(&mut self, replayed: &Replayed) {
        self.traces += 1;
        self.allocations += replayed.allocations;
        self.segments += replayed.segments;
        self.segment_frees += replayed.segment_frees;
        self.frees += replayed.frees;
        self.retries += replayed.retries;
    }
}

#[test]
fn replays_the_committed_traces() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/snapshots");
    assert_eq!(replay_all(&directory), COMMITTED);
}

#[test]
fn replays_the_shared_traces() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/truth/snapshots");
    if !directory.exists() {
        // Written past the capture of passing tests: a skip must be seen.
        let missing = directory.display();
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no recorded traces at {missing}: only the committed ones were replayed"
        );
        return;
    }
    assert_eq!(replay_all(&directory), SHARED);
}

fn replay_all(directory: &Path) -> Counts {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut counts = Counts::default();
    for file in files {
        let Some(history) = trace::read(&file) else { continue };
        let (low, high) = trace::capacity_bounds(&history);
        assert!(low <= high, "{}: no single capacity explains the trace", file.display());
        let replay = |capacity| {
            let replayed = history.replay(capacity, TieBreak::Address);
            replayed.unwrap_or_else(|error| panic!("{} at {capacity}: {error}", file.display()))
        };
        assert_eq!(replay(low), replay(high), "{}: the capacity changes more than it should", file.display());
        counts.add(&replay(high));
    }
    counts
}

#[test]
fn a_changed_record_is_noticed() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/snapshots/shreyansh26_model_memory_usage_profile_grad_b63fb8c_d0.json");
    let history = trace::read(&file).unwrap();
    let changed = |change: &dyn Fn(&mut RecordedEvent)| {
        let mut other = history.clone();
        other.events.iter_mut().for_each(change);
        other.replay(1 << 40, TieBreak::Address)
    };
    assert!(changed(&|_| ()).is_ok());
    let larger = changed(&|event| {
        if let RecordedEvent::Driver(DriverCall::Malloc { bytes, .. }) = event {
            *bytes += 1 << 21;
        }
    });
    assert!(matches!(larger, Err(ReplayError::Segments { .. })), "{larger:?}");
    let moved = changed(&|event| {
        if let RecordedEvent::Alloc { address, .. } = event {
            *address += 512;
        }
    });
    assert!(matches!(moved, Err(ReplayError::Address { event: 1, .. })), "{moved:?}");
    assert!(matches!(history.replay(1 << 30, TieBreak::Address), Err(ReplayError::NoRoom { .. })));
}
