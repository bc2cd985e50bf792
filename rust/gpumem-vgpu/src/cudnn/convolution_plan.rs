//! The plan that PyTorch would take for a convolution, for the estimator, which has no program to watch: the same
//! questions in the same order as `aten/src/ATen/native/cudnn/Conv_v8.cpp` (torch 2.14; benchmark mode off).
//!
//! The engines that cuDNN's instant heuristics name, best first; those whose numerical notes PyTorch does not accept are
//! left out; the first for which a plan can be built is taken. Its fallback list for convolutions that no engine of the
//! heuristics can run is not asked: such a call has no answer here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpumem_core::workspace::conv::{ConvCall, ConvDtype, Direction};

use super::device_properties;
use super::owned::{Owned, Value};
use super::planning::{
    CONFIGURATION_ENGINE, ENGINE_BEHAVIOR_NOTE, MOST_NOTES, PLAN_CONFIGURATION, RUNTIME_COMPILATION,
};
use super::real::{Cudnn, attribute_type, kind};
use crate::config::Config;
use crate::entry::Failure;

/// Attribute names of `cudnn_graph.h`.
mod name {
    pub(super) const COMPUTE_TYPE: i32 = 100;
    pub(super) const CONVOLUTION_MODE: i32 = 101;
    pub(super) const DILATIONS: i32 = 102;
    pub(super) const STRIDES: i32 = 103;
    pub(super) const POST_PADDINGS: i32 = 104;
    pub(super) const PRE_PADDINGS: i32 = 105;
    pub(super) const SPATIAL_DIMS: i32 = 106;
    pub(super) const HEURISTIC_MODE: i32 = 200;
    pub(super) const HEURISTIC_GRAPH: i32 = 201;
    pub(super) const HEURISTIC_RESULTS: i32 = 202;
    pub(super) const HEURISTIC_CARD: i32 = 204;
    pub(super) const CONFIGURATION_WORKSPACE_SIZE: i32 = 303;
    pub(super) const PLAN_WORKSPACE_SIZE: i32 = 402;
    pub(super) const PLAN_CARD: i32 = 407;
    pub(super) const GRAPH_OPERATIONS: i32 = 801;
    pub(super) const TENSOR_ALIGNMENT: i32 = 900;
    pub(super) const TENSOR_TYPE: i32 = 901;
    pub(super) const TENSOR_SIZES: i32 = 902;
    pub(super) const TENSOR_STRIDES: i32 = 903;
    pub(super) const TENSOR_ID: i32 = 906;
    pub(super) const ENGINE_NUMERICAL_NOTE: i32 = 1303;
}

/// Of an operation: descriptor kind, and the first of its attributes, which are alpha, beta, the convolution, then `w`,
/// `x`, `y` (for the weight gradient too: the header lists them in this order for all three).
const fn operation(direction: Direction) -> (i32, i32) {
    match direction {
        Direction::Fwd => (10, 700),
        Direction::Wgrad => (11, 712),
        Direction::Dgrad => (12, 706),
    }
}

/// `CUDNN_CROSS_CORRELATION`.
const CROSS_CORRELATION: i32 = 1;
/// `CUDNN_HEUR_MODE_INSTANT`.
const INSTANT: i32 = 0;
/// `CUDNN_DATA_FLOAT`, in which all types that are asked about are summed.
const FLOAT: i32 = 0;
/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE`: TF32, where the tensors are fp32.
const TENSOR_CORE: i32 = 0;
/// `CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS`, which PyTorch never accepts.
const DOWN_CONVERT_INPUTS: i32 = 1;
/// PyTorch looks up to which power of two an address is aligned, up to this; blocks are aligned to 512 bytes.
const ALIGNMENT_BYTES: i64 = 32;

/// Workspace of the plan that PyTorch would take on a card; `None` where the heuristics find none that can be built.
///
/// # Errors
/// [`Failure::InvalidValue`] for a card that is unknown, [`Failure::NotSupported`] if this process has no cuDNN that answers
/// without a device, or what cuDNN says about the call.
pub(crate) fn workspace_bytes(call: &ConvCall, gpu: &str, cuda_version: i32) -> Result<Option<i64>, Failure> {
    if call.transposed {
        // A transposed convolution is recorded as the input gradient of an ordinary one.
        return Err(Failure::InvalidValue);
    }
    let real = &*card(gpu, cuda_version)?;
    let graph = graph(real, call)?;
    let mut heuristic = Owned::new(real, kind::ENGINE_HEURISTIC)?;
    heuristic.set(name::HEURISTIC_GRAPH, &Value::Descriptors(&[&graph]))?;
    heuristic.set(name::HEURISTIC_MODE, &Value::HeuristicMode(INSTANT))?;
    heuristic.set_card(name::HEURISTIC_CARD)?;
    heuristic.finalize()?;
    for configuration in heuristic.descriptors(name::HEURISTIC_RESULTS, kind::ENGINE_CONFIGURATION)? {
        let engine = configuration.descriptor(CONFIGURATION_ENGINE, kind::ENGINE)?;
        if !is_accepted(&engine, call)? {
            continue;
        }
        let behavior = engine.notes(ENGINE_BEHAVIOR_NOTE, attribute_type::BEHAVIOR_NOTE, MOST_NOTES)?;
        if behavior.contains(&RUNTIME_COMPILATION) {
            // Its plan takes a second to build, and what it would say stands in the configuration already.
            return configuration.int64(name::CONFIGURATION_WORKSPACE_SIZE).map(Some);
        }
        let mut plan = Owned::new(real, kind::EXECUTION_PLAN)?;
        plan.set(PLAN_CONFIGURATION, &Value::Descriptors(&[&configuration]))?;
        plan.set_card(name::PLAN_CARD)?;
        if plan.finalize().is_ok() {
            return plan.int64(name::PLAN_WORKSPACE_SIZE).map(Some);
        }
    }
    Ok(None)
}

/// The real cuDNN with the description of a card, made once for each.
fn card(gpu: &str, cuda_version: i32) -> Result<Arc<Cudnn>, Failure> {
    static CARDS: Mutex<BTreeMap<(String, i32), Arc<Cudnn>>> = Mutex::new(BTreeMap::new());
    let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (gpu.to_owned(), cuda_version);
    if let Some(known) = cards.get(&key) {
        return Ok(Arc::clone(known));
    }
    let config = Config::read(|variable| match variable {
        "GPUMEM_VGPU_GPU" => Some(gpu.to_owned()),
        "GPUMEM_VGPU_CUDA_VERSION" => Some(cuda_version.to_string()),
        _ => None,
    });
    let config = config.map_err(|_| Failure::InvalidValue)?;
    let made = Arc::new(Cudnn::open(&device_properties::json(&config)).ok_or(Failure::NotSupported)?);
    cards.insert(key, Arc::clone(&made));
    Ok(made)
}

/// The graph of one operation.
fn graph<'a>(real: &'a Cudnn, call: &ConvCall) -> Result<Owned<'a>, Failure> {
    let sizes = |values: &[u64]| values.iter().map(|&value| integer(value)).collect::<Result<Vec<_>, _>>();
    let shape = |outer: u64, inner: u64, spatial: &[u64]| -> Result<Vec<i64>, Failure> {
        Ok([vec![integer(outer)?, integer(inner)?], sizes(spatial)?].concat())
    };
    let groups = call.groups.max(1);
    let x = tensor(real, 'x', call, &shape(call.batch, call.in_channels, &call.input)?)?;
    let w = tensor(real, 'w', call, &shape(call.out_channels, call.in_channels / groups, &call.kernel)?)?;
    let y = tensor(real, 'y', call, &shape(call.batch, call.out_channels, &call.output)?)?;

    let mut convolution = Owned::new(real, kind::CONVOLUTION)?;
    convolution.set(name::COMPUTE_TYPE, &Value::DataType(FLOAT))?;
    convolution.set(name::CONVOLUTION_MODE, &Value::ConvolutionMode(CROSS_CORRELATION))?;
    convolution.set(name::SPATIAL_DIMS, &Value::Int64s(&[integer(call.input.len() as u64)?]))?;
    convolution.set(name::STRIDES, &Value::Int64s(&sizes(&call.stride)?))?;
    convolution.set(name::PRE_PADDINGS, &Value::Int64s(&sizes(&call.padding)?))?;
    convolution.set(name::POST_PADDINGS, &Value::Int64s(&sizes(&call.padding)?))?;
    convolution.set(name::DILATIONS, &Value::Int64s(&sizes(&call.dilation)?))?;
    convolution.finalize()?;

    let (of, first) = operation(call.direction);
    let mut operation = Owned::new(real, of)?;
    operation.set(first, &Value::Float(1.0))?;
    operation.set(first + 1, &Value::Float(0.0))?;
    for (attribute, descriptor) in (first + 2..).zip([&convolution, &w, &x, &y]) {
        operation.set(attribute, &Value::Descriptors(&[descriptor]))?;
    }
    operation.finalize()?;

    let mut graph = Owned::new(real, kind::OPERATION_GRAPH)?;
    graph.set(name::GRAPH_OPERATIONS, &Value::Descriptors(&[&operation]))?;
    graph.finalize()?;
    Ok(graph)
}

fn integer(value: u64) -> Result<i64, Failure> {
    i64::try_from(value).map_err(|_| Failure::InvalidValue)
}

/// A tensor without gaps.
fn tensor<'a>(real: &'a Cudnn, id: char, call: &ConvCall, sizes: &[i64]) -> Result<Owned<'a>, Failure> {
    let of = match call.dtype {
        ConvDtype::F32 => FLOAT,
        ConvDtype::F16 => 2,
        ConvDtype::BF16 => 9,
    };
    let mut tensor = Owned::new(real, kind::TENSOR)?;
    tensor.set(name::TENSOR_TYPE, &Value::DataType(of))?;
    tensor.set(name::TENSOR_STRIDES, &Value::Int64s(&strides(sizes, call.channels_last)?))?;
    tensor.set(name::TENSOR_SIZES, &Value::Int64s(sizes))?;
    tensor.set(name::TENSOR_ID, &Value::Int64s(&[i64::from(u32::from(id))]))?;
    tensor.set(name::TENSOR_ALIGNMENT, &Value::Int64s(&[ALIGNMENT_BYTES]))?;
    tensor.finalize()?;
    Ok(tensor)
}

/// Strides of a tensor without gaps; channels come innermost or before the spatial dimensions.
fn strides(sizes: &[i64], channels_last: bool) -> Result<Vec<i64>, Failure> {
    let spatial = (2..sizes.len()).rev();
    let inside_out: Vec<usize> = if channels_last {
        [1].into_iter().chain(spatial).chain([0]).collect()
    } else {
        spatial.chain([1, 0]).collect()
    };
    let mut strides = vec![1; sizes.len()];
    let mut stride: i64 = 1;
    for dim in inside_out {
        strides[dim] = stride;
        stride = stride.checked_mul(sizes[dim]).ok_or(Failure::InvalidValue)?;
    }
    Ok(strides)
}

/// Whether PyTorch lets an engine's arithmetic pass (`filterEngineConfigs`, deterministic mode off).
fn is_accepted(engine: &Owned<'_>, call: &ConvCall) -> Result<bool, Failure> {
    let notes = engine.notes(name::ENGINE_NUMERICAL_NOTE, attribute_type::NUMERICAL_NOTE, MOST_NOTES)?;
    let refuses_tensor_cores = call.dtype == ConvDtype::F32 && !call.tf32_allowed;
    Ok(!notes.iter().any(|&note| note == DOWN_CONVERT_INPUTS || (note == TENSOR_CORE && refuses_tensor_cores)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_both_layouts() {
        assert_eq!(strides(&[2, 3, 5, 7], false), Ok(vec![105, 35, 7, 1]));
        assert_eq!(strides(&[2, 3, 5, 7], true), Ok(vec![105, 1, 21, 3]));
        assert_eq!(strides(&[2, 3, 4, 5, 7], true), Ok(vec![420, 1, 105, 21, 3]));
        assert_eq!(strides(&[i64::MAX, 2, 2, 2], false).map(|strides| strides.len()), Err(Failure::InvalidValue));
    }

    #[test]
    fn without_a_cudnn_there_is_no_answer() {
        let call =
            gpumem_core::formula::convolution::conv_call(&[0, 0, 1, 0, 0, 1, 2, 4, 3, 8, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1]);
        let call = call.unwrap();
        assert_eq!(workspace_bytes(&call, "t4", 13_000), Err(Failure::NotSupported));
        assert_eq!(workspace_bytes(&call, "gaudi", 13_000), Err(Failure::InvalidValue));
    }
}
