//! Keyword arguments of a what-if to the core's `Setting`.

use gpumem_core::allocator::AllocConf;
use gpumem_core::error::Error;
use gpumem_core::setting::{DEFAULT_GPU, Setting};
use gpumem_core::spec::About;
use gpumem_core::target::{ConvWorkspaces, Gpu, LibraryWorkspaces, Stack};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBool;

use crate::cudnn::Question;
use crate::errors::{InputError, to_python};

/// Bytes from an int or a string such as "24GB"; read by `gpumem.units.parse_bytes`, the only reader of units.
pub(crate) struct Bytes(u64);

impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(parse_bytes(value, "budget")?))
    }
}

/// Bytes of a CUDA context: as `Bytes`, or 0 for what PyTorch alone takes.
pub(crate) struct Context(u64);

impl<'py> FromPyObject<'_, 'py> for Context {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if !value.is_instance_of::<PyBool>() && value.extract::<u64>().is_ok_and(|bytes| bytes == 0) {
            return Ok(Self(0));
        }
        Ok(Self(parse_bytes(value, "context")?))
    }
}

/// A batch size: a positive integer below 2^63.
#[derive(Clone, Copy)]
pub(crate) struct Batch(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Batch {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<i64>().ok().and_then(|batch| u64::try_from(batch).ok()) {
            Some(batch) if batch > 0 && !value.is_instance_of::<PyBool>() => Ok(Self(batch)),
            _ => {
                let given = value.repr()?;
                Err(InputError::new_err((format!("batch must be a positive integer, not {given}"), String::new())))
            }
        }
    }
}

fn parse_bytes(value: Borrowed<'_, '_, PyAny>, what: &str) -> PyResult<u64> {
    static PARSE_BYTES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let parse = PARSE_BYTES.import(value.py(), "gpumem.units", "parse_bytes")?;
    parse.call1((value, what))?.extract()
}

/// The core's form of the arguments that every question takes; `about` is of the loop that it is asked about.
pub(crate) fn setting(
    py: Python<'_>,
    about: &About,
    gpu: Option<&str>,
    budget: Option<Bytes>,
    stack: Option<&str>,
    context: Option<Context>,
    alloc_conf: Option<&str>,
    library_workspaces: bool,
    cudnn_benchmark: bool,
    conv_workspaces: &str,
) -> PyResult<Question> {
    let read = || -> Result<Setting, Error> {
        Ok(Setting {
            gpu: Gpu::by_name(gpu.unwrap_or(DEFAULT_GPU))?,
            gpu_asked: gpu.map(str::to_owned),
            stack: stack.map_or_else(|| Ok(Stack::traced(&about.torch)), Stack::parse)?,
            budget_bytes: budget.map(|bytes| bytes.0),
            context_override_bytes: context.map(|bytes| bytes.0),
            alloc_conf: AllocConf::parse(alloc_conf.unwrap_or_default())?,
            library_workspaces: if library_workspaces { LibraryWorkspaces::Modelled } else { LibraryWorkspaces::Zero },
            cudnn_benchmark,
            conv_workspaces: ConvWorkspaces::Rules { because: String::new() },
        })
    };
    Question::new(py, read().map_err(to_python)?, conv_workspaces, stack.is_some())
}

/// The canonical form of a `PYTORCH_CUDA_ALLOC_CONF` string.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn parse_alloc_conf(text: &str) -> PyResult<String> {
    AllocConf::parse(text).map(|conf| conf.to_string()).map_err(|error| to_python(error.into()))
}
