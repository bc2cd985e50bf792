//! Blocks that other streams use: `record_stream` and the events that follow a free (facts/allocator.md section 9).

use std::collections::VecDeque;

use super::block::{BlockId, State, StreamId};
use super::caching::Allocator;

/// What is known about uses by other streams.
#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    /// Recorded uses that have no event yet.
    uses: Vec<(u32, StreamId)>,
    /// Unfinished events of each stream, oldest first, each with the block that waits for it.
    queues: Vec<(StreamId, VecDeque<u32>)>,
    /// Events do not finish by themselves while this is set.
    held: bool,
}

impl Allocator {
    /// Notes that `stream` uses the block, so that freeing it has to wait for that stream
    /// (`torch.Tensor.record_stream`). The block's own stream and [`BlockId::NULL`] are ignored.
    ///
    /// # Panics
    /// When the block is not handed out.
    pub fn record_stream(&mut self, block: BlockId, stream: StreamId) {
        if block == BlockId::NULL {
            return;
        }
        let BlockId(index) = block;
        assert!(self.blocks[index].state == State::Allocated, "stream recorded on block {index}, not handed out");
        if self.blocks[index].stream != stream && !self.events.uses.contains(&(index, stream)) {
            self.blocks[index].has_uses = true;
            self.events.uses.push((index, stream));
        }
    }

    /// Decides whether other streams have finished by the next allocation (`false`, the default) or events stay
    /// unfinished (`true`) until this is called again or the cache is released, which waits for them.
    pub fn hold_events(&mut self, held: bool) {
        self.events.held = held;
    }

    /// A block with recorded uses is freed: it stays active until their events have finished.
    #[cold]
    pub(super) fn defer_free(&mut self, index: u32) {
        let Events { uses, queues, .. } = &mut self.events;
        let block = &mut self.blocks[index];
        block.state = State::Pending;
        uses.retain(|&(user, stream)| {
            if user == index {
                block.events += 1;
                match queues.iter_mut().find(|(queued, _)| *queued == stream) {
                    Some((_, queue)) => queue.push_back(index),
                    None => queues.push((stream, VecDeque::from([index]))),
                }
            }
            user != index
        });
        block.has_uses = false;
    }

    /// Looks at events at the start of an allocation. Torch 2.14.1 does so inside `use_mem_pool` regions too
    /// (measured on its `libc10_cuda`); only a real graph capture, which is not simulated, would postpone it.
    #[inline]
    pub(super) fn process_events(&mut self) {
        if !self.events.queues.is_empty() && !self.events.held {
            self.finish_events();
        }
    }

    /// Waits for every event.
    pub(super) fn synchronize_events(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.finish_events();
    }

    #[cold]
    fn finish_events(&mut self) {
        for (_, queue) in std::mem::take(&mut self.events.queues) {
            for index in queue {
                self.blocks[index].events -= 1;
                if self.blocks[index].events == 0 {
                    self.return_block(index);
                }
            }
        }
    }
}
