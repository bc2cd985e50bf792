//! Errors of the runtime and their texts.

use std::ffi::{CStr, c_char};

use super::{LAST_ERROR, code};

/// NVIDIA's words for the statuses this library gives; the message of `torch.OutOfMemoryError` and others is made of
/// them.
pub(crate) const fn text(status: i32) -> &'static CStr {
    match status {
        0 => c"no error",
        code::INVALID_VALUE => c"invalid argument",
        code::MEMORY_ALLOCATION => c"out of memory",
        code::INITIALIZATION => c"initialization error",
        code::NO_DEVICE => c"no CUDA-capable device is detected",
        code::INVALID_DEVICE => c"invalid device ordinal",
        code::NOT_SUPPORTED => c"operation not supported",
        code::CAPTURE_UNSUPPORTED => c"operation not permitted when stream is capturing",
        600 => c"device not ready",
        _ => c"unknown error",
    }
}

/// The name of a status.
pub(crate) const fn name(status: i32) -> &'static CStr {
    match status {
        0 => c"cudaSuccess",
        code::INVALID_VALUE => c"cudaErrorInvalidValue",
        code::MEMORY_ALLOCATION => c"cudaErrorMemoryAllocation",
        code::INITIALIZATION => c"cudaErrorInitializationError",
        code::NO_DEVICE => c"cudaErrorNoDevice",
        code::INVALID_DEVICE => c"cudaErrorInvalidDevice",
        code::NOT_SUPPORTED => c"cudaErrorNotSupported",
        code::CAPTURE_UNSUPPORTED => c"cudaErrorStreamCaptureUnsupported",
        600 => c"cudaErrorNotReady",
        _ => c"cudaErrorUnknown",
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(status: i32) -> *const c_char {
    text(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(status: i32) -> *const c_char {
    name(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> i32 {
    LAST_ERROR.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> i32 {
    LAST_ERROR.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Failure;
    use crate::runtime::RUNTIME;

    #[test]
    fn the_last_error_is_kept_until_it_is_read() {
        assert_eq!(RUNTIME.status("a", Err(Failure::InvalidDevice)), code::INVALID_DEVICE);
        assert_eq!(RUNTIME.status("a", Ok(())), 0);
        assert_eq!((cudaPeekAtLastError(), cudaGetLastError(), cudaGetLastError()), (101, 101, 0));
    }
}
