//! What `gpumem` itself asks the library for, through `ctypes`.

use std::sync::atomic::Ordering;

use gpumem_core::formula::convolution::conv_call;

use crate::arguments::{In, Out, OutText, Text};
use crate::copy::{ReadHook, set_read_hook};
use crate::counts::{HOST_READS, LAUNCHES, guessed, unsupported};
use crate::entry::{Failure, Library, entry_points};
use crate::platform::state;

const CONTROL: Library = Library::simple("gpumem", 1, 2, 3, 4);

entry_points! { CONTROL;

// Of one device, by this process: bytes in use, their peak, bytes of the context (0 before the device is used), bytes in all, refusals.
fn gpumem_vgpu_device(device: i32, out: Out<u64>) {
    let state = state()?;
    let account = state.account(state.any_device(device)?)?;
    let context = account.made_context_bytes();
    out.set_all(&[account.used_bytes, account.peak_bytes, context, account.total_bytes, account.refusals])
}

// What the program calls a device; -1 if it does not see it (CUDA_VISIBLE_DEVICES).
fn gpumem_vgpu_number(device: i32, out: Out<i32>) {
    let state = state()?;
    out.set(state.number(state.any_device(device)?).unwrap_or(-1))
}

fn gpumem_vgpu_device_count(out: Out<i32>) {
    out.set(i32::try_from(state()?.config.devices).map_err(|_| Failure::InvalidDevice)?)
}

// Kernels asked for, reads from devices.
fn gpumem_vgpu_counts(out: Out<u64>) {
    out.set_all(&[&LAUNCHES, &HOST_READS].map(|count| count.load(Ordering::Relaxed)))
}

// `symbol count` per line of what answered "not supported".
fn gpumem_vgpu_unsupported(out: OutText, room: u64) {
    out.set(&unsupported(), room)
}

// `symbol count` per line of what answered with a size that only a real device knows.
fn gpumem_vgpu_guessed(out: OutText, room: u64) {
    out.set(&guessed(), room)
}

// Who answered about convolutions: 0 nobody was asked, 1 the real cuDNN, 2 the stub.
fn gpumem_vgpu_cudnn(out: Out<i32>) {
    out.set(match crate::cudnn::asked() {
        None => 0,
        Some(true) => 1,
        Some(false) => 2,
    })
}

// Workspace of the plan that PyTorch would take for the convolution of these integers (those of the core's formula
// `conv_workspace`) on a card; -1 where cuDNN's heuristics have none. Asks the cuDNN that this process has loaded and
// needs no device, not even this one.
fn gpumem_vgpu_conv_workspace(gpu: Text, cuda_version: i32, integers: In<i64>, count: u64, bytes: Out<i64>) {
    let integers = integers.get_all(count)?;
    let call = conv_call(&integers).map_err(|_| Failure::InvalidValue)?;
    bytes.set(crate::cudnn::conv_workspace_bytes(&call, &gpu.get()?, cuda_version)?.unwrap_or(-1))
}

// Functions that the real libraries answer, since they need no device.
fn gpumem_vgpu_left_to_real(out: OutText, room: u64) {
    out.set(&crate::table::LEFT_TO_REAL.join("\n"), room)
}

fn gpumem_vgpu_on_read(hook: Option<ReadHook>) {
    set_read_hook(hook);
    Ok(())
}

}
