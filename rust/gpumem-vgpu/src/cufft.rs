//! cuFFT. A plan's work area is answered with zero bytes: only a real library on a real device knows it.

use crate::arguments::Out;
use crate::counts::note_guess;
use crate::entry::{Failure, Library, entry_points};
use crate::handles::Registry;

/// Answers with cuFFT's status.
pub(crate) const CUFFT: Library = Library::simple("cufft", 4, 2, 16, 5);

/// `CUFFT_INVALID_PLAN`.
const INVALID_PLAN: Failure = Failure::Library(1);

/// Plans; their handles are 32-bit in cuFFT.
static PLANS: Registry<()> = Registry::new();

fn known(plan: i32) -> Result<usize, Failure> {
    usize::try_from(plan).ok().filter(|&plan| PLANS.knows(plan)).ok_or(INVALID_PLAN)
}

entry_points! { CUFFT;

fn cufftCreate(plan: Out<i32>) {
    plan.set(i32::try_from(PLANS.add(())).map_err(|_| Failure::OutOfMemory)?)
}

fn cufftDestroy(plan: i32) {
    PLANS.remove(known(plan)?)
}

fn cufftXtMakePlanMany(
    plan: i32,
    _rank: i32,
    _sizes: usize,
    _input_embedding: usize,
    _input_stride: i64,
    _input_distance: i64,
    _input_type: i32,
    _output_embedding: usize,
    _output_stride: i64,
    _output_distance: i64,
    _output_type: i32,
    _batch: i64,
    work_bytes: Out<usize>,
    _execution_type: i32,
) {
    known(plan)?;
    note_guess("cufftXtMakePlanMany");
    work_bytes.set(0)
}

}
