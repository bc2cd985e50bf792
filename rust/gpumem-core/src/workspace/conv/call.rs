//! What a convolution call is: everything cuDNN's choice of a plan depends on.

use thiserror::Error;

/// Which of the three calls of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Output from input and weight.
    Fwd,
    /// Gradient of the input.
    Dgrad,
    /// Gradient of the weight.
    Wgrad,
}

/// Element type of input, weight and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConvDtype {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bf16.
    BF16,
}

impl ConvDtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn itemsize(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// The call is no convolution.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidConv {
    /// Sizes, kernel, stride, padding and dilation must have the same number of dimensions, 1 to 3.
    #[error("convolution: {dims} spatial dimensions (1 to 3, the same for every argument)")]
    Dimensions {
        /// The number found.
        dims: usize,
    },
    /// A stride, group or kernel of zero, channels that groups do not divide, or a kernel wider than the padded input.
    #[error("convolution: {what}")]
    Shape {
        /// What does not fit.
        what: &'static str,
    },
    /// A tensor of the call has more than 2^64 bytes.
    #[error("convolution: a size does not fit 64 bits")]
    SizeOverflow,
    /// The embedded table of rules is malformed (a defect of this build).
    #[error("convolution: the embedded rule table is malformed")]
    RuleTable,
}

/// One convolution call, as the module states it (a transposed convolution keeps its own direction here).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvCall {
    /// Forward, data gradient or weight gradient of the module.
    pub direction: Direction,
    /// Element type.
    pub dtype: ConvDtype,
    /// fp32 may be computed in TF32 (`torch.backends.cudnn.allow_tf32`, on by default).
    pub tf32_allowed: bool,
    /// Tensors are `channels_last`.
    pub channels_last: bool,
    /// Batch.
    pub batch: u64,
    /// Channels of the module's input.
    pub in_channels: u64,
    /// Channels of the module's output.
    pub out_channels: u64,
    /// Groups.
    pub groups: u64,
    /// Spatial sizes of the module's input, 1 to 3.
    pub input: Vec<u64>,
    /// Kernel sizes.
    pub kernel: Vec<u64>,
    /// Strides.
    pub stride: Vec<u64>,
    /// Paddings on each side.
    pub padding: Vec<u64>,
    /// Dilations.
    pub dilation: Vec<u64>,
    /// Spatial sizes of the module's output.
    pub output: Vec<u64>,
    /// A transposed convolution: cuDNN runs its forward as a data gradient and its data gradient as a forward.
    pub transposed: bool,
}

/// The call as cuDNN sees it: never transposed, with the tensors' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) direction: Direction,
    pub(super) itemsize: u64,
    pub(super) batch: u64,
    pub(super) channels_x: u64,
    pub(super) channels_y: u64,
    pub(super) groups: u64,
    pub(super) pixels_x: u64,
    pub(super) pixels_y: u64,
    pub(super) taps: u64,
    pub(super) x_bytes: u64,
    pub(super) w_bytes: u64,
    pub(super) y_bytes: u64,
}

impl ConvCall {
    /// Checks the call and turns a transposed one into its ordinary counterpart.
    pub(super) fn problem(&self) -> Result<Problem, InvalidConv> {
        let dims = self.input.len();
        let arguments = [&self.kernel, &self.stride, &self.padding, &self.dilation, &self.output];
        if !(1..=3).contains(&dims) || arguments.iter().any(|a| a.len() != dims) {
            return Err(InvalidConv::Dimensions { dims });
        }
        if self.groups == 0 || self.in_channels % self.groups != 0 || self.out_channels % self.groups != 0 {
            return Err(InvalidConv::Shape { what: "groups do not divide the channels" });
        }
        let volume = |sizes: &[u64]| checked(sizes);
        let (input, output) = (volume(&self.input)?, volume(&self.output)?);
        let (in_side, out_side) = ((self.in_channels, input), (self.out_channels, output));
        let (x, y) = if self.transposed { (out_side, in_side) } else { (in_side, out_side) };
        let direction = match (self.direction, self.transposed) {
            (Direction::Fwd, true) => Direction::Dgrad,
            (Direction::Dgrad, true) => Direction::Fwd,
            (direction, _) => direction,
        };
        let itemsize = self.dtype.itemsize();
        let taps = volume(&self.kernel)?;
        Ok(Problem {
            direction,
            itemsize,
            batch: self.batch,
            channels_x: x.0,
            channels_y: y.0,
            groups: self.groups,
            pixels_x: x.1,
            pixels_y: y.1,
            taps,
            x_bytes: checked(&[self.batch, x.0, x.1, itemsize])?,
            w_bytes: checked(&[y.0, x.0 / self.groups, taps, itemsize])?,
            y_bytes: checked(&[self.batch, y.0, y.1, itemsize])?,
        })
    }
}

pub(super) fn checked(factors: &[u64]) -> Result<u64, InvalidConv> {
    crate::formula::checked::product("convolution", factors).map_err(|_| InvalidConv::SizeOverflow)
}
