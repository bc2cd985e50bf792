//! Descriptors of the real cuDNN that we make ourselves, destroyed when they are no longer needed.

use std::ffi::c_void;
use std::ptr;

use super::real::{Cudnn, Descriptor, attribute_type};
use crate::entry::{Failure, Outcome};

/// More engine configurations than heuristics list (about 40).
const MOST_DESCRIPTORS: i64 = 4096;

/// What an attribute is set to.
pub(super) enum Value<'a> {
    DataType(i32),
    Int64s(&'a [i64]),
    Float(f32),
    ConvolutionMode(i32),
    HeuristicMode(i32),
    Descriptors(&'a [&'a Owned<'a>]),
}

/// A descriptor.
pub(super) struct Owned<'a> {
    real: &'a Cudnn,
    raw: Descriptor,
}

impl<'a> Owned<'a> {
    /// A new descriptor of this kind.
    pub(super) fn new(real: &'a Cudnn, of: i32) -> Result<Self, Failure> {
        real.create(of).map(|raw| Self { real, raw })
    }

    /// Set an attribute.
    pub(super) fn set(&mut self, name: i32, value: &Value<'_>) -> Outcome {
        match *value {
            Value::DataType(code) => self.put(name, attribute_type::DATA_TYPE, &[code]),
            Value::Int64s(numbers) => self.put(name, attribute_type::INT64, numbers),
            Value::Float(number) => self.put(name, attribute_type::FLOAT, &[number]),
            Value::ConvolutionMode(code) => self.put(name, attribute_type::CONVOLUTION_MODE, &[code]),
            Value::HeuristicMode(code) => self.put(name, attribute_type::HEURISTIC_MODE, &[code]),
            Value::Descriptors(others) => {
                let raw: Vec<Descriptor> = others.iter().map(|other| other.raw).collect();
                self.put(name, attribute_type::BACKEND_DESCRIPTOR, &raw)
            }
        }
    }

    /// Set an attribute to the description of the card.
    pub(super) fn set_card(&mut self, name: i32) -> Outcome {
        self.real.set_card(self.raw, name)
    }

    fn put<T>(&mut self, name: i32, of: i32, values: &[T]) -> Outcome {
        let count = i64::try_from(values.len()).map_err(|_| Failure::InvalidValue)?;
        self.real.set(self.raw, name, of, count, values.as_ptr().cast())
    }

    /// Finalize it.
    pub(super) fn finalize(&mut self) -> Outcome {
        self.real.finalize(self.raw)
    }

    /// An attribute that is one integer.
    pub(super) fn int64(&self, name: i32) -> Result<i64, Failure> {
        let mut value = 0_i64;
        let read = self.read(name, attribute_type::INT64, 1, (&raw mut value).cast())?;
        if read == 1 { Ok(value) } else { Err(Failure::InvalidValue) }
    }

    /// Notes of a kind, at most so many.
    pub(super) fn notes(&self, name: i32, of: i32, most: usize) -> Result<Vec<i32>, Failure> {
        let mut notes = vec![-1_i32; most];
        let room = i64::try_from(most).map_err(|_| Failure::InvalidValue)?;
        let read = self.read(name, of, room, notes.as_mut_ptr().cast())?;
        notes.truncate(usize::try_from(read).unwrap_or(0));
        Ok(notes)
    }

    /// An attribute that is one descriptor.
    pub(super) fn descriptor(&self, name: i32, of: i32) -> Result<Self, Failure> {
        self.filled(name, of, 1)?.pop().ok_or(Failure::InvalidValue)
    }

    /// An attribute that is a list of descriptors.
    pub(super) fn descriptors(&self, name: i32, of: i32) -> Result<Vec<Self>, Failure> {
        let there = self.read(name, attribute_type::BACKEND_DESCRIPTOR, 0, ptr::null_mut())?;
        self.filled(name, of, there.clamp(0, MOST_DESCRIPTORS))
    }

    fn filled(&self, name: i32, of: i32, count: i64) -> Result<Vec<Self>, Failure> {
        let mut made = (0..count).map(|_| Self::new(self.real, of)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<Descriptor> = made.iter().map(|descriptor| descriptor.raw).collect();
        let read = self.read(name, attribute_type::BACKEND_DESCRIPTOR, count, raw.as_mut_ptr().cast())?;
        made.truncate(usize::try_from(read).unwrap_or(0));
        Ok(made)
    }

    /// Reads up to `room` values, and says how many there are.
    fn read(&self, name: i32, of: i32, room: i64, values: *mut c_void) -> Result<i64, Failure> {
        let mut count = 0_i64;
        self.real.get(self.raw, name, of, room, &raw mut count, values).map(|()| count)
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // What cannot be destroyed is not ours to worry about.
        let _ = self.real.destroy(self.raw);
    }
}
