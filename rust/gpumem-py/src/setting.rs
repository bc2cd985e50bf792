//! Keyword arguments of a what-if to the core's `Setting`.

use gpumem_core::allocator::AllocConf;
use gpumem_core::error::Error;
use gpumem_core::setting::{DEFAULT_GPU, Setting};
use gpumem_core::target::{Gpu, LibraryWorkspaces, Stack};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::to_python;

/// Bytes from an int or a string such as "24GB"; read by `gpumem.units.parse_bytes`, the only reader of units.
pub(crate) struct Bytes(u64);

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        static PARSE_BYTES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let parse = PARSE_BYTES.import(value.py(), "gpumem.units", "parse_bytes")?;
        Ok(Self(parse.call1((value,))?.extract()?))
    }
}

/// The core's form of the arguments that every question takes.
pub(crate) fn setting(
    gpu: Option<&str>,
    budget: Option<Bytes>,
    stack: Option<&str>,
    context: Option<Bytes>,
    alloc_conf: Option<&str>,
    library_workspaces: bool,
) -> PyResult<Setting> {
    let read = || -> Result<Setting, Error> {
        Ok(Setting {
            gpu: Gpu::by_name(gpu.unwrap_or(DEFAULT_GPU))?,
            gpu_given: gpu.is_some(),
            stack: stack.map_or(Ok(Stack::MEASURED), Stack::parse)?,
            budget_bytes: budget.map(|bytes| bytes.0),
            context_override_bytes: context.map(|bytes| bytes.0),
            alloc_conf: AllocConf::parse(alloc_conf.unwrap_or_default())?,
            library_workspaces: match library_workspaces {
                true => LibraryWorkspaces::Modelled,
                false => LibraryWorkspaces::Zero,
            },
        })
    };
    read().map_err(to_python)
}

/// The canonical form of a `PYTORCH_CUDA_ALLOC_CONF` string.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn parse_alloc_conf(text: &str) -> PyResult<String> {
    AllocConf::parse(text).map(|conf| conf.to_string()).map_err(|error| to_python(error.into()))
}
