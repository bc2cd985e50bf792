//! Devices and their contexts: one primary context each, which is what PyTorch uses.

use std::ffi::c_char;

use super::{DRIVER, callers};
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::platform::platform;
use crate::runtime::{attribute, choose, current, name, text};

/// Context handles are the program's device numbers from here, so that the null context is none of them.
const CONTEXT_BASE: usize = 0x100;

fn context_of(number: i32) -> usize {
    CONTEXT_BASE + usize::try_from(number).unwrap_or(0)
}

fn current_context(context: Out<usize>) -> Result<(), Failure> {
    let (platform, device) = current()?;
    context.set(context_of(platform.number(device)?))
}

fn make_current(context: usize) -> Result<(), Failure> {
    // Null means "none", which leaves the thread's device as it is.
    if context == 0 {
        return Ok(());
    }
    let device = context.checked_sub(CONTEXT_BASE).ok_or(Failure::InvalidValue)?;
    choose(i32::try_from(device).map_err(|_| Failure::InvalidValue)?)
}

entry_points! { DRIVER;

fn cuInit(_flags: u32) {
    if callers::is_nvidia_library() {
        return Err(Failure::NoDevice);
    }
    platform()?.visible_count().map(|_| ())
}

fn cuDriverGetVersion(version: Out<i32>) {
    if callers::is_nvidia_library() {
        version.set(0)?;
        return Err(Failure::NoDevice);
    }
    version.set(platform()?.config.cuda_version)
}

fn cuDeviceGet(device: Out<i32>, number: i32) {
    platform()?.device(number)?;
    device.set(number)
}

fn cuDeviceGetCount(count: Out<i32>) {
    count.set(platform()?.visible_count()?)
}

fn cuDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
    let platform = platform()?;
    platform.device(device)?;
    value.set(attribute(&platform.config, number))
}

fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
    let platform = platform()?;
    let account = platform.account(platform.device(device)?)?;
    flags.set_if_given(0);
    active.set(i32::from(account.active))
}

fn cuDevicePrimaryCtxRetain(context: Out<usize>, number: i32) {
    let platform = platform()?;
    platform.activate(platform.device(number)?)?;
    context.set(context_of(number))
}

fn cuCtxGetCurrent(context: Out<usize>) {
    current_context(context)
}

fn cuCtxSetCurrent(context: usize) {
    make_current(context)
}

fn cuCtxPushCurrent(context: usize) {
    make_current(context)
}

fn cuCtxPushCurrent_v2(context: usize) {
    make_current(context)
}

fn cuCtxPopCurrent(context: Out<usize>) {
    if context.is_given() { current_context(context) } else { Ok(()) }
}

fn cuCtxPopCurrent_v2(context: Out<usize>) {
    if context.is_given() { current_context(context) } else { Ok(()) }
}

fn cuStreamGetCtx(_stream: usize, context: Out<usize>) {
    current_context(context)
}

fn cuCtxGetDevice(device: Out<i32>) {
    let (platform, current) = current()?;
    device.set(platform.number(current)?)
}

// Sizes of stack, printf buffer and heap of device code, which has none of them here.
fn cuCtxGetLimit(value: Out<usize>, _limit: i32) {
    value.set(1024)
}

fn cuGetErrorString(status: i32, message: Out<*const c_char>) {
    message.set(text(status).as_ptr())
}

fn cuGetErrorName(status: i32, message: Out<*const c_char>) {
    message.set(name(status).as_ptr())
}

}
