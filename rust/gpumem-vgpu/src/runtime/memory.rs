//! Device memory, pinned host memory, and copies.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{RUNTIME, current};
use crate::arguments::Out;
use crate::copy::{copy, copy_rows, fill};
use crate::entry::{Failure, entry_points};
use crate::platform::platform;

/// Host memory the runtime knows: length and whether it is ours to free, by address.
static HOST: Mutex<BTreeMap<usize, (usize, bool)>> = Mutex::new(BTreeMap::new());
const PAGE_BYTES: usize = 4096;

fn host() -> MutexGuard<'static, BTreeMap<usize, (usize, bool)>> {
    HOST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_pinned(address: usize) -> bool {
    host().range(..=address).next_back().is_some_and(|(start, (bytes, _))| address - start < *bytes)
}

/// Page-locked memory of the host.
fn pinned(pointer: Out<usize>, bytes: usize) -> Result<(), Failure> {
    if !pointer.is_given() {
        return Err(Failure::InvalidValue);
    }
    let mut at: *mut c_void = std::ptr::null_mut();
    // SAFETY: the alignment is a power of two and a multiple of a pointer's size; `at` is a live place for the answer.
    if unsafe { libc::posix_memalign(&raw mut at, PAGE_BYTES, bytes.max(1)) } != 0 {
        return Err(Failure::OutOfMemory);
    }
    host().insert(at as usize, (bytes.max(1), true));
    pointer.set(at as usize)
}

/// `cudaPointerAttributes` up to the fields that CUDA 13 added at its end.
#[repr(C)]
struct PointerAttributes {
    /// 0 unregistered, 1 host, 2 device.
    kind: i32,
    device: i32,
    device_pointer: usize,
    host_pointer: usize,
}

entry_points! { RUNTIME;

fn cudaMalloc(pointer: Out<u64>, bytes: usize) {
    let (platform, device) = current()?;
    if bytes == 0 {
        return pointer.set(0);
    }
    if !pointer.is_given() {
        return Err(Failure::InvalidValue);
    }
    pointer.set(platform.allocate(device, bytes as u64)?)
}

fn cudaFree(pointer: u64) {
    if pointer == 0 { Ok(()) } else { platform()?.free(pointer) }
}

fn cudaMemGetInfo(free: Out<u64>, total: Out<u64>) {
    let (platform, device) = current()?;
    free.set(platform.free_bytes(device)?)?;
    total.set(platform.config.total_bytes)
}

fn cudaHostAlloc(pointer: Out<usize>, bytes: usize, _flags: u32) {
    pinned(pointer, bytes)
}

fn cudaMallocHost(pointer: Out<usize>, bytes: usize) {
    pinned(pointer, bytes)
}

fn cudaFreeHost(pointer: usize) {
    if pointer == 0 {
        return Ok(());
    }
    let mut known = host();
    if !known.get(&pointer).is_some_and(|(_, ours)| *ours) {
        return Err(Failure::InvalidValue);
    }
    known.remove(&pointer);
    // SAFETY: `cudaHostAlloc` got this address from `posix_memalign`, and it was not freed since.
    unsafe { libc::free(pointer as *mut c_void) };
    Ok(())
}

fn cudaHostRegister(pointer: usize, bytes: usize, _flags: u32) {
    if pointer == 0 || bytes == 0 {
        return Err(Failure::InvalidValue);
    }
    host().insert(pointer, (bytes, false));
    Ok(())
}

fn cudaHostUnregister(pointer: usize) {
    host().remove(&pointer).map(|_| ()).ok_or(Failure::InvalidValue)
}

// Unified addressing: the device uses the host's address.
fn cudaHostGetDevicePointer(device: Out<usize>, host_pointer: usize, _flags: u32) {
    device.set(host_pointer)
}

fn cudaPointerGetAttributes(out: Out<PointerAttributes>, pointer: usize) {
    let platform = platform()?;
    let nothing = PointerAttributes { kind: 0, device: -1, device_pointer: 0, host_pointer: pointer };
    out.set(if platform.is_device_address(pointer) {
        match platform.range_holding(pointer) {
            Some(range) => PointerAttributes {
                kind: 2,
                device: platform.number(range.device)?,
                device_pointer: pointer,
                host_pointer: 0,
            },
            None => PointerAttributes { host_pointer: 0, ..nothing },
        }
    } else if is_pinned(pointer) {
        PointerAttributes { kind: 1, device: 0, device_pointer: pointer, ..nothing }
    } else {
        PointerAttributes { device: 0, ..nothing }
    })
}

fn cudaMemcpy(destination: usize, source: usize, bytes: usize, _kind: i32) {
    copy(destination, source, bytes)
}

fn cudaMemcpyAsync(destination: usize, source: usize, bytes: usize, _kind: i32, _stream: usize) {
    copy(destination, source, bytes)
}

fn cudaMemcpy2DAsync(
    destination: usize,
    destination_pitch: usize,
    source: usize,
    source_pitch: usize,
    width: usize,
    height: usize,
    _kind: i32,
    _stream: usize,
) {
    copy_rows(destination, destination_pitch, source, source_pitch, width, height)
}

fn cudaMemset(destination: usize, value: i32, bytes: usize) {
    fill(destination, value.to_le_bytes()[0], bytes)
}

fn cudaMemsetAsync(destination: usize, value: i32, bytes: usize, _stream: usize) {
    fill(destination, value.to_le_bytes()[0], bytes)
}

fn cudaGetSymbolAddress(address: Out<u64>, _symbol: usize) {
    address.set(platform()?.symbol_address())
}

}
