//! How many plans are built for one operation.
//!
//! `cudnn.benchmark` builds every plan that the heuristics name, to time them; here all of them take the same time, so the
//! first one wins. Those that cuDNN compiles at run time take about a second each, minutes for a network, for nothing: so
//! once there is a plan for an operation, further ones of that kind are refused as "not supported". Without benchmark mode
//! no plan is built after the first that works, and nothing is refused.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::real::{Cudnn, Descriptor, attribute_type, kind};
use crate::counts::note_guess;

/// Attribute names of `cudnn_graph.h`.
pub(super) const CONFIGURATION_ENGINE: i32 = 300;
pub(super) const ENGINE_BEHAVIOR_NOTE: i32 = 1305;
pub(super) const PLAN_CONFIGURATION: i32 = 401;

/// `CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION`.
pub(super) const RUNTIME_COMPILATION: i32 = 0;
/// More notes than there are kinds of them.
pub(super) const MOST_NOTES: usize = 16;

thread_local! {
    /// Whether there is a plan for the operation that this thread last asked the heuristics about.
    static PLANNED: Cell<bool> = const { Cell::new(false) };
}

/// Engine configuration of each plan, as addresses.
static CONFIGURATIONS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn configurations() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    CONFIGURATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The heuristics were asked about an operation.
pub(super) fn begin() {
    PLANNED.set(false);
}

/// A plan for it was built.
pub(super) fn planned() {
    PLANNED.set(true);
}

/// The program gave `plan` its configuration, the descriptor that `values` points to.
pub(super) fn note_configuration(plan: usize, values: *const c_void) {
    if !values.is_null() {
        // SAFETY: the value of this attribute is one descriptor, by the header's documentation.
        configurations().insert(plan, unsafe { values.cast::<usize>().read_unaligned() });
    }
}

/// `plan` is gone.
pub(super) fn forget(plan: usize) {
    configurations().remove(&plan);
}

/// Whether building `plan` would be for nothing.
pub(super) fn is_superfluous(real: &Cudnn, plan: usize) -> bool {
    if !PLANNED.get() {
        return false;
    }
    let configuration = configurations().get(&plan).copied();
    let superfluous = configuration.is_some_and(|it| is_compiled_at_run_time(real, it as Descriptor) == Some(true));
    if superfluous {
        note_guess("cudnnBackendFinalize (benchmark mode: plans compiled at run time left out)");
    }
    superfluous
}

fn is_compiled_at_run_time(real: &Cudnn, configuration: Descriptor) -> Option<bool> {
    let mut engine = real.create(kind::ENGINE).ok()?;
    let mut count = 0_i64;
    let mut notes = [-1_i32; MOST_NOTES];
    let of = attribute_type::BACKEND_DESCRIPTOR;
    let asked = real
        .get(configuration, CONFIGURATION_ENGINE, of, 1, &raw mut count, (&raw mut engine).cast())
        .and_then(|()| {
            let room = i64::try_from(MOST_NOTES).unwrap_or(0);
            real.get(
                engine,
                ENGINE_BEHAVIOR_NOTE,
                attribute_type::BEHAVIOR_NOTE,
                room,
                &raw mut count,
                notes.as_mut_ptr().cast(),
            )
        })
        .is_ok();
    // What cannot be destroyed is not ours to worry about.
    let _ = real.destroy(engine);
    asked.then(|| notes.iter().take(usize::try_from(count).unwrap_or(0)).any(|note| *note == RUNTIME_COMPILATION))
}
