//! Grouped matrix products of mixture-of-experts layers on capability 9.0 and above (CUTLASS).

use super::checked::product;
use super::{Arguments, FormulaError, Stages, temporary};
use crate::target::Target;

/// Problem shapes, pointers and strides of one group. Measured: 240 bytes for 4 groups (h200 profile, torch 2.14.1).
const BYTES_PER_GROUP: u64 = 60;
/// Tensor-map workspace of one SM. Measured: 67,584 bytes on 132 SMs.
const BYTES_PER_SM: u64 = 512;

/// `grouped_mm [groups]`: one stage, after the output.
///
/// # Errors
/// [`FormulaError`].
pub fn grouped_mm(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let groups_bytes = product("_grouped_mm", &[arguments.size()?, BYTES_PER_GROUP])?;
    let workspace_bytes = product("_grouped_mm", &[u64::from(target.gpu.sm_count), BYTES_PER_SM])?;
    Ok(vec![temporary(&[groups_bytes, workspace_bytes])])
}
