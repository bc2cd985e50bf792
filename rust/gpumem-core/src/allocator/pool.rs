//! Pools: the two default ones and the two of every private pool.

use std::collections::BTreeSet;

use super::block::{Block, StreamId};
use super::free_set::{Entry, FreeSet};

/// Index of the default pool for blocks of at most 1 MiB.
pub(super) const SMALL_POOL: u32 = 0;
/// Index of the default pool for larger blocks.
pub(super) const LARGE_POOL: u32 = 1;

/// The cached blocks of one size class of one owner.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) free: FreeSet,
    /// Address space of expandable ranges without memory, by stream and address; the last field is the block.
    pub(super) unmapped: BTreeSet<(StreamId, u64, u32)>,
    pub(super) is_small: bool,
    /// Blocks are handed out whole.
    pub(super) no_split: bool,
    /// Index of the owning private pool.
    pub(super) owner: Option<usize>,
    /// Searches counted while garbage collection is on; a block's age is counted in them.
    pub(super) searches: u64,
}

impl Pool {
    pub(super) fn new(is_small: bool, owner: Option<usize>) -> Self {
        Self { free: FreeSet::default(), unmapped: BTreeSet::new(), is_small, no_split: false, owner, searches: 0 }
    }

    /// Puts a free block into the set, with age zero.
    #[inline]
    pub(super) fn insert(&mut self, index: u32, block: &mut Block) {
        block.inserted_at = self.searches;
        self.free.insert(block.stream, Entry { size: block.size, order: block.order, block: index });
    }

    #[inline]
    pub(super) fn remove(&mut self, block: &Block) {
        self.free.remove(block.stream, block.size, block.order);
    }

    pub(super) fn insert_unmapped(&mut self, index: u32, block: &Block) {
        self.unmapped.insert((block.stream, block.address, index));
    }

    pub(super) fn remove_unmapped(&mut self, index: u32, block: &Block) {
        self.unmapped.remove(&(block.stream, block.address, index));
    }
}
