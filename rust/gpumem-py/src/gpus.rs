//! GPU profiles.

use gpumem_core::target::{Evidence, Gpu};
use pyo3::prelude::*;

use crate::errors::to_python;

/// One GPU profile.
#[pyclass(frozen, eq, get_all, module = "gpumem._core")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuProfile {
    /// Canonical short name, such as `rtx3090`.
    name: String,
    /// What `torch.cuda.get_device_name()` says on it.
    torch_name: String,
    /// Other accepted names.
    aliases: Vec<String>,
    /// Compute capability `(major, minor)`.
    capability: (u32, u32),
    /// Streaming multiprocessors.
    sm_count: u32,
    /// Bytes of memory as `torch.cuda.mem_get_info()` reports them.
    total_bytes: u64,
    /// Whether somebody read `total_bytes` from a card; otherwise it is from a specification.
    total_bytes_measured: bool,
    /// Where `total_bytes` was found.
    total_bytes_source: String,
}

#[pymethods]
impl GpuProfile {
    fn __repr__(&self) -> String {
        format!("GpuProfile({:?}, total_bytes={})", self.name, self.total_bytes)
    }
}

impl From<&Gpu> for GpuProfile {
    fn from(gpu: &Gpu) -> Self {
        Self {
            name: gpu.name.clone(),
            torch_name: gpu.torch_name.clone(),
            aliases: gpu.aliases.clone(),
            capability: (gpu.capability.major, gpu.capability.minor),
            sm_count: gpu.sm_count,
            total_bytes: gpu.total_bytes,
            total_bytes_measured: gpu.total_bytes_source.evidence == Evidence::Measured,
            total_bytes_source: gpu.total_bytes_source.source.clone(),
        }
    }
}

/// All GPU profiles.
#[pyfunction]
pub(crate) fn gpus() -> PyResult<Vec<GpuProfile>> {
    let table = Gpu::table().map_err(|error| to_python(error.into()))?;
    Ok(table.iter().map(GpuProfile::from).collect())
}

/// The profile with this name or alias.
#[pyfunction]
#[pyo3(signature = (name, /))]
pub(crate) fn find_gpu(name: &str) -> PyResult<GpuProfile> {
    Gpu::by_name(name).map(GpuProfile::from).map_err(|error| to_python(error.into()))
}
