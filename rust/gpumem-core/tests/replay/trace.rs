//! Reads a recorded trace (fields: tests/data/snapshots/SOURCE.md).

use std::fs;
use std::io::Read as _;
use std::path::Path;

use gpumem_core::allocator::{BlockState, DriverCall, History, Layout, RecordedEvent as Event, Segment, SegmentBlock};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    initial_segments: Vec<(u64, u64, u64, String)>,
    initial_live_blocks: Vec<(u64, u64)>,
    trace: Vec<(String, u64, u64, u64)>,
    segments: Vec<FileSegment>,
}

#[derive(Deserialize)]
struct FileSegment {
    address: u64,
    is_expandable: bool,
    blocks: Vec<FileBlock>,
}

#[derive(Deserialize)]
struct FileBlock {
    address: u64,
    size: u64,
    state: String,
}

/// The history in a `.json` or `.json.gz` file; `None` for other files, and for traces with expandable segments,
/// whose starting state could not be rebuilt.
pub(crate) fn read(path: &Path) -> Option<History> {
    let mut text = String::new();
    match path.extension()?.to_str()? {
        "json" => text = fs::read_to_string(path).unwrap(),
        "gz" => {
            flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        }
        _ => return None,
    }
    let file: File = serde_json::from_str(&text).unwrap();
    if file.segments.iter().any(|segment| segment.is_expandable) {
        return None;
    }
    let mut last: Layout = file
        .segments
        .iter()
        .flat_map(|segment| {
            let row =
                |block: &FileBlock| (segment.address, block.address, block.size, block.state == "active_allocated");
            segment.blocks.iter().map(row)
        })
        .collect();
    last.sort_unstable();
    Some(History {
        initial: initial_segments(&file.initial_segments, &file.initial_live_blocks),
        events: file.trace.iter().filter_map(event).collect(),
        last,
    })
}

/// The least capacity that holds what was reserved, and the largest at which every attempt that made the allocator
/// release its cache fails.
pub(crate) fn capacity_bounds(history: &History) -> (u64, u64) {
    let mut reserved: u64 = history.initial.iter().map(|segment| segment.total_bytes).sum();
    let (mut low, mut high) = (reserved, 1 << 50);
    // Reserved bytes before the releases under way, unless they are the opening `empty_cache`.
    let mut before_release = None;
    let mut opening = history.opens_with_release();
    for event in &history.events {
        match *event {
            Event::Driver(DriverCall::Free { bytes, .. }) => {
                if !opening {
                    before_release.get_or_insert(reserved);
                }
                reserved -= bytes;
            }
            Event::Driver(DriverCall::Malloc { bytes, .. }) => {
                opening = false;
                if let Some(before) = before_release.take() {
                    high = high.min(before + bytes - 1);
                }
                reserved += bytes;
                low = low.max(reserved);
            }
            _ => opening = false,
        }
    }
    (low, high)
}

fn event((action, address, bytes, stream): &(String, u64, u64, u64)) -> Option<Event> {
    let (address, bytes, stream) = (*address, *bytes, *stream);
    match action.as_str() {
        "alloc" => Some(Event::Alloc { address, bytes, stream }),
        "free_completed" => Some(Event::Free { address }),
        "segment_alloc" => Some(Event::Driver(DriverCall::Malloc { address, bytes })),
        "segment_free" => Some(Event::Driver(DriverCall::Free { address, bytes })),
        // In these traces every free completes at once, and a snapshot changes nothing.
        "free_requested" | "snapshot" => None,
        other => panic!("unknown action {other}"),
    }
}

fn initial_segments(segments: &[(u64, u64, u64, String)], live: &[(u64, u64)]) -> Vec<Segment> {
    let mut live = live.to_vec();
    live.sort_unstable();
    let rebuild = |(address, total, stream, kind): &(u64, u64, u64, String)| {
        let end = address + total;
        let inside = live.iter().filter(|(block, _)| (*address..end).contains(block));
        let mut blocks = Vec::new();
        let mut at = *address;
        for &(block, size) in inside {
            blocks.extend(gap(at, block));
            blocks.push(SegmentBlock {
                address: block,
                size_bytes: size,
                requested_bytes: size,
                state: BlockState::ActiveAllocated,
            });
            at = block + size;
        }
        blocks.extend(gap(at, end));
        Segment {
            address: *address,
            total_bytes: *total,
            stream: *stream,
            is_large: kind == "large",
            is_expandable: false,
            blocks,
        }
    };
    segments.iter().map(rebuild).collect()
}

fn gap(start: u64, end: u64) -> Option<SegmentBlock> {
    (start < end).then_some(SegmentBlock {
        address: start,
        size_bytes: end - start,
        requested_bytes: 0,
        state: BlockState::Inactive,
    })
}
