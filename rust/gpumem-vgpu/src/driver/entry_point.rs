//! Driver functions by name: PyTorch asks the runtime for them.

use std::ffi::{CString, c_void};

use super::DRIVER;
use crate::arguments::{Out, Text};
use crate::entry::{Failure, entry_points};
use crate::platform;
use crate::runtime::RUNTIME;

/// This library's name to the loader (see build.rs).
const OWN_NAME: &std::ffi::CStr = c"libcuda.so.1";
const FOUND: i32 = 0;

/// Stands in for every driver function that is not provided.
extern "C" fn not_provided() -> i32 {
    DRIVER.status("driver entry point", Err(Failure::NotSupported))
}

/// Our function of this name, if there is one.
fn own(name: &str) -> Option<usize> {
    let name = CString::new(name).ok()?;
    // SAFETY: C strings; the library is loaded, as this is its code, and stays loaded.
    let found = unsafe {
        let own = libc::dlopen(OWN_NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if own.is_null() { std::ptr::null_mut::<c_void>() } else { libc::dlsym(own, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found as usize)
}

fn look_up(symbol: &Text, function: Out<usize>, status: Out<i32>) -> Result<(), Failure> {
    let name = symbol.get()?;
    status.set_if_given(FOUND);
    function.set(own(&name).unwrap_or_else(|| {
        if platform::trace_level() != platform::Trace::Silent {
            platform::say(&format!("no driver function {name}"));
        }
        not_provided as *const () as usize
    }))
}

entry_points! { RUNTIME;

fn cudaGetDriverEntryPoint(symbol: Text, function: Out<usize>, _flags: u64, status: Out<i32>) {
    look_up(&symbol, function, status)
}

fn cudaGetDriverEntryPointByVersion(symbol: Text, function: Out<usize>, _version: u32, _flags: u64, status: Out<i32>) {
    look_up(&symbol, function, status)
}

}
