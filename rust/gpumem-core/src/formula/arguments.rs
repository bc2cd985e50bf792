//! Reading a formula's integers in order, with errors that name the formula.

use super::FormulaError;

/// The arguments of one call, read from the front.
#[derive(Debug)]
pub struct Arguments<'a> {
    kind: &'static str,
    rest: &'a [i64],
}

impl<'a> Arguments<'a> {
    /// Arguments of a call of `kind`.
    #[must_use]
    pub const fn new(kind: &'static str, rest: &'a [i64]) -> Self {
        Self { kind, rest }
    }

    /// Those that were not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [i64] {
        self.rest
    }

    /// An error about these arguments.
    #[must_use]
    pub fn invalid(&self, reason: &'static str) -> FormulaError {
        FormulaError::Arguments { kind: self.kind.to_owned(), reason }
    }

    /// The next integer.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when there is none.
    pub fn integer(&mut self) -> Result<i64, FormulaError> {
        let (&first, rest) = self.rest.split_first().ok_or_else(|| self.invalid("too few"))?;
        self.rest = rest;
        Ok(first)
    }

    /// The next integer, which must not be negative.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when there is none or it is negative.
    pub fn size(&mut self) -> Result<u64, FormulaError> {
        u64::try_from(self.integer()?).map_err(|_| self.invalid("a size is negative"))
    }

    /// The next integer as a small count.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when there is none or it is not a count.
    pub fn count(&mut self) -> Result<usize, FormulaError> {
        usize::try_from(self.integer()?).map_err(|_| self.invalid("a count is negative"))
    }

    /// The next integer as the index of an allocation of the trace; -1 is none.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when there is no integer or it is not an index.
    pub fn allocation(&mut self) -> Result<Option<u32>, FormulaError> {
        match self.integer()? {
            -1 => Ok(None),
            index => u32::try_from(index).map(Some).map_err(|_| self.invalid("an allocation is not an index")),
        }
    }

    /// The next integer as a flag.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when it is not 0 or 1.
    pub fn flag(&mut self) -> Result<bool, FormulaError> {
        match self.integer()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid("a flag is not 0 or 1")),
        }
    }

    /// The next `count` sizes.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when there are fewer or one is negative.
    pub fn sizes(&mut self, count: usize) -> Result<Vec<u64>, FormulaError> {
        (0..count).map(|_| self.size()).collect()
    }

    /// All must have been read.
    ///
    /// # Errors
    /// [`FormulaError::Arguments`] when some are left.
    pub fn finish(&self) -> Result<(), FormulaError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.invalid("too many")) }
    }
}
