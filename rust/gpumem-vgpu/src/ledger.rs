//! What every process of a run uses of each device, in a file that they share and that outlives them.
//!
//! `GPUMEM_VGPU_LEDGER` names the file. It is an array of 64-bit numbers in the machine's order: first, per device, the most
//! that all processes took together (contexts included); then a row for each process, with its number, whether it was
//! found dead, and per device the bytes in use, their peak, the context's, refusals, and the largest request refused.
//! `python/gpumem/virtual/ledger.py` reads it.
//!
//! Processes exclude each other, and are known to live, by record locks (`fcntl`, `F_SETLK`) on bytes behind the numbers:
//! the kernel takes both away from a process in the moment it ends, however it ends, and gives neither to its children. So
//! the memory of a killed process is free again at once, and no lock is ever left behind.

use std::ffi::c_short;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::accounts::Account;
use crate::config::MAX_DEVICES;

/// Numbers per device in a row.
const FIELDS: usize = 5;
/// Of them, those that are in use.
const USED: usize = 0;
const CONTEXT: usize = 2;
/// Numbers of a row before those of the devices: the process, and whether it was found dead.
const HEAD: usize = 2;
const ROW: usize = HEAD + MAX_DEVICES * FIELDS;
/// Processes that are told apart; the rows of dead ones are used again when there are more.
const ROWS: usize = 1024;
/// Numbers before the first row.
const FIRST_ROW: usize = MAX_DEVICES;
const NUMBERS: usize = FIRST_ROW + ROWS * ROW;

/// The byte that a process locks while it changes something; the byte of each row's process follows.
const EXCLUSIVE_BYTE: i64 = 1 << 40;
/// The file's descriptor is moved above those that programs close by number.
const LOWEST_DESCRIPTOR: i32 = 512;

/// The shared file, mapped.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: i32,
    numbers: &'static [AtomicU64],
    /// This process's row, once it uses a device.
    own: Option<usize>,
}

/// While it lives, no other process changes the file.
#[derive(Debug)]
struct Exclusive(i32);

impl Drop for Exclusive {
    fn drop(&mut self) {
        // The lock cannot be refused: it is given up.
        let _ = lock(self.0, libc::F_SETLK, libc::F_UNLCK, EXCLUSIVE_BYTE);
    }
}

impl Ledger {
    /// The file at `path`, made if there is none; `None` if it cannot be, since a report is not worth a crash.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let bytes = NUMBERS * size_of::<u64>();
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
        file.set_len(bytes as u64).ok()?;
        let low = file.into_raw_fd();
        // SAFETY: `low` is open and nobody else's; the copy above takes its place where there is room for it. Closing one of
        // two descriptors would end record locks, but none is held yet.
        let file = unsafe {
            let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR);
            if high >= 0 {
                libc::close(low);
                high
            } else {
                low
            }
        };
        // SAFETY: a new shared mapping of a file of this length, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping has room for that many numbers, is aligned to a page, and is never unmapped.
        Some(Self { file, numbers: unsafe { std::slice::from_raw_parts(at.cast(), NUMBERS) }, own: None })
    }

    /// Change an account of this process, which is told what others use of the device, and write down how it stands then.
    pub(crate) fn change<T>(
        &mut self,
        device: usize,
        account: &mut Account,
        change: impl FnOnce(&mut Account, u64) -> T,
    ) -> T {
        let exclusive = self.exclusive();
        let others = self.used_by_others(device);
        let outcome = change(account, others);
        self.note(device, account, others);
        drop(exclusive);
        outcome
    }

    /// Bytes of `device` that other living processes use, their contexts included.
    pub(crate) fn used_by_others(&self, device: usize) -> u64 {
        let rows = self.rows().filter(|&row| Some(row) != self.own && self.lives(row));
        rows.map(|row| self.get(row, device, USED) + self.get(row, device, CONTEXT)).sum()
    }

    /// Living processes with a context on `device`, this one among them, and the bytes of each, contexts included.
    pub(crate) fn processes(&self, device: usize) -> Vec<(u32, u64)> {
        let rows = self.rows().filter(|&row| Some(row) == self.own || self.lives(row));
        rows.filter_map(|row| {
            let bytes = self.get(row, device, USED) + self.get(row, device, CONTEXT);
            let process = u32::try_from(self.process(row).load(Ordering::Relaxed)).ok()?;
            (bytes > 0).then_some((process, bytes))
        })
        .collect()
    }

    fn note(&mut self, device: usize, account: &Account, others: u64) {
        if !account.active && account.refusals == 0 {
            return;
        }
        if self.own.is_none() {
            self.own = self.enter();
        }
        let Some(row) = self.own else { return };
        let context = account.made_context_bytes();
        let now = [account.used_bytes, account.peak_bytes, context, account.refusals, account.refused_bytes];
        for (field, value) in now.into_iter().enumerate() {
            self.at(Self::place(row, device, field)).store(value, Ordering::Relaxed);
        }
        self.at(device).fetch_max(others.saturating_add(account.used_bytes).saturating_add(context), Ordering::Relaxed);
    }

    /// A row for this process: one nobody had, or one of a dead process.
    fn enter(&self) -> Option<usize> {
        let free = (0..ROWS).find(|&row| self.process(row).load(Ordering::Relaxed) == 0);
        let row = free.or_else(|| self.rows().find(|&row| !self.lives(row)))?;
        lock(self.file, libc::F_SETLK, libc::F_WRLCK, EXCLUSIVE_BYTE + 1 + row_as_i64(row)).ok()?;
        let first = FIRST_ROW + row * ROW;
        for number in first..first + ROW {
            self.at(number).store(0, Ordering::Relaxed);
        }
        self.process(row).store(std::process::id().into(), Ordering::Relaxed);
        Some(row)
    }

    /// Rows in use; they are filled in order.
    fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        (0..ROWS).take_while(|&row| self.process(row).load(Ordering::Relaxed) != 0)
    }

    /// Whether the process of `row`, which is not this one, lives; the dead are remembered.
    fn lives(&self, row: usize) -> bool {
        let dead = self.at(FIRST_ROW + row * ROW + 1);
        if dead.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let lives = lock(self.file, libc::F_GETLK, libc::F_WRLCK, EXCLUSIVE_BYTE + 1 + row_as_i64(row)) == Ok(true);
        if !lives {
            dead.store(1, Ordering::Relaxed);
        }
        lives
    }

    fn exclusive(&self) -> Exclusive {
        // Without the lock (a program that closed the file) counting goes on, and may miss what others do meanwhile.
        let _ = lock(self.file, libc::F_SETLKW, libc::F_WRLCK, EXCLUSIVE_BYTE);
        Exclusive(self.file)
    }

    fn process(&self, row: usize) -> &AtomicU64 {
        self.at(FIRST_ROW + row * ROW)
    }

    fn get(&self, row: usize, device: usize, field: usize) -> u64 {
        self.at(Self::place(row, device, field)).load(Ordering::Relaxed)
    }

    const fn place(row: usize, device: usize, field: usize) -> usize {
        FIRST_ROW + row * ROW + HEAD + device * FIELDS + field
    }

    fn at(&self, number: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        self.numbers.get(number).unwrap_or(&NOWHERE)
    }
}

/// A constant of `fcntl.h`, all of which are small, as the structure holds it.
fn short(constant: i32) -> c_short {
    c_short::try_from(constant).unwrap_or(c_short::MAX)
}

fn row_as_i64(row: usize) -> i64 {
    i64::try_from(row).unwrap_or(0)
}

/// One `fcntl` on a record lock of one byte: whether the byte is locked afterwards (by whom `F_GETLK` found, or by us).
fn lock(file: i32, command: i32, kind: i32, byte: i64) -> Result<bool, ()> {
    loop {
        // SAFETY: `flock` is a plain C struct for which zeros are valid; the pointer is to a live value.
        let (status, kind) = unsafe {
            let mut record: libc::flock = std::mem::zeroed();
            record.l_type = short(kind);
            record.l_whence = short(libc::SEEK_SET);
            record.l_start = byte;
            record.l_len = 1;
            (libc::fcntl(file, command, &raw mut record), record.l_type)
        };
        if status == 0 {
            return Ok(i32::from(kind) != libc::F_UNLCK);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Failure;

    /// A ledger in a folder of the test's own, and its path.
    fn ledger(name: &str) -> (Ledger, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("gpumem-ledger-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        (Ledger::open(&path).unwrap(), path)
    }

    #[test]
    fn the_file_has_the_numbers_of_each_device() {
        let (mut ledger, path) = ledger("numbers");
        let mut account = Account::new(10 << 20, 1 << 20);
        assert_eq!(ledger.change(1, &mut account, |account, others| account.take(4 << 20, others)), Ok(()));
        let refused = ledger.change(1, &mut account, |account, others| account.take(8 << 20, others));
        assert_eq!(refused, Err(Failure::OutOfMemory));
        assert_eq!(ledger.processes(1), [(std::process::id(), 5 << 20)]);
        assert_eq!(ledger.processes(0), []);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let numbers: Vec<u64> = bytes.chunks(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect();
        assert_eq!(numbers.len(), NUMBERS);
        assert_eq!(numbers[..3], [0, 5 << 20, 0]);
        let row = &numbers[FIRST_ROW..FIRST_ROW + ROW];
        assert_eq!(row[..HEAD], [u64::from(std::process::id()), 0]);
        assert_eq!(row[HEAD..HEAD + 2 * FIELDS], [0, 0, 0, 0, 0, 4 << 20, 4 << 20, 1 << 20, 1, 8 << 20]);
        assert_eq!(numbers[FIRST_ROW + ROW], 0);
    }

    /// A process does not see its own locks, so a second ledger of this process looks like one of a dead process.
    #[test]
    fn the_memory_of_a_dead_process_is_free_and_its_row_stays() {
        let (mut dead, path) = ledger("dead");
        let mut account = Account::new(10 << 20, 1 << 20);
        dead.change(0, &mut account, |account, others| account.take(8 << 20, others)).unwrap();
        let mut next = Ledger::open(&path).unwrap();
        let mut account = Account::new(10 << 20, 1 << 20);
        assert_eq!(
            next.change(0, &mut account, |account, others| (others, account.take(8 << 20, others))),
            (0, Ok(()))
        );
        assert_eq!((dead.own, next.own, next.rows().count()), (Some(0), Some(1), 2));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_was_never_used_is_not_written_down() {
        let (mut ledger, path) = ledger("unused");
        ledger.change(0, &mut Account::new(1, 0), |_, _| ());
        assert_eq!((ledger.own, ledger.rows().count()), (None, 0));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_gives_no_ledger() {
        assert!(Ledger::open(Path::new("/nonexistent/ledger")).is_none());
    }
}
