//! Workspaces of cuBLAS and of cuDNN's attention as formulas.

use super::{Arguments, FormulaError, Stages, Step, temporary};
use crate::target::{LibraryWorkspaces, Target};
use crate::workspace::attention::{AttentionShape, cudnn};
use crate::workspace::cublas;

/// `cublas_workspace [autograd_thread]`: the persistent buffer of one thread's handle (facts/workspaces.md section 2);
/// with a second argument the buffer of so many bytes that cuBLASLt has beside it in versions that do not share one.
///
/// # Errors
/// [`FormulaError::Arguments`].
pub fn cublas_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    arguments.flag()?;
    let bytes = if arguments.rest().is_empty() {
        cublas::default_workspace_bytes(target.gpu.capability, &target.stack)
    } else {
        arguments.size()?
    };
    Ok(vec![vec![Step::Alloc { slot: 0, bytes }]])
}

/// `cublas_workspace_of_a_call []`: the same bytes for the time of one call, in versions that keep none.
///
/// # Errors
/// None; the signature is that of all formulas.
pub fn cublas_workspace_of_a_call(_: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    Ok(vec![temporary(&[cublas::default_workspace_bytes(target.gpu.capability, &target.stack)])])
}

/// `cudnn_attention_workspace [backward, batch, heads, key_heads, seq_q, seq_k, head_dim, head_dim_v, bias, dropout,
/// causal]`: cuDNN's fused attention (sizes: [`crate::workspace::attention::cudnn`]).
///
/// # Errors
/// [`FormulaError`].
pub fn cudnn_attention_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let backward = arguments.flag()?;
    let (batch, heads, key_heads) = (arguments.size()?, arguments.size()?, arguments.size()?);
    let (seq_q, seq_k, head_dim, head_dim_v) =
        (arguments.size()?, arguments.size()?, arguments.size()?, arguments.size()?);
    let _bias_dropout_causal = arguments.sizes(3)?;
    if target.library_workspaces == LibraryWorkspaces::Zero {
        return Ok(vec![vec![]]);
    }
    let bytes = if backward {
        let shape = AttentionShape { batch, heads, seq_q, seq_k, head_dim, head_dim_v };
        cudnn::backward_workspace_bytes(shape, key_heads, target.gpu)?
    } else {
        cudnn::forward_workspace_bytes(target.gpu)
    };
    Ok(vec![temporary(&[bytes])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{End, Gpu, Stack};

    #[test]
    fn cudnn_attention_backward_as_measured_on_the_h200_profile() {
        let target = Target {
            gpu: Gpu::by_name("h200").unwrap(),
            stack: Stack::MEASURED,
            library_workspaces: LibraryWorkspaces::Modelled,
            cudnn_benchmark: false,
            conv_answers: None,
            end: End::Likely,
        };
        for (shape, expected) in [
            ([2, 4, 4, 64, 64, 64, 64], 133_376),
            ([8, 16, 16, 1024, 1024, 128, 128], 67_633_408),
            ([2, 4, 4, 100, 100, 64, 64], 208_256),
            ([2, 4, 2, 64, 100, 64, 64], 338_176),
            ([2, 4, 4, 64, 64, 128, 64], 264_448),
        ] {
            let values: Vec<i64> = [1].into_iter().chain(shape).chain([0, 0, 0]).collect();
            let stages =
                cudnn_attention_workspace(&mut Arguments::new("cudnn_attention_workspace", &values), &target).unwrap();
            assert_eq!(stages, vec![temporary(&[expected])], "{shape:?}");
        }
    }
}
