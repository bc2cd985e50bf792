//! What this process used, in a file that outlives it: the program that started it reads there, however it ends.
//!
//! `GPUMEM_VGPU_LEDGER` names a folder; the file has the process's number as its name and holds, per device, five 64-bit
//! numbers in the machine's order: bytes in use, their peak, the context's, refusals, and the largest request refused.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::accounts::Account;

/// Numbers per device.
const FIELDS: usize = 5;

/// The mapped file.
#[derive(Debug)]
pub(crate) struct Ledger {
    numbers: &'static [AtomicU64],
}

impl Ledger {
    /// A file for `devices` devices in `folder`; none if it cannot be made, since a report is not worth a crash.
    pub(crate) fn open(folder: &Path, devices: usize) -> Option<Self> {
        let path = folder.join(std::process::id().to_string());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path).ok()?;
        let bytes = devices * FIELDS * size_of::<u64>();
        file.set_len(bytes as u64).ok()?;
        // SAFETY: a new shared mapping of a file of this length, at an address of the kernel's choice.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping has room for that many numbers, is aligned to a page, and is never unmapped.
        Some(Self { numbers: unsafe { std::slice::from_raw_parts(at.cast(), devices * FIELDS) } })
    }

    /// Write down where `device` stands.
    pub(crate) fn note(&self, device: usize, account: &Account) {
        let context = if account.active { account.context_bytes } else { 0 };
        let now = [account.used_bytes, account.peak_bytes, context, account.refusals, account.refused_bytes];
        for (number, value) in self.numbers.iter().skip(device * FIELDS).zip(now) {
            number.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_numbers_of_each_device() {
        let folder = std::env::temp_dir().join(format!("gpumem-ledger-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let ledger = Ledger::open(&folder, 2).unwrap();
        let mut account = Account::new(10 << 20, 1 << 20);
        account.take(4 << 20).unwrap();
        account.take(8 << 20).unwrap_err();
        ledger.note(1, &account);
        let bytes = std::fs::read(folder.join(std::process::id().to_string())).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let numbers: Vec<u64> = bytes.chunks(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect();
        assert_eq!(numbers, [0, 0, 0, 0, 0, 4 << 20, 4 << 20, 1 << 20, 1, 8 << 20]);
    }

    #[test]
    fn a_folder_that_is_not_there_gives_no_ledger() {
        assert!(Ledger::open(Path::new("/nonexistent"), 1).is_none());
    }
}
