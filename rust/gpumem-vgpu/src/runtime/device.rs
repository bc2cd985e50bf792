//! Devices: how many, which one, what they are.

use super::{CURRENT_DEVICE, RUNTIME, attribute, choose, properties};
use crate::arguments::{Out, OutText};
use crate::entry::entry_points;
use crate::platform::platform;

entry_points! { RUNTIME;

fn cudaGetDeviceCount(count: Out<i32>) {
    count.set(platform()?.visible_count()?)
}

fn cudaGetDevice(device: Out<i32>) {
    device.set(CURRENT_DEVICE.get())
}

fn cudaSetDevice(device: i32) {
    choose(device)
}

fn cudaDriverGetVersion(version: Out<i32>) {
    version.set(platform()?.config.cuda_version)
}

fn cudaRuntimeGetVersion(version: Out<i32>) {
    version.set(platform()?.config.cuda_version)
}

fn cudaDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
    let platform = platform()?;
    platform.device(device)?;
    value.set(attribute(&platform.config, number))
}

// CUDA 13's layout.
fn cudaGetDeviceProperties(place: Out<[u8; properties::CUDA_13.bytes]>, device: i32) {
    let platform = platform()?;
    place.set(properties::CUDA_13.fill(&platform.config, platform.device(device)?))
}

// CUDA 12's layout.
fn cudaGetDeviceProperties_v2(place: Out<[u8; properties::CUDA_12.bytes]>, device: i32) {
    let platform = platform()?;
    place.set(properties::CUDA_12.fill(&platform.config, platform.device(device)?))
}

fn cudaDeviceGetPCIBusId(text: OutText, room: i32, device: i32) {
    let index = platform()?.device(device)?;
    text.set(&properties::pci_bus_id(index), room)
}

fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
    least.set_if_given(0);
    greatest.set_if_given(super::stream::GREATEST_PRIORITY);
    Ok(())
}

fn cudaDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
    let platform = platform()?;
    can.set(i32::from(platform.device(device)? != platform.device(peer)?))
}

}
