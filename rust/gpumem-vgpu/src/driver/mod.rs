//! The CUDA driver, libcuda: the part of it that `PyTorch`, Triton and NVIDIA's wheels look up.

mod callers;
mod context;
mod entry_point;
mod module;
mod pointer;
mod virtual_memory;

use crate::entry::Library;
use crate::runtime::code;

/// Answers with the driver's status; `CUresult` has the numbers of `cudaError_t` here.
pub(crate) const DRIVER: Library = Library {
    name: "libcuda",
    invalid_value: code::INVALID_VALUE,
    invalid_device: code::INVALID_DEVICE,
    out_of_memory: code::MEMORY_ALLOCATION,
    not_supported: code::NOT_SUPPORTED,
    not_initialized: code::INITIALIZATION,
    no_device: code::NO_DEVICE,
    on_failure: None,
};
