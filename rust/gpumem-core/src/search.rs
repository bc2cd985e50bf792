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
    let target = setting.target_for([spec], batch, End::High)?;
    let timeline = match Timeline::new(spec, batch, &target) {
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
    largest_fitting(setting, |batch, setting| fits(spec, batch, setting))?.map_or_else(
        || {
            let smallest_bytes = estimate(spec, 1, setting)?.device_peak.high;
            Err(Error::NothingFits { budget_bytes: setting.budget_bytes().unwrap_or(0), smallest_bytes })
        },
        Ok,
    )
}

/// The largest batch that fits while the next one does not; `None` when not even one sample fits.
///
/// Where a library says the workspaces of convolutions, the rules say where to look: it takes its time for every batch
/// that is tried, they do not.
///
/// # Errors
/// [`Error::Unbounded`] when all up to [`LARGEST_BATCH`] fit, and what `fits` answers with.
pub(crate) fn largest_fitting(
    setting: &Setting,
    mut fits: impl FnMut(u64, &Setting) -> Result<bool, Error>,
) -> Result<Option<u64>, Error> {
    let Some(by_rules) = setting.by_rules() else { return from_one(|batch| fits(batch, setting)) };
    let near = from_one(|batch| fits(batch, &by_rules))?.unwrap_or(1);
    from(near, |batch| fits(batch, setting))
}

/// Doubles from 1, then bisects.
fn from_one(mut fits: impl FnMut(u64) -> Result<bool, Error>) -> Result<Option<u64>, Error> {
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
    between(fitting, failing, fits).map(Some)
}

/// Steps away from `near` by 1, 2, 4 and so on, up while that fits or down until it does, then bisects.
fn from(near: u64, mut fits: impl FnMut(u64) -> Result<bool, Error>) -> Result<Option<u64>, Error> {
    let mut step = 1;
    if fits(near)? {
        let mut fitting = near;
        loop {
            let next = fitting.saturating_add(step);
            if next > LARGEST_BATCH {
                return Err(Error::Unbounded { tried: fitting });
            }
            if !fits(next)? {
                return between(fitting, next, fits).map(Some);
            }
            fitting = next;
            step *= 2;
        }
    }
    let mut failing = near;
    while failing > 1 {
        let next = failing.saturating_sub(step).max(1);
        if fits(next)? {
            return between(next, failing, fits).map(Some);
        }
        failing = next;
        step *= 2;
    }
    Ok(None)
}

/// Bisects between a batch that fits and a larger one that does not.
fn between(mut fitting: u64, mut failing: u64, mut fits: impl FnMut(u64) -> Result<bool, Error>) -> Result<u64, Error> {
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        if fits(middle)? {
            fitting = middle;
        } else {
            failing = middle;
        }
    }
    Ok(fitting)
}
