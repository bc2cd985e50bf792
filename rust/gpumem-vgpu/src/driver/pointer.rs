//! What an address is.

use super::DRIVER;
use crate::arguments::{In, Out};
use crate::entry::{Failure, entry_points};
use crate::platform::platform;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, the only one that is known here; others are zero.
const MEMORY_TYPE: i32 = 2;
const HOST: u64 = 1;
const DEVICE: u64 = 2;

fn memory_type(address: usize) -> Result<u64, Failure> {
    Ok(if platform()?.is_device_address(address) { DEVICE } else { HOST })
}

entry_points! { DRIVER;

fn cuPointerGetAttribute(value: usize, attribute: i32, address: usize) {
    put(value, attribute, address)
}

fn cuPointerGetAttributes(count: u32, attributes: In<i32>, values: In<usize>, address: usize) {
    for (attribute, value) in attributes.get_all(count)?.into_iter().zip(values.get_all(count)?) {
        if attribute == MEMORY_TYPE {
            put(value, attribute, address)?;
        }
    }
    Ok(())
}

}

/// Write an attribute: the memory type has 4 bytes, all others 8.
fn put(value: usize, attribute: i32, address: usize) -> Result<(), Failure> {
    if value == 0 {
        return Err(Failure::InvalidValue);
    }
    let answer = if attribute == MEMORY_TYPE { memory_type(address)? } else { 0 };
    // SAFETY: `value` is the caller's place for this attribute, which is a 4-byte enumeration or 8 bytes; `Out` is a
    // transparent wrapper of a pointer.
    unsafe {
        if attribute == MEMORY_TYPE {
            std::mem::transmute::<usize, Out<u32>>(value).set(u32::try_from(answer).unwrap_or(0))
        } else {
            std::mem::transmute::<usize, Out<u64>>(value).set(answer)
        }
    }
}
