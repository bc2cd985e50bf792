//! From a Rust outcome to the status of a C library, and the two shapes of a hand-written entry point.

use crate::counts;
use crate::platform::{self, Trace};

/// Why an entry point does not do what it was asked for; each library has its own number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An argument that makes no sense.
    InvalidValue,
    /// No such device.
    InvalidDevice,
    /// The device's memory is used up.
    OutOfMemory,
    /// The virtual device does not do this.
    NotSupported,
    /// The virtual device could not be set up; standard error says why.
    NotInitialized,
    /// There is no device for the caller: none is visible to the program, or the caller must find none (`driver::callers`).
    NoDevice,
    /// A status that the real library gave.
    Library(i32),
}

/// What an entry point comes to.
pub(crate) type Outcome = Result<(), Failure>;

/// A library, as far as its answers go; libraries without a number of their own for a device or a driver take the
/// nearest (`simple`).
#[derive(Debug)]
pub(crate) struct Library {
    /// Its name in traces.
    pub(crate) name: &'static str,
    /// Its number for "invalid value".
    pub(crate) invalid_value: i32,
    /// Its number for "no such device".
    pub(crate) invalid_device: i32,
    /// Its number for "out of memory".
    pub(crate) out_of_memory: i32,
    /// Its number for "not supported".
    pub(crate) not_supported: i32,
    /// Its number for "not initialized".
    pub(crate) not_initialized: i32,
    /// Its number for "there is no device".
    pub(crate) no_device: i32,
    /// Told of every status but success.
    pub(crate) on_failure: Option<fn(i32)>,
}

impl Library {
    /// A library that knows neither devices nor drivers.
    pub(crate) const fn simple(
        name: &'static str,
        invalid_value: i32,
        out_of_memory: i32,
        not_supported: i32,
        not_initialized: i32,
    ) -> Self {
        Self {
            name,
            invalid_value,
            invalid_device: invalid_value,
            out_of_memory,
            not_supported,
            not_initialized,
            no_device: not_initialized,
            on_failure: None,
        }
    }

    /// The library's status for `outcome`; traced, and remembered if it is "not supported".
    pub(crate) fn status(&self, symbol: &'static str, outcome: Outcome) -> i32 {
        let status = match outcome {
            Ok(()) => 0,
            Err(Failure::InvalidValue) => self.invalid_value,
            Err(Failure::InvalidDevice) => self.invalid_device,
            Err(Failure::OutOfMemory) => self.out_of_memory,
            Err(Failure::NotSupported) => {
                counts::note_unsupported(symbol);
                self.not_supported
            }
            Err(Failure::NotInitialized) => self.not_initialized,
            Err(Failure::NoDevice) => self.no_device,
            Err(Failure::Library(status)) => status,
        };
        if let (Some(tell), true) = (self.on_failure, status != 0) {
            tell(status);
        }
        trace(self.name, symbol, status);
        status
    }
}

/// Write the call to standard error where the trace level asks for it.
pub(crate) fn trace(library: &str, symbol: &str, status: i32) {
    let wanted = match platform::trace_level() {
        Trace::Silent => false,
        Trace::Failures => status != 0,
        Trace::Calls => true,
    };
    if wanted {
        platform::say(&format!("{library} {symbol} -> {status}"));
    }
}

/// Entry points of one library: each body is an [`Outcome`], and the C function answers with the library's status.
macro_rules! entry_points {
    ($library:expr; $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> i32 {
                #[allow(clippy::unnecessary_wraps, reason = "all bodies have one shape; some cannot fail")]
                fn outcome($($argument: $type),*) -> $crate::entry::Outcome $body
                $library.status(stringify!($name), outcome($($argument),*))
            }
        )*
    };
}
pub(crate) use entry_points;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_answers_with_its_own_number() {
        let library = Library::simple("test", 7, 3, 15, 1);
        assert_eq!(library.status("a", Ok(())), 0);
        assert_eq!(library.status("a", Err(Failure::InvalidValue)), 7);
        assert_eq!(library.status("a", Err(Failure::OutOfMemory)), 3);
        assert_eq!(library.status("a", Err(Failure::Library(42))), 42);
        assert_eq!(library.status("testUnsupported", Err(Failure::NotSupported)), 15);
        assert!(counts::unsupported().contains("testUnsupported"));
    }
}
