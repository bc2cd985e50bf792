//! How much of a device's memory is in use.

use crate::entry::Failure;

/// The driver hands out physical memory in pieces of this size (`cuMemGetAllocationGranularity` on every card since
/// Pascal; facts/allocator.md).
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// `bytes` in whole pieces of the driver.
///
/// # Errors
/// [`Failure::OutOfMemory`] where that is no 64-bit number.
pub(crate) fn rounded(bytes: u64) -> Result<u64, Failure> {
    bytes.checked_next_multiple_of(GRANULARITY_BYTES).ok_or(Failure::OutOfMemory)
}

/// The memory of one device, as far as this process uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// What the card has, bytes.
    pub(crate) total_bytes: u64,
    /// What the CUDA context takes once the device is used, bytes.
    pub(crate) context_bytes: u64,
    /// Handed out to the program, bytes.
    pub(crate) used_bytes: u64,
    /// The largest [`Self::used_bytes`] so far.
    pub(crate) peak_bytes: u64,
    /// Requests that found too little memory.
    pub(crate) refusals: u64,
    /// The largest of them, bytes.
    pub(crate) refused_bytes: u64,
    /// Whether the context exists.
    pub(crate) active: bool,
}

impl Account {
    /// A device nobody has used.
    pub(crate) const fn new(total_bytes: u64, context_bytes: u64) -> Self {
        Self { total_bytes, context_bytes, used_bytes: 0, peak_bytes: 0, refusals: 0, refused_bytes: 0, active: false }
    }

    /// Make the context if there is none; `others` is what other processes use of the device, bytes.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] if there is no room for it.
    pub(crate) const fn activate(&mut self, others: u64) -> Result<(), Failure> {
        if !self.active && self.context_bytes > self.total_bytes.saturating_sub(others) {
            return Err(Failure::OutOfMemory);
        }
        self.active = true;
        Ok(())
    }

    /// Bytes a program could still get; the context is made if there is none.
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`] if there is no room for the context.
    pub(crate) fn free_bytes(&mut self, others: u64) -> Result<u64, Failure> {
        self.activate(others)?;
        let used = self.context_bytes.saturating_add(self.used_bytes).saturating_add(others);
        Ok(self.total_bytes.saturating_sub(used))
    }

    /// Take `bytes`, a multiple of [`GRANULARITY_BYTES`].
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`], and nothing is taken.
    pub(crate) fn take(&mut self, bytes: u64, others: u64) -> Result<(), Failure> {
        if self.free_bytes(others).is_ok_and(|free| bytes <= free) {
            self.used_bytes += bytes;
            self.peak_bytes = self.peak_bytes.max(self.used_bytes);
            return Ok(());
        }
        self.refusals += 1;
        self.refused_bytes = self.refused_bytes.max(bytes);
        Err(Failure::OutOfMemory)
    }

    /// Bytes of the context, which are none before it is made.
    pub(crate) const fn made_context_bytes(&self) -> u64 {
        if self.active { self.context_bytes } else { 0 }
    }

    /// Give `bytes` back.
    pub(crate) const fn give_back(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_can_be_had_and_no_more() {
        let mut account = Account::new(10 << 20, 4 << 20);
        assert_eq!(account.take(4 << 20, 0), Ok(()));
        assert_eq!(account.take(2 << 20, 0), Ok(()));
        assert_eq!(account.take(2 << 20, 0), Err(Failure::OutOfMemory));
        assert_eq!((account.used_bytes, account.peak_bytes, account.refusals), (6 << 20, 6 << 20, 1));
        account.give_back(4 << 20);
        assert_eq!((account.free_bytes(0), account.peak_bytes), (Ok(4 << 20), 6 << 20));
    }

    #[test]
    fn what_others_use_cannot_be_had() {
        let mut account = Account::new(10 << 20, 4 << 20);
        assert_eq!(account.free_bytes(2 << 20), Ok(4 << 20));
        assert_eq!(account.take(6 << 20, 2 << 20), Err(Failure::OutOfMemory));
        assert_eq!(account.take(4 << 20, 2 << 20), Ok(()));
        // Others may take more than is left, this process's own account being behind: nothing wraps.
        assert_eq!(account.free_bytes(u64::MAX), Ok(0));
    }

    #[test]
    fn without_room_for_the_context_there_is_no_device() {
        let mut account = Account::new(4 << 20, 2 << 20);
        assert_eq!(account.activate(3 << 20), Err(Failure::OutOfMemory));
        assert_eq!(account.take(GRANULARITY_BYTES, 3 << 20), Err(Failure::OutOfMemory));
        assert!(!account.active);
        assert_eq!(account.activate(2 << 20), Ok(()));
        assert_eq!((account.active, account.free_bytes(2 << 20)), (true, Ok(0)));
    }

    #[test]
    fn rounding_does_not_wrap() {
        assert_eq!(rounded(1), Ok(GRANULARITY_BYTES));
        assert_eq!(rounded(GRANULARITY_BYTES), Ok(GRANULARITY_BYTES));
        assert_eq!(rounded(u64::MAX), Err(Failure::OutOfMemory));
    }
}
