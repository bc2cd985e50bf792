//! `ModelSpec` in Python.

use gpumem_core::assemble::{Structure, Trace, assemble};
use gpumem_core::spec::{About, Batches, Category, ModelSpec as CoreSpec, Origin, Phase};
use gpumem_core::timeline::Action;
use gpumem_core::{grid, report, search};
use pyo3::prelude::*;

use crate::cudnn::answer_all;
use crate::errors::{SpecError, to_python};
use crate::grid::{Columns, TargetArguments, columns};
use crate::report::Report;
use crate::setting::{Batch, Bytes, Context, setting};

/// What does not change with the batch, as extraction gives it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct StructureArguments {
    about: String,
    ops: Vec<String>,
    layers: Vec<(String, String)>,
    origins: Vec<(u32, u32, usize)>,
    categories: Vec<(usize, String)>,
    formulas: Vec<(String, u32, u32, usize)>,
}

pub(crate) type TraceArguments = (u64, Vec<u64>, Vec<i64>, Vec<Vec<i64>>, Vec<(i64, i64)>);

/// A traced loop, ready for any number of what-ifs.
#[pyclass(frozen, eq, module = "gpumem._core")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelSpec {
    core: CoreSpec,
}

type TimelineRow = (u8, u32, u64, u32, u32, u8, u64, u64, u64);

fn timeline_row(row: report::TimelineRow) -> TimelineRow {
    let (kind, number) = match row.action {
        Action::Alloc(request) => (0, request),
        Action::Free(request) => (1, request),
        Action::Mark(phase) => (2, phase as u32),
        Action::EmptyCache => (3, 0),
    };
    let (origin, counters) = (row.origin, row.counters);
    (
        kind,
        number,
        row.bytes,
        origin.op,
        origin.layer,
        origin.phase as u8,
        counters.requested_bytes,
        counters.allocated_bytes,
        counters.reserved_bytes,
    )
}

pub(crate) fn damaged(reason: impl Into<String>) -> PyErr {
    SpecError::new_err((format!("damaged trace: {}", reason.into()), String::new()))
}

fn origin(op: u32, layer: u32, phase: usize) -> PyResult<Origin> {
    let phase = *Phase::ALL.get(phase).ok_or_else(|| damaged("unknown phase"))?;
    Ok(Origin { op, layer, phase })
}

pub(crate) fn structure(arguments: StructureArguments) -> PyResult<Structure> {
    let about: About = serde_json::from_str(&arguments.about).map_err(|error| damaged(error.to_string()))?;
    let origins = arguments.origins.into_iter().map(|(op, layer, phase)| origin(op, layer, phase));
    let origins = origins.collect::<PyResult<Vec<_>>>()?;
    let mut categories = vec![None; origins.len()];
    for (index, name) in arguments.categories {
        let category = Category::ALL.into_iter().find(|category| category.name() == name);
        *categories.get_mut(index).ok_or_else(|| damaged("unknown allocation"))? = category;
    }
    let formulas = arguments.formulas.into_iter();
    let formulas = formulas.map(|(kind, op, layer, phase)| Ok((kind, origin(op, layer, phase)?)));
    Ok(Structure {
        about,
        ops: arguments.ops,
        layers: arguments.layers,
        origins,
        categories,
        formulas: formulas.collect::<PyResult<_>>()?,
    })
}

pub(crate) fn traces(arguments: Vec<TraceArguments>) -> Vec<Trace> {
    arguments
        .into_iter()
        .map(|(batch, events, sizes, arguments, flops)| Trace { batch, events, sizes, arguments, flops })
        .collect()
}

impl From<CoreSpec> for ModelSpec {
    fn from(core: CoreSpec) -> Self {
        Self { core }
    }
}

#[pymethods]
impl ModelSpec {
    /// Assemble traces of a few batch sizes.
    #[staticmethod]
    #[pyo3(signature = (structure_arguments, trace_arguments, /))]
    fn from_traces(structure_arguments: StructureArguments, trace_arguments: Vec<TraceArguments>) -> PyResult<Self> {
        assemble(structure(structure_arguments)?, &traces(trace_arguments)).map(|core| Self { core }).map_err(to_python)
    }

    /// Read the JSON form.
    #[staticmethod]
    #[pyo3(signature = (text, /))]
    fn from_json(text: &str) -> PyResult<Self> {
        CoreSpec::from_json(text).map(|core| Self { core }).map_err(to_python)
    }

    /// The JSON form: what is pickled, stored and shipped.
    fn to_json(&self) -> PyResult<String> {
        self.core.to_json().map_err(to_python)
    }

    /// Batch sizes that were traced.
    #[getter]
    fn traced_batches(&self) -> Vec<u64> {
        self.core.traced_batches.clone()
    }

    /// The only batch size it answers for, or None when it answers for all.
    #[getter]
    fn only_batch(&self) -> Option<u64> {
        match self.core.batches {
            Batches::Any => None,
            Batches::Only(batch) => Some(batch),
        }
    }

    /// What was traced, as JSON.
    fn about_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.core.about).map_err(|error| damaged(error.to_string()))
    }

    /// Answer one what-if.
    #[pyo3(signature = (batch, *, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, library_workspaces=true, cudnn_benchmark=false, conv_workspaces="auto"))]
    fn estimate(
        &self,
        py: Python<'_>,
        batch: Batch,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        library_workspaces: bool,
        cudnn_benchmark: bool,
        conv_workspaces: &str,
    ) -> PyResult<Report> {
        let question = setting(
            py,
            &self.core.about,
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            library_workspaces,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        question.answer(py, |setting| report::estimate(&self.core, batch.0, setting)).map(Report::from)
    }

    /// Peaks of every batch under every target, in rows: batch by batch, the targets of each in order.
    ///
    /// Returns columns of 64-bit integers, each as bytes in the machine's order (low, likely and high end of requested,
    /// allocated, reserved and device peak), what fits (1, 0, or 2 without a budget), and the rows without an answer, each
    /// with its error. With `upper_only` all ends are the upper one.
    #[pyo3(signature = (batches, targets, *, upper_only=false, threads=1))]
    fn figures<'py>(
        &self,
        py: Python<'py>,
        batches: Vec<Batch>,
        targets: Vec<TargetArguments>,
        upper_only: bool,
        threads: usize,
    ) -> PyResult<Columns<'py>> {
        let questions =
            targets.into_iter().map(|target| target.question(py, &self.core.about)).collect::<PyResult<Vec<_>>>()?;
        let batches: Vec<u64> = batches.into_iter().map(|batch| batch.0).collect();
        let answers =
            answer_all(py, &questions, |settings| grid::figures(&self.core, &batches, settings, upper_only, threads))?;
        Ok(columns(py, answers.into_iter().flatten()))
    }

    /// Whether the loop runs through at the upper end of the uncertainty.
    #[pyo3(signature = (batch, *, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, library_workspaces=true, cudnn_benchmark=false, conv_workspaces="auto"))]
    fn fits(
        &self,
        py: Python<'_>,
        batch: Batch,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        library_workspaces: bool,
        cudnn_benchmark: bool,
        conv_workspaces: &str,
    ) -> PyResult<bool> {
        let question = setting(
            py,
            &self.core.about,
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            library_workspaces,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        question.answer(py, |setting| search::fits(&self.core, batch.0, setting))
    }

    /// The largest batch that fits while the next one does not.
    #[pyo3(signature = (*, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, library_workspaces=true, cudnn_benchmark=false, conv_workspaces="auto"))]
    fn max_batch(
        &self,
        py: Python<'_>,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        library_workspaces: bool,
        cudnn_benchmark: bool,
        conv_workspaces: &str,
    ) -> PyResult<u64> {
        let question = setting(
            py,
            &self.core.about,
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            library_workspaces,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        question.answer(py, |setting| search::max_batch(&self.core, setting))
    }

    /// Every action of setup and three steps, without a limit.
    ///
    /// Rows are `(kind, number, bytes, op, layer, phase, requested, allocated, reserved)`; `kind` is 0 for a request, 1 for
    /// a free (`number` is then the request's), 2 for the begin of a phase (`number` is then the phase's), 3 where the
    /// cache is emptied.
    #[pyo3(signature = (batch, *, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, library_workspaces=true, cudnn_benchmark=false, conv_workspaces="auto"))]
    fn timeline(
        &self,
        py: Python<'_>,
        batch: Batch,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        library_workspaces: bool,
        cudnn_benchmark: bool,
        conv_workspaces: &str,
    ) -> PyResult<Vec<TimelineRow>> {
        let question = setting(
            py,
            &self.core.about,
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            library_workspaces,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        let rows = question.answer(py, |setting| report::timeline(&self.core, batch.0, setting))?;
        Ok(rows.into_iter().map(timeline_row).collect())
    }

    /// ATen overload names that `timeline` indexes.
    #[getter]
    fn ops(&self) -> Vec<String> {
        self.core.ops.clone()
    }

    /// Module paths that `timeline` indexes.
    #[getter]
    fn layer_paths(&self) -> Vec<String> {
        self.core.layers.iter().map(|layer| layer.path.clone()).collect()
    }

    fn __repr__(&self) -> String {
        let about = &self.core.about;
        format!("ModelSpec({:?}, {}, {}, {:?})", about.model, about.mode, about.precision, about.optimizer)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let constructor = slf.py().get_type::<Self>().getattr("from_json")?;
        Ok((constructor, (slf.get().to_json()?,)))
    }
}
