//! Memory of other processes (`torch.multiprocessing` hands over tensors in this way).
//!
//! A handle says what it is of. The memory stays the account's of the process that asked for it; another process gets
//! addresses of its own for it, which cost nothing and read as zeros.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{RUNTIME, choose, current};
use crate::accounts::GRANULARITY_BYTES;
use crate::address_space::Purpose;
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::platform::platform;

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`: 64 bytes that mean nothing to a program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedHandle([u64; 8]);

/// What a handle is of; the numbers tell our handles from other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Thing {
    /// Memory from `cudaMalloc`.
    Memory = 0x6770_756d_656d_0001,
    /// An event.
    Event = 0x6770_756d_656d_0002,
}

impl SharedHandle {
    /// A handle of this process.
    pub(super) fn new(thing: Thing, device: usize, address: u64, bytes: u64) -> Self {
        Self([thing as u64, std::process::id().into(), device as u64, address, bytes, 0, 0, 0])
    }

    /// Device, process and bytes.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if these bytes are no handle of `thing`.
    pub(super) fn of(&self, thing: Thing) -> Result<(usize, u64, u64), Failure> {
        let [kind, process, device, _, bytes, ..] = self.0;
        if kind != thing as u64 {
            return Err(Failure::InvalidValue);
        }
        Ok((usize::try_from(device).map_err(|_| Failure::InvalidValue)?, process, bytes))
    }
}

/// Memory of others that is open here: its addresses, and how often it was opened.
static OPEN: Mutex<BTreeMap<SharedHandle, (u64, usize)>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<SharedHandle, (u64, usize)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

entry_points! { RUNTIME;

// Any address of an allocation stands for all of it.
fn cudaIpcGetMemHandle(handle: Out<SharedHandle>, pointer: usize) {
    let range = platform()?.range_holding(pointer).filter(|range| range.purpose == Purpose::Memory);
    let range = range.ok_or(Failure::InvalidValue)?;
    handle.set(SharedHandle::new(Thing::Memory, range.device, range.start, range.bytes))
}

fn cudaIpcOpenMemHandle(pointer: Out<u64>, handle: SharedHandle, _flags: u32) {
    let (platform, chosen) = current()?;
    let (device, process, bytes) = handle.of(Thing::Memory)?;
    // CUDA does not open a process's own memory a second time.
    if process == u64::from(std::process::id()) || !pointer.is_given() {
        return Err(Failure::InvalidValue);
    }
    // Devices that this process does not see are none to it; a context is made, as by any use.
    platform.number(device)?;
    choose(platform.number(chosen)?)?;
    let mut open = open();
    if let Some((address, times)) = open.get_mut(&handle) {
        *times += 1;
        return pointer.set(*address);
    }
    let address = platform.reserve_addresses(device, bytes, GRANULARITY_BYTES, Purpose::Shared)?;
    open.insert(handle, (address, 1));
    pointer.set(address)
}

fn cudaIpcCloseMemHandle(pointer: u64) {
    let mut open = open();
    let found = open.iter_mut().find(|(_, (address, _))| *address == pointer);
    let (handle, (_, times)) = found.ok_or(Failure::InvalidValue)?;
    *times -= 1;
    if *times == 0 {
        let handle = *handle;
        open.remove(&handle);
        return platform()?.free_addresses(pointer, Purpose::Shared);
    }
    Ok(())
}

}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle as another process would have made it.
    fn foreign(bytes: u64) -> SharedHandle {
        let mut handle = SharedHandle::new(Thing::Memory, 0, 1 << 40, bytes);
        handle.0[1] += 1;
        handle
    }

    fn opened(handle: SharedHandle) -> Result<u64, i32> {
        let mut address = 0;
        // SAFETY: `Out` is a transparent wrapper of a pointer, here to a live value.
        let place = unsafe { std::mem::transmute::<*mut u64, Out<u64>>(&raw mut address) };
        match cudaIpcOpenMemHandle(place, handle, 1) {
            0 => Ok(address),
            status => Err(status),
        }
    }

    #[test]
    fn memory_opened_twice_has_one_address_until_it_is_closed_twice() {
        let handle = foreign(4 << 20);
        let address = opened(handle).unwrap();
        assert_eq!(opened(handle), Ok(address));
        assert_ne!(opened(foreign(6 << 20)), Ok(address));
        assert_eq!([0; 2].map(|_| cudaIpcCloseMemHandle(address)), [0, 0]);
        assert_eq!(cudaIpcCloseMemHandle(address), 1);
        assert!(platform().unwrap().range_holding(usize::try_from(address).unwrap()).is_none());
    }

    #[test]
    fn other_bytes_and_own_memory_are_refused() {
        assert_eq!(opened(SharedHandle([7; 8])), Err(1));
        assert_eq!(opened(SharedHandle::new(Thing::Memory, 0, 0, 1 << 20)), Err(1));
        assert_eq!(opened(SharedHandle::new(Thing::Event, 0, 0, 0)), Err(1));
        let mut far = foreign(1 << 20);
        far.0[2] = 99;
        assert_eq!(opened(far), Err(101));
        assert_eq!(opened(foreign(u64::MAX)), Err(2));
    }
}
