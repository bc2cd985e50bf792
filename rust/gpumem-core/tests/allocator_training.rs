//! A whole training run: the peaks the real allocator reported for the same events, and how long they take here.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use gpumem_core::allocator::{AllocConf, Allocator, BlockId, Driver, StreamId};

enum Event {
    Alloc(u64),
    Free(usize),
}

/// Reads the events described in tests/data/allocator/SOURCE.md.
fn events() -> Vec<Event> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/allocator/resnet50_sgd_batch64_3steps.txt");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| match line.strip_prefix('-') {
            Some(freed) => Event::Free(freed.parse().unwrap()),
            None => Event::Alloc(line.parse().unwrap()),
        })
        .collect()
}

fn run(events: &[Event], blocks: &mut Vec<BlockId>) -> Allocator {
    let mut allocator = Allocator::new(&AllocConf::default(), Driver::unlimited());
    blocks.clear();
    for event in events {
        match *event {
            Event::Alloc(bytes) => blocks.push(allocator.alloc(bytes, StreamId::default()).unwrap()),
            Event::Free(index) => allocator.free(blocks[index]),
        }
    }
    allocator
}

#[test]
fn peaks_are_those_the_real_allocator_reported() {
    let allocator = run(&events(), &mut Vec::new());
    let stats = allocator.stats();
    assert_eq!(stats.requested_bytes.all.peak, 5_779_437_712);
    assert_eq!(stats.allocated_bytes.all.peak, 5_805_236_224);
    assert_eq!(stats.reserved_bytes.all.peak, 6_622_806_016);
}

/// `cargo test --release -p gpumem-core --test allocator_training -- --ignored --nocapture`
#[test]
#[ignore = "prints a time; meaningful with --release only"]
fn nanoseconds_per_call() {
    let events = events();
    let mut blocks = Vec::new();
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = Instant::now();
        black_box(run(black_box(&events), &mut blocks));
        best = best.min(start.elapsed().as_secs_f64());
    }
    let calls = u32::try_from(events.len()).unwrap();
    println!("{calls} calls: {:.1} us, {:.1} ns per call", best * 1e6, best * 1e9 / f64::from(calls));
}
