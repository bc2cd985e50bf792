//! `reduce [acc_itemsize, input_vec, ndim, sizes, strides, reduced]`: scratch of a generic reduction, after its output.

use super::reduce::{ReduceKernel, reduce_scratch};
use super::{Arguments, FormulaError, Stages, temporary};
use crate::target::Target;

/// See the module.
///
/// # Errors
/// [`FormulaError`] for other arguments or an overflow.
pub fn reduce(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let (acc_bytes, input_vec) = (arguments.size()?, arguments.size()?);
    if input_vec == 0 {
        return Err(arguments.invalid("a kernel reads at least one input at once"));
    }
    let kernel = ReduceKernel::of(acc_bytes, input_vec);
    let dims = arguments.count()?;
    let sizes = arguments.sizes(dims)?;
    let strides = arguments.sizes(dims)?;
    let reduced = (0..dims).map(|_| arguments.flag()).collect::<Result<Vec<_>, _>>()?;
    let scratch = reduce_scratch(kernel, &sizes, &strides, &reduced, target.gpu)?;
    Ok(vec![temporary(&[scratch.buffer_bytes, scratch.semaphore_bytes])])
}
