//! Who calls: NVIDIA's libraries must go on believing that this machine has no driver.
//!
//! They carry a runtime of their own, linked statically, which finds this library under the name of the driver. Told of
//! a device they would ask the driver for tables that are not public, and NVRTC ends the process where there are none;
//! told of none, NVRTC compiles for the architecture that it is given, and cuDNN answers from the description of a device
//! that it is given, which is what we want of them.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

/// How the file names of NVIDIA's libraries begin.
const NVIDIA: [&str; 13] = [
    "libcudnn",
    "libcublas",
    "libcudart",
    "libnccl",
    "libcufft",
    "libcupti",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libnvJitLink",
    "libnvrtc",
    "libnvshmem",
    "libnvToolsExt",
];
const END_OF_STACK: i32 = 5;
const NO_REASON: i32 = 0;

type Frame = *mut c_void;

// The unwinder of the Itanium C++ ABI, in libgcc_s, which Rust's standard library is linked with.
unsafe extern "C" {
    fn _Unwind_Backtrace(visit: extern "C" fn(Frame, *mut c_void) -> i32, data: *mut c_void) -> i32;
    fn _Unwind_GetIP(frame: Frame) -> usize;
}

/// The first address on the stack that is not ours.
struct Caller {
    own_base: usize,
    file: Option<String>,
}

/// Whether an NVIDIA library called the entry point that asks.
pub(super) fn is_nvidia_library() -> bool {
    let Some((own_base, _)) = object_of(is_nvidia_library as *const () as usize) else { return false };
    let mut caller = Caller { own_base, file: None };
    // SAFETY: `visit` does not unwind, and `caller` outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut caller).cast()) };
    caller.file.is_some_and(|file| names_nvidia_library(&file))
}

fn names_nvidia_library(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    NVIDIA.iter().any(|part| name.starts_with(part))
}

extern "C" fn visit(frame: Frame, data: *mut c_void) -> i32 {
    // SAFETY: the unwinder passes a valid frame, and `data` is the `Caller` of `is_nvidia_library`.
    let (address, caller) = unsafe { (_Unwind_GetIP(frame), &mut *data.cast::<Caller>()) };
    match object_of(address) {
        Some((base, _)) if base == caller.own_base => NO_REASON,
        found => {
            caller.file = found.map(|(_, file)| file);
            END_OF_STACK
        }
    }
}

/// Where the shared object that holds `address` begins, and its file.
fn object_of(address: usize) -> Option<(usize, String)> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; the answer is written to `info`, for which zeros are valid.
    let info = unsafe {
        if libc::dladdr(address as *const c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of the object, a C string that lives as long as the object is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, file.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_by_their_file_name() {
        assert!(names_nvidia_library("/venv/nvidia/cudnn/lib/libcudnn_graph.so.9"));
        assert!(names_nvidia_library("/venv/nvidia/cu13/lib/libnvrtc.so.13"));
        assert!(!names_nvidia_library("/venv/libcudnn-tools/python3"));
        assert!(!names_nvidia_library("/usr/lib/libc.so.6"));
    }

    #[test]
    fn this_test_is_no_nvidia_library() {
        assert!(!is_nvidia_library());
        assert!(object_of(object_of as *const () as usize).is_some_and(|(_, file)| file.contains("gpumem")));
        assert_eq!(object_of(8), None);
    }
}
