//! Kernels: registered by the code that nvcc makes (`crt/host_runtime.h`), asked about, and counted instead of run.

use std::cell::Cell;

use super::{RUNTIME, current};
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::handles::Handle;

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// What `kernel<<<grid, block, shared, stream>>>` pushes and the kernel's stub pops.
#[derive(Debug, Clone, Copy)]
struct CallConfiguration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Handle,
}

thread_local! {
    static PUSHED: Cell<Option<CallConfiguration>> = const { Cell::new(None) };
}

/// What a fat binary's handle points to; never read.
static FAT_BINARY: [usize; 4] = [0; 4];

/// `cudaFuncAttributes` of CUDA 12 and 13, 144 bytes.
#[repr(C)]
struct FunctionAttributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    max_threads_per_block: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode_ca: i32,
    max_dynamic_shared_bytes: i32,
    rest: [i32; 24],
}

/// The code of a kernel is not looked at: a middling number of registers, which lets 1024 threads run on every card.
const REGISTERS: i32 = 32;
const MAX_THREADS_PER_BLOCK: i32 = 1024;

/// Version of the machine code that a card runs. PyTorch's wheels carry 8.6 and none of 8.9, and CUB accepts only what
/// it was compiled for (`facts/virtual_vs_real.md`, difference 7).
fn code_version(major: u32, minor: u32) -> i32 {
    let version = i32::try_from(major * 10 + minor).unwrap_or(0);
    if version == 89 { 86 } else { version }
}

entry_points! { RUNTIME;

fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared_bytes: usize, stream: Handle) {
    PUSHED.set(Some(CallConfiguration { grid, block, shared_bytes, stream }));
    Ok(())
}

fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<Handle>) {
    let pushed = PUSHED.take().ok_or(Failure::InvalidValue)?;
    grid.set(pushed.grid)?;
    block.set(pushed.block)?;
    shared_bytes.set(pushed.shared_bytes)?;
    stream.set(pushed.stream)
}

fn __cudaGetKernel(kernel: Out<usize>, function: usize) {
    kernel.set(function)
}

fn cudaFuncGetAttributes(attributes: Out<FunctionAttributes>, _function: usize) {
    let gpu = current()?.0.config.gpu;
    let version = code_version(gpu.capability.major, gpu.capability.minor);
    attributes.set(FunctionAttributes {
        shared_bytes: 0,
        constant_bytes: 0,
        local_bytes: 0,
        max_threads_per_block: MAX_THREADS_PER_BLOCK,
        registers: REGISTERS,
        ptx_version: version,
        binary_version: version,
        cache_mode_ca: 0,
        max_dynamic_shared_bytes: i32::try_from(gpu.shared_memory_per_block_optin_bytes).unwrap_or(i32::MAX),
        rest: [0; 24],
    })
}

fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, _function: usize, threads: i32, _shared: usize) {
    blocks.set(resident_blocks(threads)?)
}

fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<i32>,
    _function: usize,
    threads: i32,
    _shared: usize,
    _flags: u32,
) {
    blocks.set(resident_blocks(threads)?)
}

}

/// Blocks of so many threads that a multiprocessor holds, as far as threads and blocks limit them.
fn resident_blocks(threads: i32) -> Result<i32, Failure> {
    let gpu = current()?.0.config.gpu;
    let most = i32::try_from(gpu.max_blocks_per_sm).unwrap_or(i32::MAX);
    let by_threads = i32::try_from(gpu.max_threads_per_sm).unwrap_or(i32::MAX).checked_div(threads).unwrap_or(1);
    Ok(by_threads.clamp(1, most))
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: usize) -> *const usize {
    FAT_BINARY.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_binary: usize) -> u8 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ada_runs_ampere_code() {
        assert_eq!(
            [(8, 6), (8, 9), (9, 0), (12, 0)].map(|(major, minor)| code_version(major, minor)),
            [86, 86, 90, 120]
        );
    }

    #[test]
    fn resident_blocks_are_limited_by_threads_and_by_blocks() {
        assert_eq!([1, 32, 512, 1024, 4096, 0].map(resident_blocks), [Ok(16), Ok(16), Ok(3), Ok(1), Ok(1), Ok(1)]);
    }

    #[test]
    fn a_configuration_is_popped_once() {
        let dim = Dim3 { x: 1, y: 2, z: 3 };
        assert_eq!(__cudaPushCallConfiguration(dim, dim, 5, 6), 0);
        assert!(PUSHED.take().is_some_and(|pushed| pushed.grid.z == 3 && pushed.shared_bytes == 5));
        assert!(PUSHED.take().is_none());
    }
}
