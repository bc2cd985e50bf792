//! What the program did, counted: kernels, reads from devices, refused calls and guessed sizes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::contents;

/// Kernels that were asked for, graph launches and library calls included.
pub(crate) static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Copies from a device to the host: what was read is zeros.
pub(crate) static HOST_READS: AtomicU64 = AtomicU64::new(0);

/// How often each symbol did something.
type Tally = Mutex<BTreeMap<&'static str, u64>>;

/// Symbols that answered "not supported".
static UNSUPPORTED: Tally = Mutex::new(BTreeMap::new());
/// Symbols that answered with a size that only a real device knows.
static GUESSED: Tally = Mutex::new(BTreeMap::new());

/// Count one kernel, which may have written anywhere.
pub(crate) fn count_launch() {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    contents::forget_all();
}

/// Remember that `symbol` was asked for something the virtual device does not do.
pub(crate) fn note_unsupported(symbol: &'static str) {
    note(&UNSUPPORTED, symbol);
}

/// Remember that `symbol` answered with a size that is a guess.
pub(crate) fn note_guess(symbol: &'static str) {
    note(&GUESSED, symbol);
}

fn note(tally: &Tally, symbol: &'static str) {
    *tally.lock().unwrap_or_else(PoisonError::into_inner).entry(symbol).or_insert(0) += 1;
}

/// What answered "not supported".
pub(crate) fn unsupported() -> String {
    lines(&UNSUPPORTED)
}

/// What answered with a guess.
pub(crate) fn guessed() -> String {
    lines(&GUESSED)
}

/// `symbol count` per line, in alphabetical order.
fn lines(tally: &Tally) -> String {
    let noted = tally.lock().unwrap_or_else(PoisonError::into_inner);
    noted.iter().map(|(symbol, count)| format!("{symbol} {count}")).collect::<Vec<_>>().join("\n")
}
