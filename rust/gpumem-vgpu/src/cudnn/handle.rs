//! cuDNN handles, each with its stream.

use std::ffi::c_char;

use super::CUDNN;
use crate::arguments::{Out, OutText};
use crate::entry::entry_points;
use crate::handles::{Handle, Registry};

/// Stream of each handle.
static HANDLES: Registry<Handle> = Registry::new();

entry_points! { CUDNN;

fn cudnnCreate(handle: Out<Handle>) {
    handle.set(HANDLES.add(0))
}

fn cudnnDestroy(handle: Handle) {
    HANDLES.remove(handle).map(|_| ())
}

fn cudnnSetStream(handle: Handle, stream: Handle) {
    HANDLES.replace(handle, stream)
}

fn cudnnGetStream(handle: Handle, stream: Out<Handle>) {
    stream.set(HANDLES.get(handle)?)
}

}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetLastErrorString(message: *mut c_char, room: usize) {
    // SAFETY: `OutText` is a transparent wrapper of a pointer, which may be null.
    let message = unsafe { std::mem::transmute::<*mut c_char, OutText>(message) };
    // A caller without room for the text goes without it.
    let _ = message.set("", room);
}
