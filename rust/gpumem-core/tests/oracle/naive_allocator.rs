//! The slow obvious allocator: default settings, one flat list of blocks, every rule a scan over it. Shares no code
//! with the crate.

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) segment: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) small: bool,
    pub(crate) taken: bool,
}

/// Blocks by address; ascending addresses that are never reused.
#[derive(Debug)]
pub(crate) struct NaiveAllocator {
    pub(crate) blocks: Vec<Block>,
    next_segment: u64,
    capacity: u64,
}

impl NaiveAllocator {
    pub(crate) fn new(first_segment: u64, capacity: u64) -> Self {
        Self { blocks: Vec::new(), next_segment: first_segment, capacity }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.blocks.iter().map(|block| block.size).sum()
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.blocks.iter().filter(|block| block.taken).map(|block| block.size).sum()
    }

    /// Address of the new block, or `None` when out of memory.
    pub(crate) fn alloc(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        let size = bytes.div_ceil(512) * 512;
        let small = size <= MIB;
        let fits =
            |block: &&Block| !block.taken && block.stream == stream && block.small == small && block.size >= size;
        let best = self.blocks.iter().filter(fits).min_by_key(|block| (block.size, block.address)).copied();
        let block = match best {
            Some(block) => block,
            None => self.new_segment(size, small, stream)?,
        };
        let at = self.blocks.iter().position(|other| other.address == block.address).unwrap();
        let rest = block.size - size;
        let split = if small { rest >= 512 } else { rest > MIB };
        if split {
            self.blocks[at].size = size;
            self.blocks.insert(at + 1, Block { address: block.address + size, size: rest, ..block });
        }
        self.blocks[at].taken = true;
        Some(block.address)
    }

    fn new_segment(&mut self, size: u64, small: bool, stream: u64) -> Option<Block> {
        let bytes = match size {
            _ if small => 2 * MIB,
            _ if size < 10 * MIB => 20 * MIB,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        };
        if self.reserved() + bytes > self.capacity {
            self.empty_cache();
        }
        if self.reserved() + bytes > self.capacity {
            return None;
        }
        let address = self.next_segment;
        self.next_segment += bytes;
        let block = Block { segment: address, address, size: bytes, stream, small, taken: false };
        self.blocks.push(block);
        Some(block)
    }

    pub(crate) fn free(&mut self, address: u64) {
        let mut at = self.blocks.iter().position(|block| block.address == address).unwrap();
        self.blocks[at].taken = false;
        if at > 0 && self.mergeable(at - 1) {
            at -= 1;
            self.merge(at);
        }
        if self.mergeable(at) {
            self.merge(at);
        }
    }

    /// Whether a block and the one after it are free and in the same segment.
    fn mergeable(&self, at: usize) -> bool {
        let [first, second] = [self.blocks.get(at), self.blocks.get(at + 1)];
        first
            .zip(second)
            .is_some_and(|(first, second)| !first.taken && !second.taken && first.segment == second.segment)
    }

    fn merge(&mut self, at: usize) {
        self.blocks[at].size += self.blocks[at + 1].size;
        self.blocks.remove(at + 1);
    }

    pub(crate) fn empty_cache(&mut self) {
        let blocks = self.blocks.clone();
        let alone = |block: &Block| blocks.iter().filter(|other| other.segment == block.segment).count() == 1;
        self.blocks.retain(|block| block.taken || !alone(block));
    }
}
