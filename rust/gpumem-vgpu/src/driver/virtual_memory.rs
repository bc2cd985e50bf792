//! Memory and addresses apart (`expandable_segments:True`).

use super::DRIVER;
use crate::accounts::GRANULARITY_BYTES;
use crate::address_space::Purpose;
use crate::arguments::{In, Out};
use crate::entry::entry_points;
use crate::handles::{Handle, Registry};
use crate::platform::platform;
use crate::runtime::current;

/// The beginning of `CUmemAllocationProp`: kind of memory, of handles, of location, and the device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Properties {
    kind: i32,
    handle_kinds: i32,
    location_kind: i32,
    device: i32,
}

/// Device and bytes of a piece of memory.
static MEMORY: Registry<(usize, u64)> = Registry::new();

entry_points! { DRIVER;

fn cuMemGetAllocationGranularity(bytes: Out<usize>, _properties: usize, _option: i32) {
    bytes.set(usize::try_from(GRANULARITY_BYTES).unwrap_or(usize::MAX))
}

fn cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, _wish: u64, _flags: u64) {
    let (platform, device) = current()?;
    address.set(platform.reserve_addresses(device, bytes as u64, alignment as u64, Purpose::Addresses)?)
}

fn cuMemAddressFree(address: u64, _bytes: usize) {
    platform()?.free_addresses(address, Purpose::Addresses)
}

fn cuMemCreate(handle: Out<Handle>, bytes: usize, properties: In<Properties>, _flags: u64) {
    let platform = platform()?;
    let device = platform.device(properties.get()?.device)?;
    let taken = platform.take(device, bytes as u64)?;
    handle.set(MEMORY.add((device, taken)))
}

fn cuMemRelease(handle: Handle) {
    let (device, bytes) = MEMORY.remove(handle)?;
    platform()?.give_back(device, bytes)
}

}
