//! A recorded history of `PyTorch`'s allocator, replayed.

use gpumem_core::allocator::{DriverCall, History, Layout, RecordedEvent, TieBreak};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::InputError;

/// Capacity of a device that nothing limits.
const UNLIMITED_BYTES: u64 = 1 << 50;

fn event((action, address, bytes, stream): (String, u64, u64, u64)) -> PyResult<RecordedEvent> {
    match action.as_str() {
        "alloc" => Ok(RecordedEvent::Alloc { address, bytes, stream }),
        "free_completed" => Ok(RecordedEvent::Free { address }),
        "segment_alloc" => Ok(RecordedEvent::Driver(DriverCall::Malloc { address, bytes })),
        "segment_free" => Ok(RecordedEvent::Driver(DriverCall::Free { address, bytes })),
        "oom" => Ok(RecordedEvent::OutOfMemory { bytes, stream }),
        other => Err(InputError::new_err((format!("an event '{other}' cannot be replayed"), String::new()))),
    }
}

/// Replays a history that began with an empty allocator; the result's `difference` is empty when all of it is equal.
#[pyfunction]
#[pyo3(signature = (events, last, /, *, capacity_bytes = None, ties_by_address = false))]
pub(crate) fn replay_history(
    py: Python<'_>,
    events: Vec<(String, u64, u64, u64)>,
    last: Layout,
    capacity_bytes: Option<u64>,
    ties_by_address: bool,
) -> PyResult<Bound<'_, PyDict>> {
    let events = events.into_iter().map(event).collect::<PyResult<_>>()?;
    let history = History { initial: Vec::new(), events, last };
    let ties = if ties_by_address { TieBreak::Address } else { TieBreak::SegmentAge };
    let found = py.detach(|| history.replay(capacity_bytes.unwrap_or(UNLIMITED_BYTES), ties));
    let answer = PyDict::new(py);
    match found {
        Err(error) => answer.set_item("difference", error.to_string())?,
        Ok(replayed) => {
            answer.set_item("difference", "")?;
            for (name, value) in [
                ("allocations", replayed.allocations),
                ("frees", replayed.frees),
                ("segments", replayed.segments),
                ("segment_frees", replayed.segment_frees),
                ("retries", replayed.retries),
                ("out_of_memory", replayed.out_of_memory),
                ("requested_peak_bytes", replayed.requested_peak_bytes),
                ("allocated_peak_bytes", replayed.allocated_peak_bytes),
                ("reserved_peak_bytes", replayed.reserved_peak_bytes),
            ] {
                answer.set_item(name, value)?;
            }
        }
    }
    Ok(answer)
}
