//! cuDNN convolution workspaces: temporary buffers of one forward, data-gradient or weight-gradient call.

mod call;
mod rules;

pub use call::{ConvCall, ConvDtype, Direction, InvalidConv};

use super::Workspace;
use crate::target::{Gpu, Stack};

/// The workspace cuDNN's first acceptable plan asks for.
///
/// # Errors
/// [`InvalidConv`] when the call is no convolution or its sizes exceed 64 bits.
pub fn conv_workspace(call: &ConvCall, gpu: &Gpu, stack: &Stack) -> Result<Workspace, InvalidConv> {
    rules::workspace(call, gpu, stack)
}
