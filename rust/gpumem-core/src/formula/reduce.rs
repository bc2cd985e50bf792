//! Scratch of `PyTorch`'s generic CUDA reduction (`ATen/native/cuda/Reduce.cuh`): sum, mean, prod, amax, norm, var, ...
//!
//! When few outputs each gather many inputs, several blocks share one output: they leave partial results in a global
//! buffer and the last one (known by a semaphore) finishes. Whether that happens, and with how many blocks, follows from
//! the launch rule: order the dimensions as `TensorIterator` does, choose a block shape, and add blocks per output until
//! the card is full. Checked against the virtual GPU, see `tests/scratch_reduce.rs`.

use super::checked::{SizeOverflow, product};
use crate::target::Gpu;

const OP: &str = "reduction";
const WARP_SIZE: u64 = 32;
/// Threads of a block of the reduction kernel.
const MAX_THREADS: u64 = 512;
/// Inputs a thread should at least handle before more blocks per output are started.
const MIN_VALUES_PER_THREAD: u64 = 16;
/// Inputs per thread from which the work is split over blocks.
const MAX_VALUES_PER_THREAD: u64 = 256;
/// Widest vector along the outputs.
const MAX_OUTPUT_VEC: u64 = 4;
/// A semaphore is a C int.
const SEMAPHORE_BYTES: u64 = 4;

/// Families of reduction operators that share a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// `sum`, `mean`, `nansum`, `linalg_vector_norm` (measured) and `prod` (read, not measured): one number in the
    /// accumulation type.
    Sum,
    /// `amax`, `amin`: one number in the input's type.
    Extremum,
    /// `any`, `all`: one bool.
    Boolean,
    /// `argmax`, `argmin`, `max.dim`, `min.dim`: a value and a 64-bit index.
    ArgExtremum,
    /// `aminmax`: two numbers in the input's type.
    MinMax,
    /// `var`, `std`, `var_mean`: Welford's mean, second moment and two counts.
    Welford,
}

/// What of a reduction operator decides its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceKernel {
    /// Bytes of one partial result (the accumulator type, not the input's).
    acc_bytes: u64,
    /// Inputs read at once along a contiguous reduced dimension.
    input_vec: u64,
}

impl ReduceKernel {
    /// The kernel of `op` reading elements of `in_itemsize` bytes (8, 4, 2 or 1).
    ///
    /// Integer and bool sums cast their input to int64 first (a full copy, the caller's affair): pass 8 for them.
    /// 16-bit floats are accumulated in fp32.
    #[must_use]
    pub const fn new(op: ReduceOp, in_itemsize: u64) -> Self {
        let acc_itemsize = if in_itemsize < 4 { 4 } else { in_itemsize };
        // Sizes of the accumulators, each confirmed by measured buffers of several blocks per output.
        match op {
            ReduceOp::Sum => Self { acc_bytes: acc_itemsize, input_vec: 4 },
            ReduceOp::Extremum => Self { acc_bytes: in_itemsize, input_vec: 4 },
            ReduceOp::Boolean => Self { acc_bytes: 1, input_vec: 4 },
            ReduceOp::ArgExtremum => Self { acc_bytes: 16, input_vec: 4 },
            ReduceOp::MinMax => Self { acc_bytes: 2 * in_itemsize, input_vec: 4 },
            ReduceOp::Welford => Self { acc_bytes: 4 * acc_itemsize, input_vec: 2 },
        }
    }
}

impl ReduceKernel {
    /// A kernel by what decides its launch: bytes of a partial result, and inputs read at once.
    #[must_use]
    pub const fn of(acc_bytes: u64, input_vec: u64) -> Self {
        Self { acc_bytes, input_vec }
    }
}

/// Global scratch of one reduction; both are zero when one block per output is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReduceScratch {
    /// Partial results, requested first.
    pub buffer_bytes: u64,
    /// Semaphores, requested second; both are freed when the launch returns.
    pub semaphore_bytes: u64,
}

/// Scratch of reducing the dimensions marked in `reduced` of a tensor with `sizes` and `strides` (in elements).
///
/// Tensors of more than 2^31 elements are split by
/// `TensorIterator` before the launch; that is not modelled here.
///
/// # Errors
/// [`SizeOverflow`] when the buffer exceeds 64 bits.
pub fn reduce_scratch(
    kernel: ReduceKernel,
    sizes: &[u64],
    strides: &[u64],
    reduced: &[bool],
    gpu: &Gpu,
) -> Result<ReduceScratch, SizeOverflow> {
    let dims = iterator_dims(sizes, strides, reduced)?;
    if dims.iter().any(|dim| dim.size == 0) {
        return Ok(ReduceScratch::default());
    }
    Launch::new(kernel, &dims).split_over_blocks(gpu).scratch(kernel)
}

/// One dimension of the iteration; `out_stride` is 0 for reduced ones.
#[derive(Debug, Clone, Copy)]
struct Dim {
    size: u64,
    in_stride: u64,
    out_stride: u64,
}

/// `TensorIterator`'s view: reduced dimensions first, each group from the fastest to the slowest, neighbours merged.
///
/// The output is contiguous, and its strides are compared before the input's.
fn iterator_dims(sizes: &[u64], strides: &[u64], reduced: &[bool]) -> Result<Vec<Dim>, SizeOverflow> {
    // Every later product is one of neighbouring sizes, or of a size with its stride: bounded by these.
    product(OP, sizes)?;
    let mut dims = Vec::with_capacity(sizes.len());
    let mut out_stride = 1_u64;
    for ((&size, &in_stride), &is_reduced) in sizes.iter().zip(strides).zip(reduced).rev() {
        product(OP, &[size, in_stride])?;
        dims.push(Dim { size, in_stride, out_stride: if is_reduced { 0 } else { out_stride } });
        if !is_reduced {
            out_stride = product(OP, &[out_stride, size.max(1)])?;
        }
    }
    sort_dims(&mut dims);
    Ok(coalesce(dims))
}

fn sort_dims(dims: &mut [Dim]) {
    for i in 1..dims.len() {
        let mut moving = i;
        for other in (0..i).rev() {
            match order(&dims[other], &dims[moving]) {
                std::cmp::Ordering::Greater => {
                    dims.swap(other, moving);
                    moving = other;
                }
                std::cmp::Ordering::Less => break,
                std::cmp::Ordering::Equal => {}
            }
        }
    }
}

/// `Equal` means undecided: the insertion sort then looks further.
fn order(a: &Dim, b: &Dim) -> std::cmp::Ordering {
    if (a.out_stride == 0) != (b.out_stride == 0) {
        return if b.out_stride == 0 { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
    }
    for (stride_a, stride_b) in [(a.out_stride, b.out_stride), (a.in_stride, b.in_stride)] {
        if stride_a == 0 || stride_b == 0 {
            continue;
        }
        if stride_a != stride_b {
            return stride_a.cmp(&stride_b);
        }
        if a.size > b.size {
            return std::cmp::Ordering::Greater;
        }
    }
    std::cmp::Ordering::Equal
}

fn coalesce(dims: Vec<Dim>) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::with_capacity(dims.len());
    for dim in dims {
        let Some(last) = merged.last_mut() else {
            merged.push(dim);
            continue;
        };
        let adjacent = last.size * last.in_stride == dim.in_stride && last.size * last.out_stride == dim.out_stride;
        if last.size == 1 {
            *last = dim;
        } else if dim.size == 1 || adjacent {
            last.size *= dim.size;
        } else {
            merged.push(dim);
        }
    }
    merged
}

/// The kernel's launch: how inputs and outputs are spread over threads.
#[derive(Debug, Clone, Copy)]
struct Launch {
    outputs: u64,
    inputs_per_output: u64,
    block_width: u64,
    threads: u64,
    output_vec: u64,
    /// Inputs are spread over the threads of a row of the block.
    reduces_along_x: bool,
    /// Inputs are spread over the rows of the block.
    reduces_along_y: bool,
    input_step: u64,
    output_step: u64,
    blocks_per_output: u64,
}

impl Launch {
    fn new(kernel: ReduceKernel, dims: &[Dim]) -> Self {
        let reduce_dims = dims.iter().filter(|dim| dim.out_stride == 0).count();
        let inputs_per_output: u64 = dims.iter().take(reduce_dims).map(|dim| dim.size).product();
        let outputs: u64 = dims.iter().skip(reduce_dims).map(|dim| dim.size).product();
        let reduces_along_x = match (dims.first(), dims.get(reduce_dims)) {
            (Some(first), Some(output)) => reduce_dims > 0 && first.in_stride < output.in_stride,
            _ => true,
        };
        let (mut across, down) =
            if reduces_along_x { (inputs_per_output, outputs) } else { (outputs, inputs_per_output) };
        let fastest = if reduces_along_x { dims.first() } else { dims.get(reduce_dims) };
        let mut output_vec = 1;
        if fastest.is_none_or(|dim| dim.in_stride == 1) {
            if reduces_along_x && across >= kernel.input_vec && reduce_dims == 1 {
                across /= kernel.input_vec;
            } else if !reduces_along_x {
                output_vec = output_vec_size(dims, reduce_dims);
                across /= output_vec;
            }
        }
        let (block_width, block_height) = block_shape(across, down, MAX_THREADS / output_vec);
        let mut launch = Self {
            outputs,
            inputs_per_output,
            block_width,
            threads: block_width * block_height,
            output_vec,
            reduces_along_x,
            reduces_along_y: false,
            input_step: 1,
            output_step: 1,
            blocks_per_output: 1,
        };
        if reduces_along_x {
            launch.input_step *= block_width;
        } else {
            launch.output_step *= block_width;
        }
        let values = launch.values_per_thread();
        if values >= block_height * MIN_VALUES_PER_THREAD || values >= MAX_VALUES_PER_THREAD {
            launch.reduces_along_y = true;
            launch.input_step *= block_height;
        } else {
            launch.output_step *= block_height;
        }
        launch
    }

    fn values_per_thread(&self) -> u64 {
        self.inputs_per_output.div_ceil(self.input_step)
    }

    fn grid_x(&self) -> u64 {
        (self.outputs / self.output_vec).div_ceil(self.output_step)
    }

    fn split_over_blocks(mut self, gpu: &Gpu) -> Self {
        let target = u64::from(gpu.sm_count) * (u64::from(gpu.max_threads_per_sm) / self.threads);
        let values = self.values_per_thread();
        let grid = self.grid_x();
        if self.reduces_along_y && values >= MAX_VALUES_PER_THREAD && grid <= target {
            let to_fill = target.div_ceil(grid);
            let most = values.div_ceil(MIN_VALUES_PER_THREAD);
            let least = values.div_ceil(MAX_VALUES_PER_THREAD);
            self.blocks_per_output = to_fill.min(most).max(least);
        }
        self
    }

    fn scratch(&self, kernel: ReduceKernel) -> Result<ReduceScratch, SizeOverflow> {
        if self.blocks_per_output <= 1 {
            return Ok(ReduceScratch::default());
        }
        let per_thread = if self.reduces_along_x { 1 } else { self.block_width * self.output_vec };
        let buffer_bytes = product(OP, &[kernel.acc_bytes, self.outputs, self.blocks_per_output, per_thread])?;
        Ok(ReduceScratch { buffer_bytes, semaphore_bytes: product(OP, &[SEMAPHORE_BYTES, self.grid_x()])? })
    }
}

/// Widest vector that divides the fastest output dimension and every other stride (storage starts aligned).
fn output_vec_size(dims: &[Dim], reduce_dims: usize) -> u64 {
    let divides = |vec: u64| {
        dims.iter()
            .enumerate()
            .all(|(i, dim)| if i == reduce_dims { dim.size % vec == 0 } else { dim.in_stride % vec == 0 })
    };
    let mut vec = MAX_OUTPUT_VEC;
    while !divides(vec) {
        vec /= 2;
    }
    vec
}

/// Threads along the fastest dimension and across it.
fn block_shape(across: u64, down: u64, max_threads: u64) -> (u64, u64) {
    let limit = |n: u64| if n < max_threads { last_power_of_two(n) } else { max_threads };
    let (width, height) = (limit(across), limit(down));
    let height = height.min(max_threads / width.min(WARP_SIZE));
    (width.min(max_threads / height), height)
}

/// The largest power of two not above `n`; 1 for 0.
const fn last_power_of_two(n: u64) -> u64 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_f32(sizes: &[u64], strides: &[u64], reduced: &[bool]) -> Result<ReduceScratch, SizeOverflow> {
        let kernel = ReduceKernel::new(ReduceOp::Sum, 4);
        reduce_scratch(kernel, sizes, strides, reduced, Gpu::by_name("rtx3090").unwrap())
    }

    #[test]
    fn one_block_per_output_needs_no_scratch() {
        assert_eq!(sum_f32(&[8, 16], &[16, 1], &[false, true]).unwrap(), ReduceScratch::default());
        assert_eq!(sum_f32(&[0, 16], &[16, 1], &[true, false]).unwrap(), ReduceScratch::default());
        assert_eq!(sum_f32(&[], &[], &[]).unwrap(), ReduceScratch::default());
    }

    #[test]
    fn a_full_sum_of_a_large_tensor_fills_the_card() {
        // 512 threads a block, 1536 / 512 = 3 blocks on each of 82 multiprocessors.
        let scratch = sum_f32(&[1 << 24], &[1], &[true]).unwrap();
        assert_eq!(scratch, ReduceScratch { buffer_bytes: 4 * 3 * 82, semaphore_bytes: 4 });
    }

    #[test]
    fn an_output_too_large_to_count_is_an_error() {
        let huge = 1 << 40;
        assert!(sum_f32(&[huge, huge], &[huge, 1], &[false, false]).is_err());
    }
}
