//! cuBLAS and cuBLASLt: every product is a kernel that is counted; the workspaces are PyTorch's own allocations.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::arguments::Out;
use crate::entry::{Library, entry_points};

/// Answers with cuBLAS's status.
pub(crate) const CUBLAS: Library = Library::simple("cublas", 7, 3, 15, 1);

/// `cublasMath_t` and `cublasPointerMode_t` as last set; PyTorch reads them to put them back.
static MATH_MODE: AtomicI32 = AtomicI32::new(0);
static POINTER_MODE: AtomicI32 = AtomicI32::new(0);

/// `cublasLtMatmulHeuristicResult_t`: an opaque algorithm, workspace, status, waves and reserved bytes: 96 in all, and
/// zeros say "an algorithm that needs no workspace".
type HeuristicResult = [u8; 96];

entry_points! { CUBLAS;

fn cublasGetMathMode(_handle: usize, mode: Out<i32>) {
    mode.set(MATH_MODE.load(Ordering::Relaxed))
}

fn cublasSetMathMode(_handle: usize, mode: i32) {
    MATH_MODE.store(mode, Ordering::Relaxed);
    Ok(())
}

fn cublasGetPointerMode_v2(_handle: usize, mode: Out<i32>) {
    mode.set(POINTER_MODE.load(Ordering::Relaxed))
}

fn cublasSetPointerMode_v2(_handle: usize, mode: i32) {
    POINTER_MODE.store(mode, Ordering::Relaxed);
    Ok(())
}

fn cublasLtMatmulAlgoGetHeuristic(
    _handle: usize,
    _operation: usize,
    _a: usize,
    _b: usize,
    _c: usize,
    _d: usize,
    _preference: usize,
    wanted: i32,
    results: Out<HeuristicResult>,
    found: Out<i32>,
) {
    if wanted < 1 {
        return found.set(0);
    }
    results.set([0; 96])?;
    found.set(1)
}

}
