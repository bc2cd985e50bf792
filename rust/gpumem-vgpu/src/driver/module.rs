//! Kernels compiled at run time (Triton, NVRTC): loaded, asked about, never run.

use super::DRIVER;
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};
use crate::platform::platform;

/// Modules, libraries and links; a function is known by the handle of what it was loaded from.
static CODE: Registry<()> = Registry::new();
/// What a link results in; never read.
static LINKED: [u8; 64] = [0; 64];

const MAX_THREADS_PER_BLOCK: i32 = 1024;
const REGISTERS: i32 = 32;
/// Blocks of one cluster: the portable maximum of compute capability 9.0.
const CLUSTER_BLOCKS: i32 = 8;

fn loaded(code: Out<Handle>) -> Result<(), Failure> {
    code.set(CODE.add(()))
}

fn function_attribute(value: Out<i32>, attribute: i32) -> Result<(), Failure> {
    value.set(match attribute {
        0 => MAX_THREADS_PER_BLOCK,
        4 => REGISTERS,
        _ => 0,
    })
}

fn function_in(code: Handle, function: Out<Handle>) -> Result<(), Failure> {
    CODE.get(code)?;
    function.set(code)
}

entry_points! { DRIVER;

fn cuModuleLoad(module: Out<Handle>) {
    loaded(module)
}

fn cuModuleLoadData(module: Out<Handle>) {
    loaded(module)
}

fn cuModuleLoadDataEx(module: Out<Handle>) {
    loaded(module)
}

fn cuModuleUnload(module: Handle) {
    CODE.remove(module)
}

fn cuModuleGetFunction(function: Out<Handle>, module: Handle) {
    function_in(module, function)
}

fn cuLibraryLoadData(library: Out<Handle>) {
    loaded(library)
}

fn cuLibraryLoadFromFile(library: Out<Handle>) {
    loaded(library)
}

fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle) {
    function_in(library, kernel)
}

fn cuLibraryUnload(library: Handle) {
    CODE.remove(library)
}

fn cuLinkCreate(_options: u32, _names: usize, _values: usize, link: Out<Handle>) {
    loaded(link)
}

fn cuLinkCreate_v2(_options: u32, _names: usize, _values: usize, link: Out<Handle>) {
    loaded(link)
}

fn cuLinkComplete(link: Handle, code: Out<usize>, bytes: Out<usize>) {
    CODE.get(link)?;
    code.set(LINKED.as_ptr() as usize)?;
    bytes.set_if_given(LINKED.len());
    Ok(())
}

fn cuLinkDestroy(link: Handle) {
    CODE.remove(link)
}

fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, _function: Handle) {
    function_attribute(value, attribute)
}

fn cuKernelGetAttribute(value: Out<i32>, attribute: i32, _kernel: Handle, _device: i32) {
    function_attribute(value, attribute)
}

fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, _function: Handle, threads: i32, _shared: usize) {
    let gpu = platform()?.config.gpu;
    let by_threads = i32::try_from(gpu.max_threads_per_sm).unwrap_or(i32::MAX).checked_div(threads).unwrap_or(1);
    blocks.set(by_threads.clamp(1, i32::try_from(gpu.max_blocks_per_sm).unwrap_or(i32::MAX)))
}

fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>) {
    size.set(CLUSTER_BLOCKS)
}

fn cuOccupancyMaxActiveClusters(clusters: Out<i32>) {
    clusters.set(CLUSTER_BLOCKS)
}

// A tensor map is 128 opaque bytes.
fn cuTensorMapEncodeTiled(map: Out<[u8; 128]>) {
    map.set([0; 128])
}

fn cuTensorMapEncodeIm2col(map: Out<[u8; 128]>) {
    map.set([0; 128])
}

}
