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

/// The memory of one device.
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

    /// Bytes a program could still get; the context is made if there is none.
    pub(crate) const fn free_bytes(&mut self) -> u64 {
        self.active = true;
        self.total_bytes.saturating_sub(self.context_bytes).saturating_sub(self.used_bytes)
    }

    /// Take `bytes`, a multiple of [`GRANULARITY_BYTES`].
    ///
    /// # Errors
    /// [`Failure::OutOfMemory`], and nothing is taken.
    pub(crate) const fn take(&mut self, bytes: u64) -> Result<(), Failure> {
        if bytes > self.free_bytes() {
            self.refusals += 1;
            if bytes > self.refused_bytes {
                self.refused_bytes = bytes;
            }
            return Err(Failure::OutOfMemory);
        }
        self.used_bytes += bytes;
        if self.used_bytes > self.peak_bytes {
            self.peak_bytes = self.used_bytes;
        }
        Ok(())
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
        assert_eq!(account.take(4 << 20), Ok(()));
        assert_eq!(account.take(2 << 20), Ok(()));
        assert_eq!(account.take(2 << 20), Err(Failure::OutOfMemory));
        assert_eq!((account.used_bytes, account.peak_bytes, account.refusals), (6 << 20, 6 << 20, 1));
        account.give_back(4 << 20);
        assert_eq!((account.free_bytes(), account.peak_bytes), (4 << 20, 6 << 20));
    }

    #[test]
    fn a_context_larger_than_the_card_leaves_nothing() {
        let mut account = Account::new(1 << 20, 2 << 20);
        assert_eq!(account.free_bytes(), 0);
        assert_eq!(account.take(GRANULARITY_BYTES), Err(Failure::OutOfMemory));
    }

    #[test]
    fn rounding_does_not_wrap() {
        assert_eq!(rounded(1), Ok(GRANULARITY_BYTES));
        assert_eq!(rounded(GRANULARITY_BYTES), Ok(GRANULARITY_BYTES));
        assert_eq!(rounded(u64::MAX), Err(Failure::OutOfMemory));
    }
}
