//! Handles that the program holds and hands back: numbers, so that a wrong one is an error and not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::entry::Failure;

/// The numbers 0, 1 and 2 are the default, legacy and per-thread streams; handles of all registries differ.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
const STEP: usize = 16;

/// A handle as the program sees it.
pub(crate) type Handle = usize;

/// Objects of one kind by handle.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    objects: Mutex<BTreeMap<Handle, T>>,
}

impl<T> Registry<T> {
    /// No object yet.
    pub(crate) const fn new() -> Self {
        Self { objects: Mutex::new(BTreeMap::new()) }
    }

    /// A handle for `object`.
    pub(crate) fn add(&self, object: T) -> Handle {
        let handle = NEXT.fetch_add(STEP, Ordering::Relaxed);
        self.lock().insert(handle, object);
        handle
    }

    /// Take the object out.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the handle is none of ours.
    pub(crate) fn remove(&self, handle: Handle) -> Result<T, Failure> {
        self.lock().remove(&handle).ok_or(Failure::InvalidValue)
    }

    /// Whether the handle is one of ours.
    pub(crate) fn knows(&self, handle: Handle) -> bool {
        self.lock().contains_key(&handle)
    }

    /// A copy of the object.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the handle is none of ours.
    pub(crate) fn get(&self, handle: Handle) -> Result<T, Failure>
    where
        T: Clone,
    {
        self.lock().get(&handle).cloned().ok_or(Failure::InvalidValue)
    }

    /// Put `object` in the place of the one there is.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the handle is none of ours.
    pub(crate) fn replace(&self, handle: Handle, object: T) -> Result<(), Failure> {
        match self.lock().get_mut(&handle) {
            Some(place) => {
                *place = object;
                Ok(())
            }
            None => Err(Failure::InvalidValue),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, T>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_removed() {
        let registry = Registry::new();
        let (a, b) = (registry.add('a'), registry.add('b'));
        assert_ne!(a, b);
        assert_eq!(registry.replace(b, 'c'), Ok(()));
        assert_eq!((registry.get(a), registry.get(b)), (Ok('a'), Ok('c')));
        assert_eq!(registry.remove(a), Ok('a'));
        assert_eq!(registry.remove(a), Err(Failure::InvalidValue));
        assert_eq!(registry.get(a), Err(Failure::InvalidValue));
        assert!(!registry.knows(a) && !registry.knows(0));
    }
}
