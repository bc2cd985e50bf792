//! NCCL: communicators know their size and rank, collectives are kernels that are counted. Nothing is exchanged between
//! processes; where all ranks hold the same values (sizes that are compared before training), so does the result.

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use crate::arguments::{In, Out};
use crate::contents;
use crate::counts::LAUNCHES;
use crate::entry::{Failure, Library, entry_points};
use crate::handles::{Handle, Registry};
use crate::platform::platform;
use crate::runtime::current;

/// Answers with NCCL's status.
pub(crate) const NCCL: Library = Library::simple("nccl", 4, 1, 5, 3);

/// Size and rank.
type Group = (i32, i32);

static COMMUNICATORS: Registry<Group> = Registry::new();

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UniqueId([u8; 128]);

/// What the runs that are compared have: NCCL 2.27, whose interface PyTorch 2.6 to 2.14 accept.
const VERSION: i32 = 22_703;

/// More than any machine has devices.
const MOST_RANKS: i32 = 1 << 20;

fn join(communicator: Out<Handle>, ranks: i32, rank: i32) -> Result<(), Failure> {
    if rank < 0 || rank >= ranks || ranks > MOST_RANKS {
        return Err(Failure::InvalidValue);
    }
    communicator.set(COMMUNICATORS.add((ranks, rank)))
}

/// Bytes of `count` numbers of an `ncclDataType_t`.
fn bytes_of(count: usize, of: i32) -> Result<usize, Failure> {
    let item = match of {
        0 | 1 | 10 | 11 => 1, // 8-bit integers and floats
        6 | 9 => 2,           // half, bfloat16
        2 | 3 | 7 => 4,       // 32-bit integers, float
        4 | 5 | 8 => 8,       // 64-bit integers, double
        _ => return Err(Failure::InvalidValue),
    };
    count.checked_mul(item).ok_or(Failure::InvalidValue)
}

fn leave(communicator: Handle) -> Result<(), Failure> {
    COMMUNICATORS.remove(communicator).map(|_| ())
}

entry_points! { NCCL;

fn ncclGetVersion(version: Out<i32>) {
    version.set(VERSION)
}

fn ncclGetUniqueId(id: Out<UniqueId>) {
    id.set(UniqueId([0; 128]))
}

fn ncclCommInitRank(communicator: Out<Handle>, ranks: i32, _id: UniqueId, rank: i32) {
    join(communicator, ranks, rank)
}

fn ncclCommInitRankConfig(communicator: Out<Handle>, ranks: i32, _id: UniqueId, rank: i32, _config: usize) {
    join(communicator, ranks, rank)
}

fn ncclCommInitRankScalable(
    communicator: Out<Handle>,
    ranks: i32,
    rank: i32,
    _id_count: i32,
    _ids: usize,
    _config: usize,
) {
    join(communicator, ranks, rank)
}

fn ncclCommInitAll(communicators: Out<Handle>, count: i32, _devices: In<i32>) {
    if count > platform()?.visible_count()? {
        return Err(Failure::InvalidValue);
    }
    let group: Vec<Handle> = (0..count.max(0)).map(|rank| COMMUNICATORS.add((count, rank))).collect();
    communicators.set_all(&group)
}

// Who goes where is decided among the ranks, which do not talk here: the new group is taken to be the old one.
fn ncclCommSplit(communicator: Handle, color: i32, _key: i32, new: Out<Handle>, _config: usize) {
    let group = COMMUNICATORS.get(communicator)?;
    new.set(if color < 0 { 0 } else { COMMUNICATORS.add(group) })
}

fn ncclCommDestroy(communicator: Handle) {
    leave(communicator)
}

fn ncclCommAbort(communicator: Handle) {
    leave(communicator)
}

fn ncclCommCount(communicator: Handle, count: Out<i32>) {
    count.set(COMMUNICATORS.get(communicator)?.0)
}

fn ncclCommUserRank(communicator: Handle, rank: Out<i32>) {
    rank.set(COMMUNICATORS.get(communicator)?.1)
}

fn ncclCommGetAsyncError(communicator: Handle, status: Out<i32>) {
    COMMUNICATORS.get(communicator)?;
    status.set(0)
}

// In place or not, everybody has what the root has: processes of one program broadcast the same values.
fn ncclBroadcast(
    source: usize, destination: usize, count: usize, of: i32, _root: i32, communicator: Handle, _stream: usize,
) {
    COMMUNICATORS.get(communicator)?;
    contents::copy(destination, source, bytes_of(count, of)?);
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

// The older form, in place.
fn ncclBcast(_buffer: usize, _count: usize, _of: i32, _root: i32, communicator: Handle, _stream: usize) {
    COMMUNICATORS.get(communicator)?;
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

// Every rank is taken to give what this one gives.
fn ncclAllGather(source: usize, destination: usize, count: usize, of: i32, communicator: Handle, _stream: usize) {
    let (ranks, _) = COMMUNICATORS.get(communicator)?;
    let bytes = bytes_of(count, of)?;
    let copies = if contents::any() { usize::try_from(ranks).unwrap_or(0) } else { 0 };
    for rank in 0..copies {
        contents::copy(destination.saturating_add(rank.saturating_mul(bytes)), source, bytes);
    }
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn ncclMemAlloc(pointer: Out<u64>, bytes: usize) {
    let (platform, device) = current()?;
    pointer.set(platform.allocate(device, bytes as u64)?)
}

fn ncclMemFree(pointer: u64) {
    platform()?.free(pointer)
}

}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: i32) -> *const c_char {
    let text = match status {
        0 => c"no error",
        1 => c"unhandled cuda error (out of memory)",
        4 => c"invalid argument",
        5 => c"invalid usage (not provided by the virtual GPU)",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Handle) -> *const c_char {
    c"".as_ptr()
}
