//! Threads that meet Python's end.
//!
//! A thread of the autograd engine drops its last Python objects while the main thread already takes the interpreter apart:
//! without kernels to wait for, short programs get there. Up to version 3.13 Python then ends the thread with
//! `pthread_exit`, which unwinds its stack through C++ functions that must not be unwound, and the process aborts after its
//! work is done ("terminate called without an active exception"). Since 3.14 Python lets such a thread sleep instead
//! (gh-87135), and this does the same for older ones: `pthread_exit` comes here first, the library being preloaded.

use std::ffi::{CStr, c_void};

type Exit = unsafe extern "C" fn(*mut c_void) -> !;
type IsFinalizing = unsafe extern "C" fn() -> i32;

/// What Python calls itself about: public since 3.13, under its older name before.
const IS_FINALIZING: [&CStr; 2] = [c"Py_IsFinalizing", c"_Py_IsFinalizing"];

fn interpreter_is_ending() -> bool {
    let found = IS_FINALIZING.iter().find_map(|name| {
        // SAFETY: a C string; the program's own symbols are looked through.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    // SAFETY: Python's function takes nothing, gives an `int`, and may be called without the interpreter's lock.
    found.is_some_and(|found| unsafe { std::mem::transmute::<*mut c_void, IsFinalizing>(found)() } != 0)
}

#[unsafe(no_mangle)]
extern "C" fn pthread_exit(value: *mut c_void) -> ! {
    if interpreter_is_ending() {
        loop {
            // SAFETY: sleeps until a signal comes.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: the C library's function of this name, of this type.
    unsafe {
        let real = libc::dlsym(libc::RTLD_NEXT, c"pthread_exit".as_ptr());
        if real.is_null() {
            libc::abort();
        }
        std::mem::transmute::<*mut c_void, Exit>(real)(value)
    }
}
