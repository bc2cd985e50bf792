//! Reduction scratch against sizes measured on the virtual GPU with `tools/measure_reduce_scratch.py`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use gpumem_core::formula::reduce::{ReduceKernel, ReduceOp, reduce_scratch};
use gpumem_core::target::Gpu;

const MEASURED: &str = include_str!("../../../tests/data/reduce_scratch.csv");

/// Guards against a fixture that was cut off: cases in all, and cases that take scratch.
const CASES_MIN: usize = 900;
const SCRATCH_CASES_MIN: usize = 700;

#[derive(Debug)]
struct Case<'a> {
    gpu: &'static Gpu,
    op: &'a str,
    dtype: &'a str,
    sizes: Vec<u64>,
    strides: Vec<u64>,
    reduced: Vec<bool>,
    buffer_bytes: u64,
    semaphore_bytes: u64,
}

fn profile(name: &str) -> &'static Gpu {
    Gpu::by_name(if name == "a100" { "a100-80gb" } else { name }).unwrap()
}

fn reduce_op(op: &str) -> ReduceOp {
    match op {
        "sum" | "mean" | "nansum" | "norm" | "normp" => ReduceOp::Sum,
        "amax" => ReduceOp::Extremum,
        "any" | "all" => ReduceOp::Boolean,
        "argmax" | "max" => ReduceOp::ArgExtremum,
        "aminmax" => ReduceOp::MinMax,
        "std" | "var_mean" => ReduceOp::Welford,
        other => panic!("{other}"),
    }
}

fn itemsize(dtype: &str) -> u64 {
    match dtype {
        "f64" | "i64" => 8,
        "f32" | "i32" => 4,
        "f16" | "bf16" => 2,
        "bool" => 1,
        other => panic!("{other}"),
    }
}

fn cases() -> Vec<Case<'static>> {
    let numbers = |text: &str| text.split('x').map(|n| n.parse().unwrap()).collect();
    MEASURED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            Case {
                gpu: profile(fields[0]),
                op: fields[1],
                dtype: fields[2],
                sizes: numbers(fields[3]),
                strides: numbers(fields[4]),
                reduced: fields[5].chars().map(|c| c == '1').collect(),
                buffer_bytes: fields[6].parse().unwrap(),
                semaphore_bytes: fields[7].parse().unwrap(),
            }
        })
        .collect()
}

#[test]
fn every_measured_launch_is_reproduced() {
    let cases = cases();
    assert!(cases.len() >= CASES_MIN, "only {} cases", cases.len());
    assert!(cases.iter().filter(|case| case.semaphore_bytes > 0).count() >= SCRATCH_CASES_MIN);
    let mut wrong = Vec::new();
    for case in &cases {
        let kernel = ReduceKernel::new(reduce_op(case.op), itemsize(case.dtype));
        let scratch = reduce_scratch(kernel, &case.sizes, &case.strides, &case.reduced, case.gpu).unwrap();
        if (scratch.buffer_bytes, scratch.semaphore_bytes) != (case.buffer_bytes, case.semaphore_bytes) {
            wrong.push(format!(
                "{} {} {} {:?} {:?} {:?}: {scratch:?} measured {} {}",
                case.gpu.name,
                case.op,
                case.dtype,
                case.sizes,
                case.strides,
                case.reduced,
                case.buffer_bytes,
                case.semaphore_bytes
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
