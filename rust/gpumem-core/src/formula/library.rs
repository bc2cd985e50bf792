//! Workspaces of cuBLAS and cuDNN as formulas.

use super::{Arguments, FormulaError, Stages, Step, temporary};
use crate::target::{LibraryWorkspaces, Target};
use crate::workspace::cublas;

/// `cublas_workspace [autograd_thread]`: the persistent buffer of one thread's handle (facts/workspaces.md section 2).
///
/// # Errors
/// [`FormulaError::Arguments`].
pub fn cublas_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    arguments.flag()?;
    let bytes = cublas::default_workspace_bytes(target.gpu.capability, &target.stack);
    Ok(vec![vec![Step::Alloc { slot: 0, bytes }]])
}

/// `conv_workspace [...]`: see [`crate::workspace::conv`]; lives for the call.
///
/// # Errors
/// [`FormulaError::Arguments`].
pub fn conv_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let _direction = arguments.size()?;
    let _flags = arguments.sizes(5)?;
    let dims = arguments.count()?;
    let _sizes = arguments.sizes(3 + 5 * dims)?;
    match target.library_workspaces {
        LibraryWorkspaces::Zero => Ok(vec![vec![]]),
        LibraryWorkspaces::Modelled => Ok(vec![temporary(&[0])]),
    }
}
