//! The CUDA runtime, libcudart.

mod device;
mod error;
mod event;
mod graph;
mod launch;
mod memory;
mod properties;
mod sharing;
mod stream;

use std::cell::Cell;

pub(crate) use error::{name, text};
pub(crate) use properties::{attribute, uuid_text};

use crate::entry::{Failure, Library, Outcome};
use crate::platform::{Platform, platform};

/// Status numbers of `cudaError_t`.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const MEMORY_ALLOCATION: i32 = 2;
    pub(crate) const INITIALIZATION: i32 = 3;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
}

/// Answers with the runtime's status, which each thread's `cudaGetLastError` gives again.
pub(crate) const RUNTIME: Library = Library {
    name: "cudart",
    invalid_value: code::INVALID_VALUE,
    invalid_device: code::INVALID_DEVICE,
    out_of_memory: code::MEMORY_ALLOCATION,
    not_supported: code::NOT_SUPPORTED,
    not_initialized: code::INITIALIZATION,
    no_device: code::NO_DEVICE,
    on_failure: Some(remember),
};

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
    /// The program's number of the device.
    static CURRENT_DEVICE: Cell<i32> = const { Cell::new(0) };
}

fn remember(status: i32) {
    LAST_ERROR.set(status);
}

/// The devices and the one that this thread has chosen.
pub(crate) fn current() -> Result<(&'static Platform, usize), Failure> {
    let platform = platform()?;
    Ok((platform, platform.device(CURRENT_DEVICE.get())?))
}

/// Let this thread use the device that the program calls `number`.
pub(crate) fn choose(number: i32) -> Outcome {
    let platform = platform()?;
    let device = platform.device(number)?;
    CURRENT_DEVICE.set(number);
    platform.activate(device)
}
