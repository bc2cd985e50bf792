//! Streams, and the capture of a stream into a graph. Nothing runs, so every stream is always done.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{RUNTIME, code};
use crate::arguments::Out;
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};

/// Of compute capability 7.0 and later: priorities from 0 to -5.
pub(super) const GREATEST_PRIORITY: i32 = -5;

/// Priority of each stream.
static STREAMS: Registry<i32> = Registry::new();
static CAPTURE: Mutex<Capture> = Mutex::new(Capture { streams: Vec::new(), next: 1 });

/// Streams that record, with the number of the capture.
#[derive(Debug)]
struct Capture {
    streams: Vec<(Handle, u64)>,
    next: u64,
}

fn capture() -> MutexGuard<'static, Capture> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the capture that `stream` takes part in.
fn capture_of(stream: Handle) -> Option<u64> {
    capture().streams.iter().find(|(handle, _)| *handle == stream).map(|(_, number)| *number)
}

/// A host function that a stream calls.
type HostFunction = extern "C" fn(*mut std::ffi::c_void);
/// The same with the stream and its status.
type Callback = extern "C" fn(Handle, i32, *mut std::ffi::c_void);

fn info(stream: Handle, status: Out<i32>, number: Out<u64>) -> Result<(), Failure> {
    let found = capture_of(stream);
    number.set_if_given(found.unwrap_or(0));
    status.set(i32::from(found.is_some()))
}

entry_points! { RUNTIME;

fn cudaStreamCreateWithPriority(stream: Out<Handle>, _flags: u32, priority: i32) {
    stream.set(STREAMS.add(priority.clamp(GREATEST_PRIORITY, 0)))
}

fn cudaStreamCreateWithFlags(stream: Out<Handle>, _flags: u32) {
    stream.set(STREAMS.add(0))
}

fn cudaStreamCreate(stream: Out<Handle>) {
    stream.set(STREAMS.add(0))
}

fn cudaStreamDestroy(stream: Handle) {
    STREAMS.remove(stream).map(|_| ())
}

fn cudaStreamGetPriority(stream: Handle, priority: Out<i32>) {
    priority.set(STREAMS.get(stream).unwrap_or(0))
}

fn cudaStreamAddCallback(stream: Handle, callback: Option<Callback>, data: *mut std::ffi::c_void, _flags: u32) {
    callback.ok_or(Failure::InvalidValue)?(stream, 0, data);
    Ok(())
}

fn cudaLaunchHostFunc(_stream: Handle, function: Option<HostFunction>, data: *mut std::ffi::c_void) {
    function.ok_or(Failure::InvalidValue)?(data);
    Ok(())
}

fn cudaStreamBeginCapture(stream: Handle, _mode: i32) {
    let mut capture = capture();
    if capture.streams.iter().any(|(handle, _)| *handle == stream) {
        return Err(Failure::InvalidValue);
    }
    let number = capture.next;
    capture.next += 1;
    capture.streams.push((stream, number));
    Ok(())
}

fn cudaStreamEndCapture(stream: Handle, graph: Out<Handle>) {
    let mut capture = capture();
    let at = capture.streams.iter().position(|(handle, _)| *handle == stream).ok_or(Failure::InvalidValue)?;
    capture.streams.remove(at);
    graph.set(super::graph::new())
}

// A stream that records has run nothing that could be waited for: a program that reads a value while it captures a graph
// fails here.
fn cudaStreamSynchronize(stream: Handle) {
    if capture_of(stream).is_some() {
        return Err(Failure::Library(code::CAPTURE_UNSUPPORTED));
    }
    Ok(())
}

fn cudaStreamIsCapturing(stream: Handle, status: Out<i32>) {
    status.set(i32::from(capture_of(stream).is_some()))
}

// CUDA 13: the graph, its dependencies, their edges and their number are all empty.
fn cudaStreamGetCaptureInfo(
    stream: Handle,
    status: Out<i32>,
    number: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) {
    graph.set_if_given(0);
    dependencies.set_if_given(0);
    edges.set_if_given(0);
    count.set_if_given(0);
    info(stream, status, number)
}

// CUDA 12.
fn cudaStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<i32>,
    number: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<usize>,
    count: Out<usize>,
) {
    graph.set_if_given(0);
    dependencies.set_if_given(0);
    count.set_if_given(0);
    info(stream, status, number)
}

}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_records_from_begin_to_end() {
        let stream = STREAMS.add(0);
        assert_eq!(capture_of(stream), None);
        assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
        assert_ne!(cudaStreamBeginCapture(stream, 0), 0);
        let first = capture_of(stream);
        assert!(first.is_some() && capture_of(0).is_none());
        let mut graph: Handle = 0;
        // SAFETY: `Out` is a transparent wrapper of a pointer, here to a live value.
        let out = unsafe { std::mem::transmute::<*mut Handle, Out<Handle>>(&raw mut graph) };
        assert_eq!(cudaStreamEndCapture(stream, out), 0);
        assert!(graph != 0 && capture_of(stream).is_none());
        assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
        assert_ne!(capture_of(stream), first);
        assert_eq!((cudaStreamDestroy(stream), cudaStreamDestroy(stream)), (0, 1));
    }
}
