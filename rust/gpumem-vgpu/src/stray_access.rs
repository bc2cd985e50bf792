//! What the user reads when the program touches device memory from the host.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use crate::reservation::Reservation;

static RANGE: OnceLock<Reservation> = OnceLock::new();
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

const MESSAGE: &[u8] =
    b"gpumem virtual GPU: the program touched memory of the virtual GPU from the host, which a real \
GPU does not allow either; it ends with a segmentation fault.\n";

/// Have accesses to `range` explained on standard error before the process ends as it would have without.
pub(crate) fn explain(range: Reservation) {
    if RANGE.set(range).is_err() {
        return;
    }
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `sigaction` is a plain C struct for which zeros are valid; both pointers are to live values.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSEGV, &raw const action, previous.as_mut_ptr()) == 0 {
            let _ = PREVIOUS.set(previous.assume_init());
        }
    }
}

/// Explain, hand SIGSEGV back to who had it, and return: the access is tried again and ends as it would have.
extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO; `write` and `sigaction` may be called
    // in a signal handler.
    unsafe {
        if RANGE.get().is_some_and(|range| range.contains((*info).si_addr() as u64)) {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        }
        let previous = PREVIOUS.get().map_or(ptr::null(), ptr::from_ref);
        if previous.is_null() {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        } else {
            libc::sigaction(libc::SIGSEGV, previous, ptr::null_mut());
        }
    }
}
