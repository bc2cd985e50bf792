//! Events. All work is done at once, so a recorded event has always happened.

use super::RUNTIME;
use super::sharing::{SharedHandle, Thing};
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};

static EVENTS: Registry<()> = Registry::new();
/// Between any two events. Constant, so that timing plans (`cudnn.benchmark`) keeps the heuristics' order.
const ELAPSED_MS: f32 = 1.0;

entry_points! { RUNTIME;

fn cudaEventCreate(event: Out<Handle>) {
    event.set(EVENTS.add(()))
}

fn cudaEventCreateWithFlags(event: Out<Handle>, _flags: u32) {
    event.set(EVENTS.add(()))
}

fn cudaEventDestroy(event: Handle) {
    EVENTS.remove(event)
}

// An event of another process has always happened, like those of this one.
fn cudaIpcGetEventHandle(shared: Out<SharedHandle>, event: Handle) {
    if !EVENTS.knows(event) {
        return Err(Failure::InvalidValue);
    }
    shared.set(SharedHandle::new(Thing::Event, 0, 0, 0))
}

fn cudaIpcOpenEventHandle(event: Out<Handle>, shared: SharedHandle) {
    shared.of(Thing::Event)?;
    event.set(EVENTS.add(()))
}

fn cudaEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
    if !EVENTS.knows(start) || !EVENTS.knows(end) {
        return Err(Failure::InvalidValue);
    }
    milliseconds.set(ELAPSED_MS)
}

}
