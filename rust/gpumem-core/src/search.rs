//! The largest batch that fits.

use crate::error::Error;
use crate::play::play;
use crate::report::estimate;
use crate::setting::Setting;
use crate::spec::ModelSpec;
use crate::target::End;
use crate::timeline::Timeline;

/// Batches beyond this are not searched: nothing in the loop grows with the batch then.
pub const LARGEST_BATCH: u64 = 1 << 40;

/// Whether the loop runs through at this batch, at the upper end of every uncertainty.
///
/// # Errors
/// [`Error`] for a batch the spec does not answer for, or a budget below the context.
pub fn fits(spec: &ModelSpec, batch: u64, setting: &Setting) -> Result<bool, Error> {
    let driver = setting.driver(End::High)?;
    let timeline = match Timeline::new(spec, batch, &setting.target(End::High)) {
        // What does not fit 64 bits fits no card.
        Err(error) if error.is_overflow() => return Ok(false),
        other => other?,
    };
    Ok(play(&timeline, &setting.alloc_conf, driver, |_, _| ()).failure.is_none())
}

/// The largest batch that fits while the next one does not.
///
/// # Errors
/// [`Error::NoBudget`] without a limit, [`Error::NothingFits`] when not even one sample fits,
/// [`Error::Unbounded`] when the bytes do not grow with the batch; otherwise as [`fits`].
pub fn max_batch(spec: &ModelSpec, setting: &Setting) -> Result<u64, Error> {
    if setting.budget_bytes().is_none() {
        return Err(Error::NoBudget);
    }
    largest_fitting(|batch| fits(spec, batch, setting))?.map_or_else(
        || {
            let smallest_bytes = estimate(spec, 1, setting)?.device_peak.high;
            Err(Error::NothingFits { budget_bytes: setting.budget_bytes().unwrap_or(0), smallest_bytes })
        },
        Ok,
    )
}

/// The largest batch that fits while the next one does not; `None` when not even one sample fits.
///
/// # Errors
/// [`Error::Unbounded`] when all up to [`LARGEST_BATCH`] fit, and what `fits` answers with.
pub(crate) fn largest_fitting(mut fits: impl FnMut(u64) -> Result<bool, Error>) -> Result<Option<u64>, Error> {
    if !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut failing) = (1, 2);
    while failing <= LARGEST_BATCH && fits(failing)? {
        fitting = failing;
        failing *= 2;
    }
    if failing > LARGEST_BATCH {
        return Err(Error::Unbounded { tried: fitting });
    }
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        if fits(middle)? {
            fitting = middle;
        } else {
            failing = middle;
        }
    }
    Ok(Some(fitting))
}
