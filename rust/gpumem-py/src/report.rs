//! The report as a Python object; its JSON form is the dictionary.

use std::collections::BTreeMap;

use gpumem_core::report;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::SpecError;

/// Peak bytes: the likely value and both ends of its uncertainty.
#[pyclass(frozen, eq, get_all, module = "gpumem._core")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantity {
    /// No less than this is expected, bytes.
    low: u64,
    /// The best single answer, bytes.
    likely: u64,
    /// No more than this is expected, bytes.
    high: u64,
}

impl From<report::Quantity> for Quantity {
    fn from(core: report::Quantity) -> Self {
        Self { low: core.low, likely: core.likely, high: core.high }
    }
}

#[pymethods]
impl Quantity {
    fn __int__(&self) -> u64 {
        self.likely
    }

    fn __index__(&self) -> u64 {
        self.likely
    }

    fn __repr__(&self) -> String {
        format!("Quantity(low={}, likely={}, high={})", self.low, self.likely, self.high)
    }
}

/// The answer to one what-if.
#[pyclass(frozen, eq, module = "gpumem._core")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    core: report::Report,
}

impl From<report::Report> for Report {
    fn from(core: report::Report) -> Self {
        Self { core }
    }
}

#[pymethods]
impl Report {
    /// Batch size.
    #[getter]
    fn batch(&self) -> u64 {
        self.core.batch
    }

    /// Bytes asked for by the program (`requested_bytes` of the allocator), at their peak.
    #[getter]
    fn requested_peak(&self) -> Quantity {
        self.core.requested_peak.into()
    }

    /// `torch.cuda.max_memory_allocated()`.
    #[getter]
    fn allocated_peak(&self) -> Quantity {
        self.core.allocated_peak.into()
    }

    /// `torch.cuda.max_memory_reserved()`.
    #[getter]
    fn reserved_peak(&self) -> Quantity {
        self.core.reserved_peak.into()
    }

    /// Reserved bytes plus the CUDA context: the whole process, as nvidia-smi shows it.
    #[getter]
    fn device_peak(&self) -> Quantity {
        self.core.device_peak.into()
    }

    /// Bytes that the process may take, or None when neither a budget nor a GPU was given.
    #[getter]
    fn budget_bytes(&self) -> Option<u64> {
        self.core.budget_bytes
    }

    /// Whether the loop runs through within the budget at the upper end of the uncertainty; None without a budget.
    #[getter]
    fn fits(&self) -> Option<bool> {
        self.core.fits
    }

    /// Where the allocated bytes are at their peak: setup, forward, backward or optimizer.
    #[getter]
    fn peak_phase(&self) -> String {
        self.core.peak_phase.clone()
    }

    /// Requested bytes by category at the peak of allocated bytes; `rounding` is what blocks are larger.
    #[getter]
    fn breakdown(&self) -> BTreeMap<String, u64> {
        self.core.breakdown.clone()
    }

    /// What was assumed, one sentence each.
    #[getter]
    fn assumptions(&self) -> Vec<String> {
        self.core.assumptions.clone()
    }

    /// ATen ops that were never compared with CUDA.
    #[getter]
    fn unsupported(&self) -> Vec<String> {
        self.core.unsupported.clone()
    }

    /// The layers that hold bytes at the peak, largest first.
    #[getter]
    fn layers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_form(py, &self.core.layers)
    }

    /// Peaks of each phase of each step.
    #[getter]
    fn phases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_form(py, &self.core.phases)
    }

    /// The out-of-memory that stops the run, if it does not fit.
    #[getter]
    fn out_of_memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_form(py, &self.core.out_of_memory)
    }

    /// The whole report as plain Python data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        python_form(py, &self.core)
    }

    /// The report as JSON.
    fn to_json(&self) -> PyResult<String> {
        json(&self.core)
    }

    /// The report as text, a table for people.
    fn __str__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("gpumem.render")?.call_method1("report_text", (slf,))
    }

    fn __repr__(&self) -> String {
        let core = &self.core;
        let fits = core.fits.map_or("None", |fits| if fits { "True" } else { "False" });
        format!(
            "Report(model={:?}, batch={}, allocated_peak={}, reserved_peak={}, fits={fits})",
            core.model, core.batch, core.allocated_peak.likely, core.reserved_peak.likely
        )
    }

    /// Read the JSON form; what unpickling calls.
    #[staticmethod]
    #[pyo3(signature = (text, /))]
    fn from_json(text: &str) -> PyResult<Self> {
        let read: Result<report::Report, _> = serde_json::from_str(text);
        let damaged =
            |error: serde_json::Error| SpecError::new_err((format!("damaged report: {error}"), String::new()));
        read.map(Self::from).map_err(damaged)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.py().get_type::<Self>().getattr("from_json")?, (slf.get().to_json()?,)))
    }
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

fn python_form<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json(value)?,))
}
