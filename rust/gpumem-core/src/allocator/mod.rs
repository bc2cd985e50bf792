//! `PyTorch`'s native CUDA caching allocator, simulated byte for byte.
//!
//! The behaviour is specified in facts/allocator.md (torch 2.14.1) and was compared there with the real
//! `libc10_cuda`. Nothing here knows what a tensor or a layer is: requests for bytes on a stream go in, and
//! addresses, statistics and segments come out.
//!
//! ```
//! use gpumem_core::allocator::{AllocConf, Allocator, Driver, StreamId};
//!
//! let mut allocator = Allocator::new(&AllocConf::default(), Driver::unlimited());
//! let block = allocator.alloc(49 << 20, StreamId::default())?;
//! assert_eq!(allocator.stats().allocated_bytes.all.current, 50 << 20); // the tail is too short to split off
//! allocator.free(block);
//! assert_eq!(allocator.stats().reserved_bytes.all.current, 50 << 20);
//! # Ok::<(), gpumem_core::allocator::OutOfMemory>(())
//! ```

mod block;
mod caching;
mod conf;
mod conf_parse;
mod driver;
mod events;
mod expandable;
mod free_set;
mod oom;
mod pool;
mod private_pool;
mod release;
mod replay;
mod search;
mod size;
mod snapshot;
mod stats;

pub use block::{BlockId, StreamId};
pub use caching::Allocator;
pub use conf::AllocConf;
pub use conf_parse::ConfError;
pub use driver::{Driver, DriverCall, TieBreak};
pub use oom::{OomKind, OutOfMemory};
pub use private_pool::{PoolError, PoolId};
pub use replay::{History, Layout, RecordedEvent, ReplayError, Replayed};
pub use snapshot::{BlockState, RestoreError, Segment, SegmentBlock};
pub use stats::{PoolStat, Stat, Stats};
