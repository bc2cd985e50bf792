//! `RegionSpace` in Python.

use gpumem_core::assemble::{Trace, assemble};
use gpumem_core::poly::Poly;
use gpumem_core::regions::{OpCost, RegionSpace as CoreSpace, RegionTrace, Variant};
use gpumem_core::target::Unit;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::to_python;
use crate::setting::{Batch, Bytes, Context, setting};
use crate::spec::{ModelSpec, StructureArguments, TraceArguments, damaged, structure, traces};

/// One kernel call: code, FLOPs, bytes moved, arithmetic unit.
type Call = (u32, i64, i64, String);
/// Kernel calls of each traced batch.
type Costs = Vec<Vec<Call>>;
/// A plan: choice, least time of the step, of recomputation, its lower bound, plans played.
type Found = (Vec<usize>, u64, u64, u64, usize);

/// A plan of a front: choice, reserved bytes, least time of recomputation.
type FrontPlan = (Vec<usize>, u64, u64);

/// One variant as extraction gives it: structure, traces by batch, borders, touches, kernel calls by batch.
type VariantArguments = (StructureArguments, Vec<TraceArguments>, Vec<(usize, u32)>, Vec<(usize, u32, usize)>, Costs);

/// All checkpoint plans of one traced loop.
#[pyclass(frozen, eq, module = "gpumem._core")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionSpace {
    core: CoreSpace,
}

fn unit(name: &str) -> PyResult<Unit> {
    match name {
        "fp32" => Ok(Unit::Fp32),
        "tf32" => Ok(Unit::Tf32),
        "half" => Ok(Unit::Half),
        _ => Err(damaged(format!("unknown arithmetic unit '{name}'"))),
    }
}

fn costs(batches: &[u64], by_batch: &[Vec<Call>]) -> PyResult<Vec<OpCost>> {
    let first = by_batch.first().ok_or_else(|| damaged("no batch was traced"))?;
    let fit = |at: usize, value: &dyn Fn(&Call) -> i64| {
        let values: Option<Vec<i64>> = by_batch.iter().map(|calls| calls.get(at).map(value)).collect();
        let values = values.ok_or_else(|| damaged("the number of kernel calls changes with the batch"))?;
        Poly::fit(batches, &values).ok_or_else(|| damaged("the cost of a kernel is no polynomial in the batch"))
    };
    let calls = first.iter().enumerate();
    calls
        .map(|(at, (code, _, _, name))| {
            let (flops, moved_bytes) = (fit(at, &|call| call.1)?, fit(at, &|call| call.2)?);
            Ok(OpCost { code: *code, flops, moved_bytes, unit: unit(name)? })
        })
        .collect()
}

fn variant(arguments: VariantArguments) -> PyResult<Variant> {
    let (structure_arguments, trace_arguments, borders, touches, by_batch) = arguments;
    let traced: Vec<Trace> = traces(trace_arguments);
    let batches: Vec<u64> = traced.iter().map(|trace| trace.batch).collect();
    let spec = assemble(structure(structure_arguments)?, &traced).map_err(to_python)?;
    Variant::cut(spec, RegionTrace { borders, touches, costs: costs(&batches, &by_batch)? }).map_err(to_python)
}

#[pymethods]
impl RegionSpace {
    /// Assemble and match the traced variants.
    #[staticmethod]
    #[pyo3(signature = (paths, variants, /))]
    fn from_traces(paths: Vec<String>, variants: Vec<VariantArguments>) -> PyResult<Self> {
        let variants = variants.into_iter().map(variant).collect::<PyResult<Vec<_>>>()?;
        CoreSpace::new(paths, variants).map(|core| Self { core }).map_err(to_python)
    }

    /// Read the JSON form.
    #[staticmethod]
    #[pyo3(signature = (text, /))]
    fn from_json(text: &str) -> PyResult<Self> {
        CoreSpace::from_json(text).map(|core| Self { core }).map_err(to_python)
    }

    /// The JSON form: what is stored and shipped; the matching of the variants is worked out again.
    fn to_json(&self) -> PyResult<String> {
        self.core.to_json().map_err(to_python)
    }

    /// Module paths of the regions.
    #[getter]
    fn paths(&self) -> Vec<String> {
        self.core.paths().to_vec()
    }

    /// Whether `region` can run as in `variant`.
    fn is_allowed(&self, region: usize, variant: usize) -> bool {
        self.core.is_allowed(region, variant)
    }

    /// The loop in which region `i` runs as in variant `choice[i]`.
    #[expect(clippy::needless_pass_by_value, reason = "a list is extracted into a vector")]
    fn splice(&self, choice: Vec<usize>) -> PyResult<ModelSpec> {
        self.core.splice(&choice).map(ModelSpec::from).map_err(to_python)
    }

    /// Least picoseconds of recomputation under a plan.
    #[pyo3(signature = (choice, batch, *, gpu=None))]
    #[expect(clippy::needless_pass_by_value, reason = "a list is extracted into a vector")]
    fn recompute_ps(&self, choice: Vec<usize>, batch: Batch, gpu: Option<&str>) -> PyResult<u64> {
        let setting = setting(gpu, None, None, None, None, true, false)?;
        self.core.recompute_ps(&choice, batch.0, &setting).map_err(to_python)
    }

    /// The plan with the least recomputation that fits, or None.
    #[pyo3(signature = (batch, *, plays=None, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false))]
    fn cheapest_plan(
        &self,
        py: Python<'_>,
        batch: Batch,
        plays: Option<usize>,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        cudnn_benchmark: bool,
    ) -> PyResult<Option<Found>> {
        let setting = setting(gpu, budget, stack, context, alloc_conf, true, cudnn_benchmark)?;
        let found = py.detach(|| self.core.cheapest_plan(batch.0, &setting, plays)).map_err(to_python)?;
        Ok(found.map(|plan| (plan.choice, plan.step_ps, plan.recompute_ps, plan.recompute_lower_bound_ps, plan.played)))
    }

    /// Plans of which none needs fewer bytes and recomputes no more than another: choice, reserved bytes, picoseconds of
    /// recomputation; and the picoseconds of the step without.
    #[pyo3(signature = (batch, *, points, gpu=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false))]
    fn pareto_front(
        &self,
        py: Python<'_>,
        batch: Batch,
        points: usize,
        gpu: Option<&str>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        cudnn_benchmark: bool,
    ) -> PyResult<(Vec<FrontPlan>, u64)> {
        let setting = setting(gpu, None, stack, context, alloc_conf, true, cudnn_benchmark)?;
        let (plans, step_ps) = py.detach(|| self.core.pareto_front(batch.0, &setting, points)).map_err(to_python)?;
        Ok((plans.into_iter().map(|plan| (plan.choice, plan.reserved_bytes, plan.recompute_ps)).collect(), step_ps))
    }

    /// Bytes and time of many plans at many batch sizes; `choices` is one byte for each region of each plan.
    ///
    /// Returns columns of 64-bit integers as bytes in the machine's order, plan by plan: requested bytes, the least that is
    /// ever reserved, picoseconds of recomputation; then, by batch, picoseconds of the step without.
    #[pyo3(signature = (choices, batches, *, threads=1, gpu=None, stack=None, cudnn_benchmark=false))]
    fn plan_table<'py>(
        &self,
        py: Python<'py>,
        choices: &[u8],
        batches: Vec<Batch>,
        threads: usize,
        gpu: Option<&str>,
        stack: Option<&str>,
        cudnn_benchmark: bool,
    ) -> PyResult<[Bound<'py, PyBytes>; 4]> {
        let setting = setting(gpu, None, stack, None, None, true, cudnn_benchmark)?;
        let batches: Vec<u64> = batches.into_iter().map(|batch| batch.0).collect();
        let regions = self.core.paths().len().max(1);
        let choices: Vec<Vec<usize>> =
            choices.chunks(regions).map(|choice| choice.iter().map(|&variant| variant.into()).collect()).collect();
        let table = py.detach(|| self.core.plan_table(&choices, &batches, &setting, threads)).map_err(to_python)?;
        let bytes = |column: Vec<u64>| {
            let bytes: Vec<u8> = column.into_iter().flat_map(u64::to_ne_bytes).collect();
            PyBytes::new(py, &bytes)
        };
        Ok([table.requested_bytes, table.least_reserved_bytes, table.recompute_ps, table.step_ps].map(bytes))
    }

    /// The largest batch for which some plan fits.
    #[pyo3(signature = (*, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false))]
    fn max_batch(
        &self,
        py: Python<'_>,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        cudnn_benchmark: bool,
    ) -> PyResult<u64> {
        let setting = setting(gpu, budget, stack, context, alloc_conf, true, cudnn_benchmark)?;
        py.detach(|| self.core.max_batch(&setting)).map_err(to_python)
    }

    /// Device bytes of the plan with the least peak, upper end.
    #[pyo3(signature = (batch, *, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false))]
    fn smallest_bytes(
        &self,
        py: Python<'_>,
        batch: Batch,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        cudnn_benchmark: bool,
    ) -> PyResult<u64> {
        let setting = setting(gpu, budget, stack, context, alloc_conf, true, cudnn_benchmark)?;
        py.detach(|| self.core.smallest_bytes(batch.0, &setting)).map_err(to_python)
    }
}
