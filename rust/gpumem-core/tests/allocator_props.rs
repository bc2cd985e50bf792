//! What must hold for any stream of events, under any settings.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "oracle/naive_allocator.rs"]
mod naive_allocator;

use gpumem_core::allocator::{
    AllocConf, Allocator, BlockId, BlockState, Driver, DriverCall, PoolId, PoolStat, Segment, StreamId,
};
use naive_allocator::NaiveAllocator;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(1, 0);

#[derive(Debug, Clone, Copy)]
enum Event {
    Alloc {
        bytes: u64,
        stream: u64,
    },
    /// Frees the block at this share of the list of those handed out.
    Free(prop::sample::Index),
    RecordStream(prop::sample::Index, u64),
    HoldEvents(bool),
    EmptyCache,
    Fraction(f64),
    BeginPool,
    EndPool,
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        4 => 1..8192_u64,
        4 => 1..=MIB,
        4 => MIB..10 * MIB,
        3 => 10 * MIB..100 * MIB,
        1 => prop::sample::select(vec![512, 513, MIB, MIB + 1, 10 * MIB - 511, 10 * MIB, 20 * MIB, 20 * MIB + 1]),
    ]
}

fn allocs_and_frees() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => (bytes(), 0..3_u64).prop_map(|(bytes, stream)| Event::Alloc { bytes, stream }),
        9 => any::<prop::sample::Index>().prop_map(Event::Free),
        1 => Just(Event::EmptyCache),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => allocs_and_frees(),
        2 => (any::<prop::sample::Index>(), 0..3_u64).prop_map(|(block, stream)| Event::RecordStream(block, stream)),
        1 => any::<bool>().prop_map(Event::HoldEvents),
        1 => (0.3..1.1_f64).prop_map(Event::Fraction),
        1 => Just(Event::BeginPool),
        1 => Just(Event::EndPool),
    ]
}

fn conf() -> impl Strategy<Value = String> {
    let optional = |values: &'static [&'static str]| {
        prop::option::of(prop::sample::select(values)).prop_map(|value| value.map(str::to_owned))
    };
    (
        any::<bool>().prop_map(|on| on.then(|| "expandable_segments:True".to_owned())),
        optional(&["large_segment_size_mb:11", "large_segment_size_mb:24"]),
        optional(&["max_split_size_mb:24", "max_split_size_mb:50"]),
        optional(&["max_non_split_rounding_mb:24"]),
        optional(&["roundup_power2_divisions:2", "roundup_power2_divisions:[1:8,4:2,>:4]"]),
        optional(&["garbage_collection_threshold:0.2", "garbage_collection_threshold:0.7"]),
        optional(&["per_process_memory_fraction:0.5"]),
        optional(&["throw_on_cudamalloc_oom:True"]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| {
            [a, b, c, d, e, f, g, h].into_iter().flatten().collect::<Vec<_>>().join(",")
        })
}

/// An allocator and the blocks it handed out, with the bytes asked for.
struct Program {
    allocator: Allocator,
    live: Vec<(BlockId, u64)>,
}

impl Program {
    fn new(conf: &str, capacity: u64) -> Self {
        let conf = AllocConf::parse(conf).unwrap();
        Self { allocator: Allocator::new(&conf, Driver::new(capacity, capacity).recording()), live: Vec::new() }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Alloc { bytes, stream } => {
                if let Ok(block) = self.allocator.alloc(bytes, StreamId(stream)) {
                    assert!(self.allocator.block_bytes(block) >= bytes);
                    self.live.push((block, bytes));
                }
            }
            Event::Free(index) if !self.live.is_empty() => {
                let (block, _) = self.live.remove(index.index(self.live.len()));
                self.allocator.free(block);
            }
            Event::RecordStream(index, stream) if !self.live.is_empty() => {
                self.allocator.record_stream(self.live[index.index(self.live.len())].0, StreamId(stream));
            }
            Event::Free(_) | Event::RecordStream(..) => {}
            Event::HoldEvents(held) => self.allocator.hold_events(held),
            Event::EmptyCache => self.allocator.empty_cache(),
            Event::Fraction(fraction) => self.allocator.set_memory_fraction(fraction),
            // A second begin or end is refused, which is fine.
            Event::BeginPool => drop(self.allocator.begin_pool(POOL)),
            Event::EndPool => drop(self.allocator.end_pool(POOL)),
        }
    }

    fn free_everything(&mut self) {
        for (block, _) in std::mem::take(&mut self.live) {
            self.allocator.free(block);
        }
        self.allocator.end_pool(POOL).ok();
        while self.allocator.release_pool(POOL).is_ok() {}
        self.allocator.empty_cache();
    }
}

/// Blocks cover their segments, segments do not overlap, and no two free neighbours are left unmerged.
fn check_layout(segments: &[Segment]) {
    let mut end = 0;
    for segment in segments {
        assert!(segment.address >= end, "segments overlap");
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at);
            assert!(block.size_bytes > 0 && block.size_bytes % 512 == 0);
            at += block.size_bytes;
        }
        for pair in segment.blocks.windows(2) {
            assert!(pair.iter().any(|block| block.state != BlockState::Inactive), "free neighbours");
        }
        end = segment.address + segment.total_bytes;
        assert_eq!(at, end);
    }
}

/// Recomputes the statistics from the snapshot in the obvious way.
fn check_statistics(allocator: &Allocator) {
    let segments = allocator.snapshot();
    let total = |value: &dyn Fn(&Segment) -> u64, large: Option<bool>| -> u64 {
        segments.iter().filter(|segment| large.is_none_or(|large| segment.is_large == large)).map(value).sum()
    };
    let check = |name: &str, stat: &PoolStat, value: &dyn Fn(&Segment) -> u64| {
        assert_eq!(stat.all.current, total(value, None), "{name}");
        assert_eq!(stat.small_pool.current, total(value, Some(false)), "{name}, small");
        assert_eq!(stat.large_pool.current, total(value, Some(true)), "{name}, large");
        assert!(stat.all.peak >= stat.all.current, "{name}, peak");
    };
    let count = |segment: &Segment, state: &dyn Fn(BlockState) -> bool| {
        segment.blocks.iter().filter(|block| state(block.state)).count() as u64
    };
    let bytes = |segment: &Segment, state: &dyn Fn(BlockState) -> bool| -> u64 {
        segment.blocks.iter().filter(|block| state(block.state)).map(|block| block.size_bytes).sum()
    };
    let requested = |segment: &Segment| -> u64 {
        let active = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        active.map(|block| block.requested_bytes).sum()
    };
    let is_allocated = |state| state == BlockState::ActiveAllocated;
    let is_active = |state| state != BlockState::Inactive;
    let split = |segment: &Segment| !segment.is_expandable && segment.blocks.len() > 1;
    let stats = allocator.stats();
    check("allocation", &stats.allocation, &|segment| count(segment, &is_allocated));
    check("allocated_bytes", &stats.allocated_bytes, &|segment| bytes(segment, &is_allocated));
    check("active", &stats.active, &|segment| count(segment, &is_active));
    check("active_bytes", &stats.active_bytes, &|segment| bytes(segment, &is_active));
    check("requested_bytes", &stats.requested_bytes, &requested);
    check("reserved_bytes", &stats.reserved_bytes, &|segment| segment.total_bytes);
    check("segment", &stats.segment, &|segment| u64::from(!segment.is_expandable));
    check("inactive_split", &stats.inactive_split, &|segment| {
        if split(segment) { count(segment, &|state| !is_active(state)) } else { 0 }
    });
    check("inactive_split_bytes", &stats.inactive_split_bytes, &|segment| {
        if split(segment) { bytes(segment, &|state| !is_active(state)) } else { 0 }
    });
    let (mut taken, mut returned) = (0, 0);
    for call in allocator.driver().calls() {
        match call {
            DriverCall::Malloc { bytes, .. } | DriverCall::Map { bytes, .. } => taken += bytes,
            DriverCall::Free { bytes, .. } | DriverCall::Unmap { bytes, .. } => returned += bytes,
        }
    }
    assert_eq!(stats.reserved_bytes.all.current, taken - returned);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn invariants_hold_after_every_event(
        conf in conf(),
        capacity_mib in 40..400_u64,
        events in prop::collection::vec(any_event(), 1..200),
    ) {
        let mut program = Program::new(&conf, capacity_mib * MIB);
        for event in events {
            program.play(event);
            let allocator = &program.allocator;
            check_layout(&allocator.snapshot());
            check_statistics(allocator);
            let stats = allocator.stats();
            let asked: u64 = program.live.iter().map(|(_, bytes)| bytes).sum();
            prop_assert!(asked <= stats.allocated_bytes.all.current);
            prop_assert!(stats.requested_bytes.all.current <= stats.active_bytes.all.current);
            prop_assert!(stats.allocated_bytes.all.current <= stats.active_bytes.all.current);
            prop_assert!(stats.active_bytes.all.current <= stats.reserved_bytes.all.current);
            prop_assert!(allocator.driver().free_bytes() <= capacity_mib * MIB);
            let handed_out: Vec<u64> = program
                .live
                .iter()
                .filter(|(block, _)| *block != BlockId::NULL)
                .map(|(block, _)| allocator.address(*block))
                .collect();
            let in_snapshot = allocator.snapshot();
            let in_snapshot = in_snapshot
                .iter()
                .flat_map(|segment| &segment.blocks)
                .filter(|block| block.state == BlockState::ActiveAllocated)
                .map(|block| block.address);
            let mut handed_out = handed_out;
            handed_out.sort_unstable();
            let mut in_snapshot: Vec<u64> = in_snapshot.collect();
            in_snapshot.sort_unstable();
            prop_assert_eq!(handed_out, in_snapshot);
        }
        program.free_everything();
        let stats = program.allocator.stats();
        prop_assert_eq!(stats.active_bytes.all.current, 0);
        prop_assert_eq!(stats.requested_bytes.all.current, 0);
        prop_assert_eq!(stats.reserved_bytes.all.current, 0, "whole segments and whole granules go back");
        prop_assert_eq!(program.allocator.driver().free_bytes(), capacity_mib * MIB);
        program.allocator.reset_peaks();
        prop_assert_eq!(program.allocator.stats().reserved_bytes.all.peak, 0);
    }

    #[test]
    fn equals_the_naive_allocator(
        capacity_mib in prop_oneof![Just(1_u64 << 20), 40..400_u64],
        events in prop::collection::vec(allocs_and_frees(), 1..300),
    ) {
        // Capacity in whole driver pages, so that both agree on what still fits.
        let capacity = capacity_mib.next_multiple_of(2) * MIB;
        let mut program = Program::new("", capacity);
        let mut probe = Allocator::new(&AllocConf::default(), Driver::unlimited());
        let first = probe.alloc(1, StreamId(0)).unwrap();
        let mut naive = NaiveAllocator::new(probe.address(first), capacity);
        for event in events {
            match event {
                Event::Alloc { bytes, stream } if bytes > 0 => {
                    let ours = program.allocator.alloc(bytes, StreamId(stream)).ok();
                    let theirs = naive.alloc(bytes, stream);
                    prop_assert_eq!(ours.map(|block| program.allocator.address(block)), theirs);
                    program.live.extend(ours.map(|block| (block, bytes)));
                }
                Event::Free(index) if !program.live.is_empty() => {
                    let (block, _) = program.live.remove(index.index(program.live.len()));
                    naive.free(program.allocator.address(block));
                    program.allocator.free(block);
                }
                Event::EmptyCache => {
                    program.allocator.empty_cache();
                    naive.empty_cache();
                }
                _ => {}
            }
            prop_assert_eq!(program.allocator.stats().allocated_bytes.all.current, naive.allocated());
            prop_assert_eq!(program.allocator.stats().reserved_bytes.all.current, naive.reserved());
        }
        naive.blocks.sort_by_key(|block| block.address);
        let ours: Vec<(u64, u64, bool, bool)> = program
            .allocator
            .snapshot()
            .iter()
            .flat_map(|segment| {
                let is_taken = |state| state == BlockState::ActiveAllocated;
                segment.blocks.iter().map(move |b| (b.address, b.size_bytes, !segment.is_large, is_taken(b.state)))
            })
            .collect();
        let theirs: Vec<_> = naive.blocks.iter().map(|b| (b.address, b.size, b.small, b.taken)).collect();
        prop_assert_eq!(ours, theirs);
    }

    /// The order of events alone decides: no clock, no hash order.
    #[test]
    fn the_same_events_give_the_same_state(conf in conf(), events in prop::collection::vec(any_event(), 1..100)) {
        let run = || {
            let mut program = Program::new(&conf, 200 * MIB);
            for &event in &events {
                program.play(event);
            }
            (program.allocator.snapshot(), program.allocator.stats().clone())
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn settings_survive_their_own_text(conf in conf()) {
        let parsed = AllocConf::parse(&conf).unwrap();
        prop_assert_eq!(AllocConf::parse(&parsed.to_string()).unwrap(), parsed);
    }
}
