//! Blocks and the arena they live in.

use super::driver::Placed;

/// A stream, identified by its handle as an unsigned integer (0 is the default stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId(pub u64);

/// A block handed out by [`Allocator::alloc`](super::Allocator::alloc); valid until it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(super) u32);

impl BlockId {
    /// What a request for zero bytes gets: a null pointer that occupies nothing and may be freed any number of times.
    pub const NULL: Self = Self(NONE);
}

/// "No block": end of a chain, or no expandable range.
pub(super) const NONE: u32 = u32::MAX;

/// What a block is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The slot holds no block.
    Vacant,
    /// Handed out.
    Allocated,
    /// Freed, but another stream may still be using it.
    Pending,
    /// In its pool's free set.
    Free,
    /// Address space of an expandable range without memory behind it.
    Unmapped,
}

/// A run of bytes inside one segment or expandable range.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) address: u64,
    /// Place among equal free blocks; runs parallel to the address inside a segment.
    pub(super) order: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    /// Neighbours in the segment, by address.
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) pool: u32,
    /// Index of the expandable range, or [`NONE`] for a block of an ordinary segment.
    pub(super) range: u32,
    /// Events of other streams this block waits for.
    pub(super) events: u32,
    pub(super) state: State,
    /// Whether streams have been recorded that have no event yet.
    pub(super) has_uses: bool,
    /// The pool's search counter when the block entered the free set (garbage-collection age).
    pub(super) inserted_at: u64,
}

impl Block {
    /// A free block that covers a segment of its own.
    pub(super) fn new(placed: Placed, size: u64, stream: StreamId, pool: u32) -> Self {
        Self {
            address: placed.address,
            order: placed.order,
            size,
            requested: 0,
            stream,
            prev: NONE,
            next: NONE,
            pool,
            range: NONE,
            events: 0,
            state: State::Free,
            has_uses: false,
            inserted_at: 0,
        }
    }

    /// The state of a block that covers `size` bytes from `offset` on, with everything else as here.
    pub(super) fn part(&self, offset: u64, size: u64) -> Self {
        Self { address: self.address + offset, order: self.order + offset, size, ..*self }
    }

    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    pub(super) fn is_expandable(&self) -> bool {
        self.range != NONE
    }

    /// Free or without memory: its address space may serve a new allocation.
    pub(super) fn is_available(&self) -> bool {
        matches!(self.state, State::Free | State::Unmapped)
    }
}

/// All blocks, addressed by index; vacant slots are reused.
#[derive(Debug, Clone, Default)]
pub(super) struct Arena {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
}

impl std::ops::Index<u32> for Arena {
    type Output = Block;

    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Arena {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }
}

impl Arena {
    /// Puts a block into a slot.
    ///
    /// # Panics
    /// At 2^32 - 1 live blocks, more than any address space of 512-byte blocks simulated here can hold.
    pub(super) fn insert(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.blocks[index as usize] = block;
            return index;
        }
        let index = u32::try_from(self.blocks.len()).ok().filter(|&index| index != NONE);
        let index = index.expect("fewer than 2^32 - 1 blocks");
        self.blocks.push(block);
        index
    }

    /// Inserts a block and links it in between `block.prev` and `block.next`.
    #[inline]
    pub(super) fn splice(&mut self, block: Block) -> u32 {
        let (prev, next) = (block.prev, block.next);
        let index = self.insert(block);
        if prev != NONE {
            self[prev].next = index;
        }
        if next != NONE {
            self[next].prev = index;
        }
        index
    }

    /// Forgets a block without touching its neighbours.
    pub(super) fn vacate(&mut self, index: u32) {
        self[index].state = State::Vacant;
        self.vacant.push(index);
    }

    /// Makes `keep` cover its neighbour `absorbed` as well, and vacates that one.
    #[inline]
    pub(super) fn absorb(&mut self, keep: u32, absorbed: u32) {
        let Block { address, order, size, .. } = self[absorbed];
        if self[keep].prev == absorbed {
            let prev = self[absorbed].prev;
            self[keep].address = address;
            self[keep].order = order;
            self[keep].prev = prev;
            if prev != NONE {
                self[prev].next = keep;
            }
        } else {
            let next = self[absorbed].next;
            self[keep].next = next;
            if next != NONE {
                self[next].prev = keep;
            }
        }
        self[keep].size += size;
        self.vacate(absorbed);
    }

    /// The live blocks with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0..).zip(&self.blocks).filter(|(_, block)| block.state != State::Vacant)
    }
}
