//! Convolution workspaces against cuDNN 9.24's own answers: layers held out of the fit, and the shared query table.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "the table of accuracies is the test's report")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use gpumem_core::target::{Gpu, Stack};
use gpumem_core::workspace::conv::{ConvCall, ConvDtype, Direction, conv_workspace};

const HELD_OUT: &str = include_str!("../../../tests/data/conv_workspaces_heldout.csv");
const THREE_DIMENSIONAL: &str = include_str!("../../../tests/data/conv3d_workspaces.csv");
const SHARED_TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/facts/conv_workspaces_cudnn924.csv");

/// A likely size counts as right within 1 %, or within the 64 KiB that plans spend on index tables.
const RIGHT_FRACTION: f64 = 0.01;
const TABLES_BYTES: f64 = 65_536.0;
/// The ends of the range must hold this share of the answers.
const BRACKETED_MIN: f64 = 0.95;
/// Per GPU: which plan cuDNN's heuristic ranks first is not fully predictable.
const BRACKETED_PER_GPU_MIN: f64 = 0.93;
const RIGHT_MIN: f64 = 0.75;

struct Point {
    gpu: String,
    call: ConvCall,
    key: String,
    measured_bytes: f64,
}

#[derive(Default)]
struct Tally {
    points: f64,
    right: f64,
    bracketed: f64,
    above_high: f64,
    relative_errors: Vec<f64>,
}

impl Tally {
    fn add(&mut self, point: &Point) {
        let gpu = Gpu::by_name(&point.gpu).unwrap();
        let bytes = conv_workspace(&point.call, gpu, &Stack::MEASURED).unwrap().bytes;
        assert!(bytes.low_bytes <= bytes.likely_bytes && bytes.likely_bytes <= bytes.high_bytes);
        let (low, likely, high) = (as_f64(bytes.low_bytes), as_f64(bytes.likely_bytes), as_f64(bytes.high_bytes));
        let tolerance = (RIGHT_FRACTION * point.measured_bytes).max(TABLES_BYTES);
        let error = (likely - point.measured_bytes).abs();
        self.points += 1.0;
        self.right += f64::from(u8::from(error <= tolerance));
        let under = point.measured_bytes > high * (1.0 + RIGHT_FRACTION);
        let over = point.measured_bytes < low * (1.0 - RIGHT_FRACTION);
        self.bracketed += f64::from(u8::from(!under && !over));
        self.above_high += f64::from(u8::from(under));
        self.relative_errors.push(error / point.measured_bytes.max(TABLES_BYTES));
    }

    fn line(&mut self) -> String {
        self.relative_errors.sort_by(f64::total_cmp);
        let median = self.relative_errors[self.relative_errors.len() / 2];
        let max = self.relative_errors.last().copied().unwrap_or_default();
        format!(
            "points {:5} right {:.3} bracketed {:.3} above high {:.3} median error {median:.3} max {max:.1}",
            self.points,
            self.right / self.points,
            self.bracketed / self.points,
            self.above_high / self.points,
        )
    }
}

fn as_f64(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 10).unwrap()) * 1024.0 + f64::from(u32::try_from(bytes & 1023).unwrap())
}

fn point(gpu: &str, direction: &str, arithmetic: &str, layout: &str, sizes: &[u64], measured: &str) -> Point {
    let &[batch, in_channels, out_channels, ref spatial @ .., groups] = sizes else { panic!("{sizes:?}") };
    let pair = |at: usize| spatial[2 * at..2 * at + 2].to_vec();
    let (input, kernel, padding, stride, dilation) = (pair(0), pair(1), pair(2), pair(3), pair(4));
    let output = (0..2)
        .map(|dim| {
            let taps = dilation[dim] * (kernel[dim] - 1) + 1;
            (input[dim] + 2 * padding[dim] - taps) / stride[dim] + 1
        })
        .collect();
    let call = ConvCall {
        direction: match direction {
            "fwd" => Direction::Fwd,
            "dgrad" => Direction::Dgrad,
            "wgrad" => Direction::Wgrad,
            other => panic!("{other}"),
        },
        dtype: match arithmetic {
            "bf16" => ConvDtype::BF16,
            "fp16" => ConvDtype::F16,
            "tf32" | "fp32" => ConvDtype::F32,
            other => panic!("{other}"),
        },
        tf32_allowed: arithmetic == "tf32",
        channels_last: layout == "NHWC",
        batch,
        in_channels,
        out_channels,
        groups,
        input,
        kernel,
        stride,
        padding,
        dilation,
        output,
        transposed: false,
    };
    let gpu = if gpu == "a100" { "a100-80gb" } else { gpu };
    let key = format!("{gpu} {arithmetic} {layout} {direction}");
    Point { gpu: gpu.to_owned(), call, key, measured_bytes: as_f64(measured.parse().unwrap()) }
}

fn held_out() -> Vec<Point> {
    HELD_OUT
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let sizes: Vec<u64> = fields[4..18].iter().map(|f| f.parse().unwrap()).collect();
            point(fields[0], fields[1], fields[2], fields[3], &sizes, fields[18])
        })
        .collect()
}

/// Columns: `gpu,dtype,layout,op,layer,N,C,H,W,K,R,S,pad,stride,groups,engine,ws_bytes,x_bytes,w_bytes,y_bytes`.
fn shared_points(text: &str) -> Vec<Point> {
    text.lines()
        .skip(1)
        .filter(|line| line.split(',').nth(16).is_some_and(|bytes| bytes.parse::<u64>().is_ok()))
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            let n = |i: usize| f[i].parse::<u64>().unwrap();
            // Every layer of the table has dilation 1.
            let sizes = [n(5), n(6), n(9), n(7), n(8), n(10), n(11), n(12), n(12), n(13), n(13), 1, 1, n(14)];
            point(f[0], f[3], f[1], f[2], &sizes, f[16])
        })
        .collect()
}

fn three_dimensional() -> Vec<Point> {
    THREE_DIMENSIONAL
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            let n: Vec<u64> = f[4..19].iter().map(|field| field.parse().unwrap()).collect();
            // Two-dimensional sizes first, then the call is widened by its first dimension.
            let flat = [n[0], n[1], n[5], n[3], n[4], n[7], n[8], n[10], n[11], n[13], n[14], 1, 1, 1];
            let mut point = point(f[0], f[1], f[2], f[3], &flat, f[19]);
            let call = &mut point.call;
            call.input.insert(0, n[2]);
            call.kernel.insert(0, n[6]);
            call.padding.insert(0, n[9]);
            call.stride.insert(0, n[12]);
            call.dilation.insert(0, 1);
            call.output.insert(0, (n[2] + 2 * n[9] - n[6]) / n[12] + 1);
            point
        })
        .collect()
}

fn report(points: &[Point]) -> (Tally, BTreeMap<String, Tally>) {
    let mut all = Tally::default();
    let mut per_gpu: BTreeMap<String, Tally> = BTreeMap::new();
    let mut per_key: BTreeMap<&str, Tally> = BTreeMap::new();
    for point in points {
        all.add(point);
        per_gpu.entry(point.gpu.clone()).or_default().add(point);
        per_key.entry(&point.key).or_default().add(point);
    }
    for (key, tally) in &mut per_key {
        println!("{key:32} {}", tally.line());
    }
    for (gpu, tally) in &mut per_gpu {
        println!("{gpu:32} {}", tally.line());
    }
    println!("{:32} {}", "all", all.line());
    (all, per_gpu)
}

fn check(points: &[Point]) {
    let (all, per_gpu) = report(points);
    assert!(all.bracketed / all.points >= BRACKETED_MIN);
    assert!(all.right / all.points >= RIGHT_MIN);
    for (gpu, tally) in per_gpu {
        assert!(tally.bracketed / tally.points >= BRACKETED_PER_GPU_MIN, "{gpu}: {}", tally.bracketed / tally.points);
    }
}

#[test]
fn held_out_layers_are_bracketed() {
    let points = held_out();
    assert!(points.len() >= 900, "only {} points", points.len());
    check(&points);
}

#[test]
fn shared_query_table_is_bracketed() {
    if !Path::new(SHARED_TABLE).exists() {
        // Written past the capture of passing tests: a skip must be seen.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {SHARED_TABLE} is not on this machine; only the committed sample was checked"
        );
        return;
    }
    let points = shared_points(&std::fs::read_to_string(SHARED_TABLE).unwrap());
    assert!(points.len() >= 5950, "only {} points", points.len());
    check(&points);
}

/// The trees were not fitted to three dimensions: only the ends are claimed.
#[test]
fn three_dimensional_layers_are_bracketed() {
    let points = three_dimensional();
    assert_eq!(points.len(), 400);
    let (all, _) = report(&points);
    assert!(all.bracketed / all.points >= BRACKETED_MIN, "{}", all.bracketed / all.points);
}

#[test]
fn a_transposed_convolution_is_the_gradient_of_the_ordinary_one() {
    let gpu = Gpu::by_name("a100").unwrap();
    let ordinary = point("a100", "dgrad", "bf16", "NCHW", &[8, 64, 128, 32, 32, 4, 4, 1, 1, 2, 2, 1, 1, 1], "0").call;
    let transposed = ConvCall {
        direction: Direction::Fwd,
        in_channels: ordinary.out_channels,
        out_channels: ordinary.in_channels,
        input: ordinary.output.clone(),
        output: ordinary.input.clone(),
        transposed: true,
        ..ordinary.clone()
    };
    let bytes = |call: &ConvCall| conv_workspace(call, gpu, &Stack::MEASURED).unwrap();
    assert_eq!(bytes(&transposed), bytes(&ordinary));
}
