//! Arguments of C functions: pointers that are read or written once, checked for null.

use std::ffi::{CStr, c_char};

use crate::entry::Failure;

/// The longest array that is read: far longer than any that programs pass, and short enough to be copied whatever the
/// count says.
pub(crate) const MOST_ITEMS: usize = 1 << 20;

/// Where the caller wants a `T`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Write the answer.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the caller gave no place.
    pub(crate) fn set(self, value: T) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: the library's documentation asks the caller for a pointer to a `T`; null was excluded.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Write the answer if the caller wants it.
    pub(crate) fn set_if_given(self, value: T) {
        // Null means "not wanted" here.
        let _ = self.set(value);
    }

    /// Write `values` one after the other; nothing if there are none.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the caller gave no place.
    pub(crate) fn set_all(self, values: &[T]) -> Result<(), Failure>
    where
        T: Copy,
    {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: the caller gave an array of at least the length it asked for, which `values` does not exceed.
        unsafe { self.0.cast::<u8>().copy_from(values.as_ptr().cast(), size_of_val(values)) };
        Ok(())
    }

    /// Whether the caller gave a place.
    pub(crate) const fn is_given(&self) -> bool {
        !self.0.is_null()
    }
}

/// One or more `T` that the caller hands over.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if there is none.
    pub(crate) fn get(&self) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: the library's documentation asks the caller for a pointer to a `T`; null was excluded.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `count` values of an array.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if there is no array, or `count` is negative or beyond [`MOST_ITEMS`].
    pub(crate) fn get_all(&self, count: impl TryInto<usize>) -> Result<Vec<T>, Failure> {
        let count = count.try_into().map_err(|_| Failure::InvalidValue)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() || count > MOST_ITEMS {
            return Err(Failure::InvalidValue);
        }
        let mut values: Vec<T> = Vec::with_capacity(count);
        // SAFETY: the caller says that `count` values lie there; the vector has room for them, and `T: Copy` means that
        // a byte-wise copy is a value.
        unsafe {
            self.0.cast::<u8>().copy_to(values.as_mut_ptr().cast(), count * size_of::<T>());
            values.set_len(count);
        }
        Ok(values)
    }
}

/// A `T` that the caller hands over and wants changed.
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// The value.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if there is none.
    pub(crate) fn get(&self) -> Result<T, Failure> {
        In(self.0.cast_const()).get()
    }

    /// Write the answer.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if the caller gave no place.
    pub(crate) fn set(self, value: T) -> Result<(), Failure> {
        Out(self.0).set(value)
    }
}

/// A C string that the caller hands over.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text, without what is not UTF-8.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if there is none.
    pub(crate) fn get(&self) -> Result<String, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: a C string by the function's documentation; null was excluded.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Where the caller wants a C string.
#[repr(transparent)]
pub(crate) struct OutText(*mut c_char);

impl OutText {
    /// Write as much of `text` as fits into `room` bytes, ended by a zero.
    ///
    /// # Errors
    /// [`Failure::InvalidValue`] if there is no room for the zero.
    pub(crate) fn set(self, text: &str, room: impl TryInto<usize>) -> Result<(), Failure> {
        let room = room.try_into().unwrap_or(0);
        if self.0.is_null() || room == 0 {
            return Err(Failure::InvalidValue);
        }
        let length = text.len().min(room - 1);
        // SAFETY: the caller gave `room` bytes; `length + 1` of them are written.
        unsafe {
            self.0.cast::<u8>().copy_from(text.as_ptr(), length);
            self.0.add(length).write(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_and_null_is_an_error() {
        let mut place = 0_u64;
        assert_eq!(Out(&raw mut place).set(7), Ok(()));
        assert_eq!(place, 7);
        assert_eq!(Out::<u64>(std::ptr::null_mut()).set(7), Err(Failure::InvalidValue));
        let mut places = [0_i32; 3];
        assert_eq!(Out(places.as_mut_ptr()).set_all(&[1, 2]), Ok(()));
        assert_eq!(places, [1, 2, 0]);
    }

    #[test]
    fn arrays_are_read_and_odd_counts_are_errors() {
        let values = [3_i32, 4, 5];
        assert_eq!(In(values.as_ptr()).get_all(2_i32), Ok(vec![3, 4]));
        assert_eq!(In(values.as_ptr()).get_all(-1_i32), Err(Failure::InvalidValue));
        assert_eq!(In(values.as_ptr()).get_all(i64::MAX), Err(Failure::InvalidValue));
        assert_eq!(In::<i32>(std::ptr::null()).get_all(0_i32), Ok(vec![]));
        assert_eq!(In::<i32>(std::ptr::null()).get(), Err(Failure::InvalidValue));
    }

    #[test]
    fn text_is_cut_to_its_room() {
        let mut room = [1_i8; 4];
        assert_eq!(OutText(room.as_mut_ptr().cast()).set("0000:01", 4_i32), Ok(()));
        assert_eq!(room, [48, 48, 48, 0]);
        assert_eq!(OutText(room.as_mut_ptr().cast()).set("x", -1_i32), Err(Failure::InvalidValue));
    }
}
