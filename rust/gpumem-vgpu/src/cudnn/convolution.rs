//! The older interface to convolutions (`TORCH_CUDNN_V8_API_DISABLED=1`): one algorithm, with the stub's workspace.

use super::CUDNN;
use crate::arguments::Out;
use crate::entry::{Outcome, entry_points};
use crate::platform::platform;

/// `cudnnConvolution*AlgoPerf_t`, which is the same for all three directions.
#[repr(C)]
#[derive(Clone, Copy)]
struct Performance {
    algorithm: i32,
    status: i32,
    seconds: f32,
    memory_bytes: usize,
    determinism: i32,
    math_type: i32,
    reserved: [i32; 3],
}

fn workspace_bytes() -> Result<usize, crate::entry::Failure> {
    Ok(usize::try_from(platform()?.config.cudnn_stub_workspace_bytes).unwrap_or(usize::MAX))
}

fn one_algorithm(wanted: i32, found: Out<i32>, results: Out<Performance>) -> Outcome {
    if wanted < 1 {
        return found.set(0);
    }
    let memory_bytes = workspace_bytes()?;
    results.set(Performance {
        algorithm: 1,
        status: 0,
        seconds: 0.0,
        memory_bytes,
        determinism: 1,
        math_type: 0,
        reserved: [0; 3],
    })?;
    found.set(1)
}

entry_points! { CUDNN;

fn cudnnGetConvolutionForwardAlgorithm_v7(
    _handle: usize, _x: usize, _w: usize, _convolution: usize, _y: usize,
    wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
    _handle: usize, _w: usize, _dy: usize, _convolution: usize, _dx: usize,
    wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    _handle: usize, _x: usize, _dy: usize, _convolution: usize, _dw: usize,
    wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnFindConvolutionForwardAlgorithmEx(
    _handle: usize, _x_shape: usize, _x: usize, _w_shape: usize, _w: usize, _convolution: usize, _y_shape: usize,
    _y: usize, wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnFindConvolutionBackwardDataAlgorithmEx(
    _handle: usize, _w_shape: usize, _w: usize, _dy_shape: usize, _dy: usize, _convolution: usize, _dx_shape: usize,
    _dx: usize, wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnFindConvolutionBackwardFilterAlgorithmEx(
    _handle: usize, _x_shape: usize, _x: usize, _dy_shape: usize, _dy: usize, _convolution: usize, _dw_shape: usize,
    _dw: usize, wanted: i32, found: Out<i32>, results: Out<Performance>,
) {
    one_algorithm(wanted, found, results)
}

fn cudnnGetConvolutionForwardWorkspaceSize(
    _handle: usize, _x: usize, _w: usize, _convolution: usize, _y: usize, _algorithm: i32, bytes: Out<usize>,
) {
    bytes.set(workspace_bytes()?)
}

fn cudnnGetConvolutionBackwardDataWorkspaceSize(
    _handle: usize, _w: usize, _dy: usize, _convolution: usize, _dx: usize, _algorithm: i32, bytes: Out<usize>,
) {
    bytes.set(workspace_bytes()?)
}

fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
    _handle: usize, _x: usize, _dy: usize, _convolution: usize, _dw: usize, _algorithm: i32, bytes: Out<usize>,
) {
    bytes.set(workspace_bytes()?)
}

}
