//! `RegionSpace` in Python.

use gpumem_core::assemble::{Trace, assemble};
use gpumem_core::poly::Poly;
use gpumem_core::regions::{ChainWay, OpCost, RegionSpace as CoreSpace, RegionTrace, Segment, Variant};
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

/// A way to run a region or segment: first region, variant, regions, left bytes, extra bytes, picoseconds.
type Way = (usize, usize, usize, u64, u64, u64);

/// One variant as extraction gives it: structure, traces by batch, borders, touches, kernel calls by batch, segments.
type VariantArguments =
    (StructureArguments, Vec<TraceArguments>, Vec<(usize, u32)>, Vec<(usize, u32, usize)>, Costs, Vec<(usize, usize)>);

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
        "host" => Ok(Unit::Host),
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
    let (structure_arguments, trace_arguments, borders, touches, by_batch, segments) = arguments;
    let traced: Vec<Trace> = traces(trace_arguments);
    let batches: Vec<u64> = traced.iter().map(|trace| trace.batch).collect();
    let spec = assemble(structure(structure_arguments)?, &traced).map_err(to_python)?;
    let costs = costs(&batches, &by_batch)?;
    Variant::cut(spec, RegionTrace { borders, touches, costs, segments }).map_err(to_python)
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
    fn recompute_ps(&self, py: Python<'_>, choice: Vec<usize>, batch: Batch, gpu: Option<&str>) -> PyResult<u64> {
        let question = setting(py, self.core.about(), gpu, None, None, None, None, true, false, "rules")?;
        question.answer(py, |setting| self.core.recompute_ps(&choice, batch.0, setting))
    }

    /// The plan with the least recomputation that fits, or None.
    #[pyo3(signature = (batch, *, plays=None, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false, conv_workspaces="auto"))]
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
        conv_workspaces: &str,
    ) -> PyResult<Option<Found>> {
        let question = setting(
            py,
            self.core.about(),
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            true,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        let found = question.answer(py, |setting| self.core.cheapest_plan(batch.0, setting, plays))?;
        Ok(found.map(|plan| (plan.choice, plan.step_ps, plan.recompute_ps, plan.recompute_lower_bound_ps, plan.played)))
    }

    /// Per place in forward order the ways to run it, as `(first region, variant, regions, left bytes, extra bytes,
    /// picoseconds)`, and the bytes of the chain's tail.
    #[pyo3(signature = (batch, /, *, gpu=None))]
    fn chain_ways(&self, py: Python<'_>, batch: Batch, gpu: Option<&str>) -> PyResult<(Vec<Vec<Way>>, u64)> {
        let question = setting(py, self.core.about(), gpu, None, None, None, None, true, false, "rules")?;
        let (ways, tail_bytes) = question.answer(py, |setting| self.core.chain_ways(batch.0, setting))?;
        let way = |way: ChainWay| {
            let option = way.option;
            (way.region, way.variant, option.span, option.left_bytes, option.extra_bytes, option.cost)
        };
        Ok((ways.into_iter().map(|ways| ways.into_iter().map(way).collect()).collect(), tail_bytes))
    }

    /// Sets of candidate segments `(first region, regions)` that the best plans have at some budget, by index.
    #[pyo3(signature = (candidates, whole, most, batch, /, *, gpu=None))]
    fn wanted_segments(
        &self,
        py: Python<'_>,
        candidates: Vec<(usize, usize)>,
        whole: usize,
        most: usize,
        batch: Batch,
        gpu: Option<&str>,
    ) -> PyResult<Vec<Vec<usize>>> {
        let question = setting(py, self.core.about(), gpu, None, None, None, None, true, false, "rules")?;
        let candidates: Vec<Segment> = candidates.into_iter().map(|(first, count)| Segment { first, count }).collect();
        question.answer(py, |setting| self.core.wanted_segments(&candidates, whole, most, batch.0, setting))
    }

    /// Plans of which none needs fewer bytes and recomputes no more than another: choice, reserved bytes, picoseconds of
    /// recomputation; and the picoseconds of the step without.
    #[pyo3(signature = (batch, *, points, gpu=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false, conv_workspaces="auto"))]
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
        conv_workspaces: &str,
    ) -> PyResult<(Vec<FrontPlan>, u64)> {
        let question = setting(
            py,
            self.core.about(),
            gpu,
            None,
            stack,
            context,
            alloc_conf,
            true,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        let (plans, step_ps) = question.answer(py, |setting| self.core.pareto_front(batch.0, setting, points))?;
        Ok((plans.into_iter().map(|plan| (plan.choice, plan.reserved_bytes, plan.recompute_ps)).collect(), step_ps))
    }

    /// Bytes and time of many plans at many batch sizes, convolutions by the rules; `choices` is one byte for each region of each plan.
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
        let question = setting(py, self.core.about(), gpu, None, stack, None, None, true, cudnn_benchmark, "rules")?;
        let batches: Vec<u64> = batches.into_iter().map(|batch| batch.0).collect();
        let regions = self.core.paths().len().max(1);
        let choices: Vec<Vec<usize>> =
            choices.chunks(regions).map(|choice| choice.iter().map(|&variant| variant.into()).collect()).collect();
        let table = question.answer(py, |setting| self.core.plan_table(&choices, &batches, setting, threads))?;
        let bytes = |column: Vec<u64>| {
            let bytes: Vec<u8> = column.into_iter().flat_map(u64::to_ne_bytes).collect();
            PyBytes::new(py, &bytes)
        };
        Ok([table.requested_bytes, table.least_reserved_bytes, table.recompute_ps, table.step_ps].map(bytes))
    }

    /// The largest batch for which some plan fits.
    #[pyo3(signature = (*, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false, conv_workspaces="auto"))]
    fn max_batch(
        &self,
        py: Python<'_>,
        gpu: Option<&str>,
        budget: Option<Bytes>,
        stack: Option<&str>,
        context: Option<Context>,
        alloc_conf: Option<&str>,
        cudnn_benchmark: bool,
        conv_workspaces: &str,
    ) -> PyResult<u64> {
        let question = setting(
            py,
            self.core.about(),
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            true,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        question.answer(py, |setting| self.core.max_batch(setting))
    }

    /// Device bytes of the plan with the least peak, upper end.
    #[pyo3(signature = (batch, *, gpu=None, budget=None, stack=None, context=None, alloc_conf=None, cudnn_benchmark=false, conv_workspaces="auto"))]
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
        conv_workspaces: &str,
    ) -> PyResult<u64> {
        let question = setting(
            py,
            self.core.about(),
            gpu,
            budget,
            stack,
            context,
            alloc_conf,
            true,
            cudnn_benchmark,
            conv_workspaces,
        )?;
        question.answer(py, |setting| self.core.smallest_bytes(batch.0, setting))
    }
}
