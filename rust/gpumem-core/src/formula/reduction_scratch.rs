//! `reduce [op, in_itemsize, ndim, sizes, strides, reduced]`: scratch of a generic reduction, requested after its output.
//!
//! `op`: 0 sum/mean/prod/norm, 1 amax/amin, 2 any/all, 3 argmax/max.dim, 4 aminmax, 5 var/std.

use super::reduce::{ReduceKernel, ReduceOp, reduce_scratch};
use super::{Arguments, FormulaError, Stages, temporary};
use crate::target::Target;

/// See the module.
///
/// # Errors
/// [`FormulaError`] for other arguments or an overflow.
pub fn reduce(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let op = match arguments.integer()? {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Extremum,
        2 => ReduceOp::Boolean,
        3 => ReduceOp::ArgExtremum,
        4 => ReduceOp::MinMax,
        5 => ReduceOp::Welford,
        _ => return Err(arguments.invalid("unknown reduction")),
    };
    let in_itemsize = arguments.size()?;
    let dims = arguments.count()?;
    let sizes = arguments.sizes(dims)?;
    let strides = arguments.sizes(dims)?;
    let reduced = (0..dims).map(|_| arguments.flag()).collect::<Result<Vec<_>, _>>()?;
    let scratch = reduce_scratch(ReduceKernel::new(op, in_itemsize), &sizes, &strides, &reduced, target.gpu)?;
    Ok(vec![temporary(&[scratch.buffer_bytes, scratch.semaphore_bytes])])
}
