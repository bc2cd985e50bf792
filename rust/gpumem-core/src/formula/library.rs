//! Workspaces of cuBLAS and cuDNN as formulas.

use super::{Arguments, FormulaError, SizeOverflow, Stages, Step, temporary};
use crate::target::{LibraryWorkspaces, Target};
use crate::workspace::attention::{AttentionShape, cudnn};
use crate::workspace::conv::{self, ConvCall, ConvDtype, Direction, InvalidConv};
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

/// `conv_workspace [direction, dtype, tf32_allowed, channels_last, transposed, groups, ndim, batch, in_channels,
/// out_channels, input, kernel, stride, padding, dilation]` (the last five `ndim` each): cuDNN's buffer of one call.
///
/// # Errors
/// [`FormulaError::Arguments`] when the arguments are no convolution.
pub fn conv_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let direction = match arguments.size()? {
        0 => Direction::Fwd,
        1 => Direction::Dgrad,
        2 => Direction::Wgrad,
        _ => return Err(arguments.invalid("unknown direction")),
    };
    let dtype = match arguments.size()? {
        0 => ConvDtype::F32,
        1 => ConvDtype::F16,
        2 => ConvDtype::BF16,
        _ => return Err(arguments.invalid("unknown dtype")),
    };
    let (tf32_allowed, channels_last, transposed) = (arguments.flag()?, arguments.flag()?, arguments.flag()?);
    let groups = arguments.size()?;
    let dims = arguments.count()?;
    let (batch, in_channels, out_channels) = (arguments.size()?, arguments.size()?, arguments.size()?);
    let input = arguments.sizes(dims)?;
    let kernel = arguments.sizes(dims)?;
    let stride = arguments.sizes(dims)?;
    let padding = arguments.sizes(dims)?;
    let dilation = arguments.sizes(dims)?;
    if target.library_workspaces == LibraryWorkspaces::Zero {
        return Ok(vec![vec![]]);
    }
    let output = (0..dims)
        .map(|dim| {
            let taps = dilation[dim].checked_mul(kernel[dim].checked_sub(1)?)?.checked_add(1)?;
            let padded = padding[dim].checked_mul(2)?.checked_add(input[dim])?;
            padded.checked_sub(taps)?.checked_div(stride[dim])?.checked_add(1)
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| arguments.invalid("the kernel does not fit the padded input"))?;
    let call = ConvCall {
        direction,
        dtype,
        tf32_allowed,
        channels_last,
        batch,
        in_channels,
        out_channels,
        groups,
        input,
        kernel,
        stride,
        padding,
        dilation,
        output,
        transposed,
    };
    let workspace = conv::conv_workspace(&call, target.gpu, &target.stack).map_err(|error| match error {
        InvalidConv::SizeOverflow => FormulaError::Overflow(SizeOverflow { op: "convolution" }),
        _ => arguments.invalid("these sizes are no convolution"),
    })?;
    // PyTorch tries the plans in order and takes the next one when the workspace is out of memory; the last ones need
    // none (facts/workspaces.md section 3; VGG-16 on the virtual RTX 3090 runs at batch 300 with 87 such failures).
    let bytes = workspace.bytes.at(target.end);
    Ok(vec![vec![Step::TryAlloc { slot: 0, bytes }, Step::Free { slot: 0 }]])
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
