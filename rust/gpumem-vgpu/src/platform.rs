//! The one state of the process: its devices and what they have handed out.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::accounts::{Account, GRANULARITY_BYTES, rounded};
use crate::address_space::{AddressSpace, Purpose, Range};
pub(crate) use crate::config::Trace;
use crate::config::{Config, Cudnn};
use crate::contents;
use crate::entry::{Failure, Outcome};
use crate::ledger::Ledger;
use crate::reservation::Reservation;
use crate::runtime::uuid_text;
use crate::stray_access;
use crate::visible::visible;

/// At the top of the reservation, for addresses of device variables (`cudaGetSymbolAddress`): part of the context.
const SYMBOL_BYTES: u64 = GRANULARITY_BYTES;

/// The devices of this process.
#[derive(Debug)]
pub(crate) struct Platform {
    pub(crate) config: Config,
    reservation: Reservation,
    memory: Mutex<Memory>,
    /// Devices that the program sees, by its own numbers.
    visible: OnceLock<Vec<usize>>,
}

/// What is handed out.
#[derive(Debug)]
struct Memory {
    space: AddressSpace,
    accounts: Vec<Account>,
    ledger: Option<Ledger>,
}

/// Whether this process made a context.
static CONTEXT_MADE: AtomicBool = AtomicBool::new(false);
/// Whether this process was forked off one that had made a context. CUDA cannot be used in it.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn after_fork() {
    FORKED.store(CONTEXT_MADE.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// The devices as CUDA sees them.
///
/// # Errors
/// [`Failure::NotInitialized`] as [`state`], and in a process that was forked after CUDA was used.
pub(crate) fn platform() -> Result<&'static Platform, Failure> {
    if FORKED.load(Ordering::Relaxed) { Err(Failure::NotInitialized) } else { state() }
}

/// The devices, set up at the first call.
///
/// # Errors
/// [`Failure::NotInitialized`] if the environment is wrong or no addresses could be reserved; the reason was written to
/// standard error once.
pub(crate) fn state() -> Result<&'static Platform, Failure> {
    static PLATFORM: OnceLock<Option<Platform>> = OnceLock::new();
    PLATFORM
        .get_or_init(|| Platform::from_environment().map_err(|reason| say(&reason)).ok())
        .as_ref()
        .ok_or(Failure::NotInitialized)
}

impl Platform {
    fn from_environment() -> Result<Self, String> {
        let config = Config::read(|name| std::env::var(name).ok())?;
        let reservation = Reservation::make().ok_or("no range of addresses could be reserved (ulimit -v?)")?;
        TRACE.store(config.trace as u8, Ordering::Relaxed);
        stray_access::explain(reservation);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        let ledger = std::env::var_os("GPUMEM_VGPU_LEDGER").and_then(|path| {
            let made = Ledger::open(Path::new(&path));
            made.ok_or_else(|| say("what this process uses cannot be written down, nor what others use be seen")).ok()
        });
        Ok(Self::new(config, reservation, ledger))
    }

    fn new(config: Config, reservation: Reservation, ledger: Option<Ledger>) -> Self {
        let space = AddressSpace::new(reservation.start, reservation.end - SYMBOL_BYTES, config.order);
        let accounts = vec![Account::new(config.total_bytes, config.context_bytes); config.devices];
        Self { config, reservation, memory: Mutex::new(Memory { space, accounts, ledger }), visible: OnceLock::new() }
    }

    /// The device that the program calls `number`.
    ///
    /// # Errors
    /// [`Failure::InvalidDevice`] if it sees no such device, [`Failure::NoDevice`] if it sees none at all.
    pub(crate) fn device(&self, number: i32) -> Result<usize, Failure> {
        let visible = self.visible();
        if visible.is_empty() {
            return Err(Failure::NoDevice);
        }
        let device = usize::try_from(number).ok().and_then(|index| visible.get(index));
        device.copied().ok_or(Failure::InvalidDevice)
    }

    /// What the program calls `device`.
    ///
    /// # Errors
    /// [`Failure::InvalidDevice`] if it does not see it.
    pub(crate) fn number(&self, device: usize) -> Result<i32, Failure> {
        let number = self.visible().iter().position(|&visible| visible == device);
        number.and_then(|number| i32::try_from(number).ok()).ok_or(Failure::InvalidDevice)
    }

    /// How many devices the program sees.
    ///
    /// # Errors
    /// [`Failure::NoDevice`] if it sees none.
    pub(crate) fn visible_count(&self) -> Result<i32, Failure> {
        i32::try_from(self.visible().len()).ok().filter(|&count| count > 0).ok_or(Failure::NoDevice)
    }

    /// Whether there is a device with this number, seen by the program or not, as an index.
    ///
    /// # Errors
    /// [`Failure::InvalidDevice`] if not.
    pub(crate) fn any_device(&self, number: i32) -> Result<usize, Failure> {
        usize::try_from(number).ok().filter(|&index| index < self.config.devices).ok_or(Failure::InvalidDevice)
    }

    /// Read from the environment at CUDA's first use, not NVML's, as CUDA does.
    fn visible(&self) -> &[usize] {
        self.visible.get_or_init(|| {
            let text = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            visible(text.as_deref(), self.config.devices, uuid_text)
        })
    }

    /// Whether `address` is one that devices use.
    pub(crate) const fn is_device_address(&self, address: usize) -> bool {
        self.reservation.contains(address as u64)
    }

    /// Where device variables are said to lie.
    pub(crate) const fn symbol_address(&self) -> u64 {
        self.reservation.end - SYMBOL_BYTES
    }

    /// Memory on `device`, with its address.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] when the device's memory, or the range of addresses, is used up.
    pub(crate) fn allocate(&self, device: usize, bytes: u64) -> Result<u64, Failure> {
        let bytes = rounded(bytes)?;
        let mut memory = self.lock();
        memory.change(device, |account, others| account.take(bytes, others))??;
        if let Some(start) = memory.space.place(bytes, GRANULARITY_BYTES, device, Purpose::Memory) {
            return Ok(start);
        }
        memory.change(device, |account, _| account.give_back(bytes))?;
        Err(Failure::OutOfMemory)
    }

    /// Give memory back.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if no memory begins at `address`.
    pub(crate) fn free(&self, address: u64) -> Outcome {
        let mut memory = self.lock();
        let range = memory.space.release(address, Purpose::Memory).ok_or(Failure::InvalidValue)?;
        memory.change(range.device, |account, _| account.give_back(range.bytes))?;
        contents::forget_all();
        Ok(())
    }

    /// Addresses without memory of this process, for `purpose`.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] when the range of addresses is used up.
    pub(crate) fn reserve_addresses(
        &self,
        device: usize,
        bytes: u64,
        alignment: u64,
        purpose: Purpose,
    ) -> Result<u64, Failure> {
        let bytes = rounded(bytes)?;
        self.lock().space.place(bytes, alignment, device, purpose).ok_or(Failure::OutOfMemory)
    }

    /// Give addresses back.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if no addresses reserved for `purpose` begin at `address`.
    pub(crate) fn free_addresses(&self, address: u64, purpose: Purpose) -> Outcome {
        self.lock().space.release(address, purpose).map(|_| ()).ok_or(Failure::InvalidValue)
    }

    /// Memory without addresses: the bytes taken.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] when the device's memory is used up.
    pub(crate) fn take(&self, device: usize, bytes: u64) -> Result<u64, Failure> {
        let bytes = rounded(bytes)?;
        self.lock().change(device, |account, others| account.take(bytes, others))??;
        Ok(bytes)
    }

    /// Give back what [`Self::take`] took.
    pub(crate) fn give_back(&self, device: usize, bytes: u64) -> Outcome {
        self.lock().change(device, |account, _| account.give_back(bytes))
    }

    /// Free bytes of `device`, as `cudaMemGetInfo` says them.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] if there is no room for this process's context.
    pub(crate) fn free_bytes(&self, device: usize) -> Result<u64, Failure> {
        self.lock().change(device, Account::free_bytes)?
    }

    /// Bytes of `device` that are in use by all processes, contexts included.
    pub(crate) fn used_bytes(&self, device: usize) -> Result<u64, Failure> {
        let memory = self.lock();
        let account = memory.accounts.get(device).ok_or(Failure::InvalidDevice)?;
        let others = memory.ledger.as_ref().map_or(0, |ledger| ledger.used_by_others(device));
        Ok(account.used_bytes.saturating_add(account.made_context_bytes()).saturating_add(others))
    }

    /// Processes with a context on `device`, and the bytes of each, contexts included.
    pub(crate) fn processes(&self, device: usize) -> Result<Vec<(u32, u64)>, Failure> {
        let memory = self.lock();
        if let Some(ledger) = &memory.ledger {
            return Ok(ledger.processes(device));
        }
        let account = memory.accounts.get(device).ok_or(Failure::InvalidDevice)?;
        let own = account.active.then(|| (std::process::id(), account.used_bytes + account.context_bytes));
        Ok(own.into_iter().collect())
    }

    /// The device is used from now on: its context exists.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] if there is no room for it.
    pub(crate) fn activate(&self, device: usize) -> Outcome {
        self.lock().change(device, Account::activate)?
    }

    /// A copy of the account of `device`.
    pub(crate) fn account(&self, device: usize) -> Result<Account, Failure> {
        self.lock().accounts.get(device).cloned().ok_or(Failure::InvalidDevice)
    }

    /// The range in use that holds `address`.
    pub(crate) fn range_holding(&self, address: usize) -> Option<Range> {
        self.lock().space.holding(address as u64).copied()
    }

    /// Whether the real cuDNN is to be asked.
    pub(crate) fn asks_real_cudnn(&self) -> bool {
        self.config.cudnn == Cudnn::Real
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Change an account, which is told what other processes use of the device, and write down how it stands then.
    fn change<T>(&mut self, device: usize, change: impl FnOnce(&mut Account, u64) -> T) -> Result<T, Failure> {
        let account = self.accounts.get_mut(device).ok_or(Failure::InvalidDevice)?;
        let outcome = match &mut self.ledger {
            Some(ledger) => ledger.change(device, account, change),
            None => change(account, 0),
        };
        if account.active {
            CONTEXT_MADE.store(true, Ordering::Relaxed);
        }
        Ok(outcome)
    }
}

static TRACE: AtomicU8 = AtomicU8::new(Trace::Silent as u8);
/// How much is to be traced; nothing before the devices are set up.
pub(crate) fn trace_level() -> Trace {
    match TRACE.load(Ordering::Relaxed) {
        0 => Trace::Silent,
        1 => Trace::Failures,
        _ => Trace::Calls,
    }
}

/// A line on standard error.
pub(crate) fn say(text: &str) {
    eprintln!("gpumem virtual GPU: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Platform {
        let mut config = Config::read(|_| None).unwrap();
        (config.devices, config.total_bytes, config.context_bytes) = (2, 10 << 20, 2 << 20);
        Platform::new(config, Reservation { start: 1 << 30, end: 2 << 30 }, None)
    }

    #[test]
    fn memory_is_counted_per_device_in_whole_pieces() {
        let platform = small();
        let at = platform.allocate(0, 1).unwrap();
        assert_eq!(platform.account(0).unwrap().used_bytes, GRANULARITY_BYTES);
        assert_eq!(platform.account(1).unwrap().used_bytes, 0);
        assert_eq!(platform.allocate(0, 7 << 20), Err(Failure::OutOfMemory));
        assert!(platform.allocate(1, 8 << 20).is_ok());
        assert_eq!(platform.free(at + 1), Err(Failure::InvalidValue));
        assert_eq!(platform.free(at), Ok(()));
        assert_eq!(platform.free(at), Err(Failure::InvalidValue));
        assert_eq!(platform.free_bytes(0), Ok(8 << 20));
        assert_eq!(platform.allocate(2, 1), Err(Failure::InvalidDevice));
    }

    #[test]
    fn addresses_cost_no_memory_and_memory_no_addresses() {
        let platform = small();
        let at = platform.reserve_addresses(0, 100 << 20, GRANULARITY_BYTES, Purpose::Addresses).unwrap();
        assert_eq!(platform.account(0).unwrap().used_bytes, 0);
        assert_eq!(platform.free(at), Err(Failure::InvalidValue));
        assert_eq!(platform.take(0, 3 << 20), Ok(4 << 20));
        assert_eq!(platform.free_bytes(0), Ok(4 << 20));
        assert_eq!(platform.give_back(0, 4 << 20), Ok(()));
        assert_eq!(platform.free_addresses(at, Purpose::Addresses), Ok(()));
    }

    #[test]
    fn when_addresses_run_out_no_memory_is_lost() {
        let platform = Platform { reservation: Reservation { start: 0, end: 0 }, ..small() };
        assert!(platform.reserve_addresses(0, (1 << 30) - SYMBOL_BYTES, GRANULARITY_BYTES, Purpose::Addresses).is_ok());
        assert_eq!(platform.allocate(0, 1), Err(Failure::OutOfMemory));
        assert_eq!(platform.account(0).unwrap().used_bytes, 0);
    }

    #[test]
    fn device_numbers_are_checked() {
        let platform = small();
        assert_eq!(platform.device(1), Ok(1));
        assert_eq!(
            (platform.device(2), platform.device(-1)),
            (Err(Failure::InvalidDevice), Err(Failure::InvalidDevice))
        );
    }
}
