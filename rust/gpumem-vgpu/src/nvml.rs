//! NVML, which `PyTorch` reaches by opening libnvidia-ml.so.1. It knows all devices, seen by CUDA or not, and all
//! processes' memory.

use std::ffi::{CStr, c_char};

use crate::arguments::{InOut, Out, OutText, Text};
use crate::entry::{Failure, Library, entry_points};
use crate::platform::{Platform, state};
use crate::runtime::uuid_text;

/// Answers with NVML's status.
pub(crate) const NVML: Library = Library::simple("nvml", 2, 20, 3, 1);

/// Device handles are device numbers from here.
const HANDLE_BASE: usize = 0x200;
/// `NVML_DEVICE_NAME_V2_BUFFER_SIZE` and the room that callers with the older, smaller one say they have.
const INSUFFICIENT_SIZE: i32 = 7;

/// `nvmlMemory_t`.
#[repr(C)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProcessV1 {
    process: u32,
    used_bytes: u64,
}

/// `nvmlProcessInfo_v2_t`, which version 3 of the function takes too.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProcessV2 {
    process: u32,
    used_bytes: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// A card that is not divided (MIG) has neither kind of instance.
const NO_INSTANCE: u32 = u32::MAX;

/// Write the processes of a device, each made by `make`; `count` is the room, and how many there are afterwards.
fn list<T: Copy>(
    handle: usize,
    count: InOut<u32>,
    places: Out<T>,
    make: impl Fn((u32, u64)) -> T,
) -> Result<(), Failure> {
    let (platform, device) = device_of(handle)?;
    let found: Vec<T> = platform.processes(device)?.into_iter().map(make).collect();
    let room = count.get()?;
    let needed = u32::try_from(found.len()).map_err(|_| Failure::InvalidValue)?;
    count.set(needed)?;
    if needed > room { Err(Failure::Library(INSUFFICIENT_SIZE)) } else { places.set_all(&found) }
}

const fn undivided((process, used_bytes): (u32, u64)) -> ProcessV2 {
    ProcessV2 { process, used_bytes, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE }
}

/// NVIDIA's words for the statuses this library gives.
const fn text(status: i32) -> &'static CStr {
    match status {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        20 => c"Insufficient External Memory",
        _ => c"Unknown Error",
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(status: i32) -> *const c_char {
    text(status).as_ptr()
}

fn device_of(handle: usize) -> Result<(&'static Platform, usize), Failure> {
    let platform = state()?;
    let number = handle.checked_sub(HANDLE_BASE).ok_or(Failure::InvalidValue)?;
    Ok((platform, platform.any_device(i32::try_from(number).map_err(|_| Failure::InvalidValue)?)?))
}

fn memory(platform: &Platform, device: usize) -> Result<MemoryInfo, Failure> {
    let total = platform.config.total_bytes;
    let used = platform.used_bytes(device)?.min(total);
    Ok(MemoryInfo { total, free: total - used, used })
}

entry_points! { NVML;

fn nvmlDeviceGetCount_v2(count: Out<u32>) {
    count.set(u32::try_from(state()?.config.devices).map_err(|_| Failure::InvalidDevice)?)
}

fn nvmlDeviceGetHandleByIndex_v2(number: u32, handle: Out<usize>) {
    let index = state()?.any_device(i32::try_from(number).map_err(|_| Failure::InvalidDevice)?)?;
    handle.set(HANDLE_BASE + index)
}

// The bus number is the device number plus one (`runtime::properties::pci_bus_id`).
fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, handle: Out<usize>) {
    let text = bus_id.get()?;
    let bus = text.split(':').nth(1).and_then(|bus| i32::from_str_radix(bus, 16).ok()).ok_or(Failure::InvalidValue)?;
    handle.set(HANDLE_BASE + state()?.any_device(bus.saturating_sub(1))?)
}

fn nvmlDeviceGetName(handle: usize, name: OutText, room: u32) {
    let (platform, _) = device_of(handle)?;
    let text = &platform.config.gpu.torch_name;
    if text.len() >= room as usize {
        return Err(Failure::Library(INSUFFICIENT_SIZE));
    }
    name.set(text, room)
}

fn nvmlDeviceGetUUID(handle: usize, text: OutText, room: u32) {
    let (_, device) = device_of(handle)?;
    let uuid = uuid_text(device);
    if uuid.len() >= room as usize {
        return Err(Failure::Library(INSUFFICIENT_SIZE));
    }
    text.set(&uuid, room)
}

fn nvmlDeviceGetMemoryInfo(handle: usize, out: Out<MemoryInfo>) {
    let (platform, device) = device_of(handle)?;
    out.set(memory(platform, device)?)
}

fn nvmlDeviceGetComputeRunningProcesses(handle: usize, count: InOut<u32>, processes: Out<ProcessV1>) {
    list(handle, count, processes, |(process, used_bytes)| ProcessV1 { process, used_bytes })
}

fn nvmlDeviceGetComputeRunningProcesses_v2(handle: usize, count: InOut<u32>, processes: Out<ProcessV2>) {
    list(handle, count, processes, undivided)
}

fn nvmlDeviceGetComputeRunningProcesses_v3(handle: usize, count: InOut<u32>, processes: Out<ProcessV2>) {
    list(handle, count, processes, undivided)
}

fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
    version.set(state()?.config.cuda_version)
}

// What a card without a fabric (NVSwitch) answers; not a refusal of ours.
fn nvmlDeviceGetGpuFabricInfoV(handle: usize, _info: usize) {
    device_of(handle)?;
    Err(Failure::Library(NVML.not_supported))
}

}
