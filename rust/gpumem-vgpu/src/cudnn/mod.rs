//! cuDNN: descriptors are kept, kernels are counted, and questions about convolutions and attention go to the real cuDNN.

mod backend;
mod convolution;
mod convolution_plan;
mod device_properties;
mod dropout;
mod handle;
mod owned;
mod planning;
mod real;
mod rnn;
mod store;
mod tensor;

pub(crate) use convolution_plan::workspace_bytes as conv_workspace_bytes;
pub(crate) use real::asked;

use crate::entry::Library;

/// Answers with cuDNN's status.
pub(crate) const CUDNN: Library = Library::simple("cudnn", 2000, 5003, 3000, 1001);
