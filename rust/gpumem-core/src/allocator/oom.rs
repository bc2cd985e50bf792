//! Out of memory: what was asked, what was left, and `PyTorch`'s words for it.

use std::fmt;

use thiserror::Error;

use crate::units::{GIB, KIB, MIB};

/// The end of the message (torch 2.11 and later, facts/allocator.md section 13). Left out when expandable segments
/// are on already (measured on torch 2.14.1).
const ADVICE: &str = " If reserved but unallocated memory is large try setting \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  \
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";

/// Why a request could not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomKind {
    /// The driver (or the memory fraction) refused even after the cache was released.
    Exhausted,
    /// Refused before the driver was asked (`throw_on_cudamalloc_oom`).
    Rejected,
    /// 2^60 bytes or more were requested.
    TooLarge,
}

/// A request that could not be served, with the state it met. All figures are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub struct OutOfMemory {
    /// Why.
    pub kind: OomKind,
    /// What the program asked for.
    pub requested_bytes: u64,
    /// The segment that was asked of the driver: the figure `PyTorch` reports.
    pub segment_bytes: u64,
    /// `allocated_bytes` of the device.
    pub allocated_bytes: u64,
    /// `reserved_bytes` of the device.
    pub reserved_bytes: u64,
    /// Free blocks held by private pools.
    pub private_pool_free_bytes: u64,
    /// What the driver still had after everything releasable was released.
    pub free_bytes: u64,
    /// Total memory of the device.
    pub total_bytes: u64,
    /// The limit a memory fraction set, if any.
    pub limit_bytes: Option<u64>,
    /// Whether expandable segments were on; otherwise the message recommends them.
    pub expandable_segments: bool,
}

impl OutOfMemory {
    /// The text of `torch.OutOfMemoryError` in torch 2.14 (facts/allocator.md section 13) for GPU `device`;
    /// `process_bytes` is the figure NVML reports for this process, where it is known.
    #[must_use]
    pub fn message(&self, device: u32, process_bytes: Option<u64>) -> String {
        match self.kind {
            OomKind::TooLarge => "CUDA out of memory. Tried to allocate more than 1EB memory.".to_owned(),
            OomKind::Rejected => format!(
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {}",
                Size(self.requested_bytes)
            ),
            OomKind::Exhausted => self.exhausted(device, process_bytes),
        }
    }

    fn exhausted(&self, device: u32, process_bytes: Option<u64>) -> String {
        let private = self.private_pool_free_bytes;
        let allocated = self.allocated_bytes + private;
        let process = process_bytes.map_or_else(String::new, |bytes| {
            format!("Including non-PyTorch memory, this process has {} memory in use. ", Size(bytes))
        });
        let allowed = self.limit_bytes.map_or_else(String::new, |bytes| format!("{} allowed; ", Size(bytes)));
        let pools = if private > 0 {
            format!("with {} allocated in private pools (e.g., CUDA Graphs), ", Size(private))
        } else {
            String::new()
        };
        let advice = if self.expandable_segments { "" } else { ADVICE };
        format!(
            "CUDA out of memory. Tried to allocate {}. GPU {device} has a total capacity of {} of which {} is free. \
             {process}{allowed}Of the allocated memory {} is allocated by PyTorch, {pools}and {} is reserved by PyTorch \
             but unallocated.{advice}",
            Size(self.segment_bytes),
            Size(self.total_bytes),
            Size(self.free_bytes),
            Size(allocated),
            Size(self.reserved_bytes.saturating_sub(allocated)),
        )
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(0, None))
    }
}

/// A size as `PyTorch`'s `format_size` prints it: a unit is used up to and including its successor.
struct Size(u64);

impl fmt::Display for Size {
    #[expect(clippy::cast_precision_loss, reason = "PyTorch prints a double with two decimals")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let (unit_bytes, unit) = if bytes <= KIB {
            return write!(f, "{bytes} bytes");
        } else if bytes <= MIB {
            (KIB, "KiB")
        } else if bytes <= GIB {
            (MIB, "MiB")
        } else {
            (GIB, "GiB")
        };
        write!(f, "{:.2} {unit}", bytes as f64 / unit_bytes as f64)
    }
}
