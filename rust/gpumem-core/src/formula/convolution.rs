//! cuDNN's workspace of one convolution as a formula.

use super::{Arguments, FormulaError, SizeOverflow, Stages, Step};
use crate::target::{LibraryWorkspaces, Target};
use crate::workspace::conv::{self, ConvCall, ConvDtype, Direction, InvalidConv};

/// Name of the formula.
pub const KIND: &str = "conv_workspace";

/// `conv_workspace [direction, dtype, tf32_allowed, channels_last, transposed, groups, ndim, batch, in_channels,
/// out_channels, input, kernel, stride, padding, dilation]` (the last five `ndim` each): cuDNN's buffer of one call.
///
/// # Errors
/// [`FormulaError::Arguments`] when the arguments are no convolution.
pub fn conv_workspace(arguments: &mut Arguments<'_>, target: &Target) -> Result<Stages, FormulaError> {
    let integers = arguments.rest();
    let call = read(arguments)?;
    if target.library_workspaces == LibraryWorkspaces::Zero {
        return Ok(vec![vec![]]);
    }
    let bytes = match target.conv_answers.as_ref().and_then(|answers| answers.bytes(integers)) {
        Some(bytes) => bytes,
        None => by_rule(&call, arguments, target)?,
    };
    // PyTorch tries the plans in order and takes the next one when the workspace is out of memory; the last ones need
    // none (facts/workspaces.md section 3; VGG-16 on the virtual RTX 3090 runs at batch 300 with 87 such failures).
    Ok(vec![vec![Step::TryAlloc { slot: 0, bytes }, Step::Free { slot: 0 }]])
}

/// The call that the integers of the formula stand for.
///
/// # Errors
/// [`FormulaError::Arguments`] when they are no convolution.
pub fn conv_call(integers: &[i64]) -> Result<ConvCall, FormulaError> {
    let mut arguments = Arguments::new(KIND, integers);
    let call = read(&mut arguments)?;
    arguments.finish()?;
    Ok(call)
}

fn by_rule(call: &ConvCall, arguments: &Arguments<'_>, target: &Target) -> Result<u64, FormulaError> {
    let workspace = conv::conv_workspace(call, target.gpu, &target.stack).map_err(|error| match error {
        InvalidConv::SizeOverflow => FormulaError::Overflow(SizeOverflow { op: "convolution" }),
        _ => arguments.invalid("these sizes are no convolution"),
    })?;
    Ok(workspace.bytes.at(target.end))
}

fn read(arguments: &mut Arguments<'_>) -> Result<ConvCall, FormulaError> {
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
    let output = (0..dims)
        .map(|dim| {
            let taps = dilation[dim].checked_mul(kernel[dim].checked_sub(1)?)?.checked_add(1)?;
            let padded = padding[dim].checked_mul(2)?.checked_add(input[dim])?;
            padded.checked_sub(taps)?.checked_div(stride[dim])?.checked_add(1)
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| arguments.invalid("the kernel does not fit the padded input"))?;
    Ok(ConvCall {
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
    })
}
