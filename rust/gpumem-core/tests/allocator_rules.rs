//! The worked values of facts/allocator.md, each checked there against the real `libc10_cuda`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use gpumem_core::allocator::{
    AllocConf, Allocator, BlockId, BlockState, Driver, OomKind, PoolError, PoolId, StreamId, TieBreak,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const STREAM: StreamId = StreamId(0);

fn allocator(conf: &str) -> Allocator {
    Allocator::new(&AllocConf::parse(conf).unwrap(), Driver::unlimited())
}

fn small_device(conf: &str, capacity: u64) -> Allocator {
    Allocator::new(&AllocConf::parse(conf).unwrap(), Driver::new(capacity, capacity))
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

fn allocated(allocator: &Allocator) -> u64 {
    allocator.stats().allocated_bytes.all.current
}

/// Bytes of the block a lone request gets and of the segment it comes from.
fn lone(conf: &str, bytes: u64) -> (u64, u64) {
    let mut allocator = allocator(conf);
    let block = allocator.alloc(bytes, STREAM).unwrap();
    (allocator.block_bytes(block), reserved(&allocator))
}

#[test]
fn pool_and_segment_by_size() {
    assert_eq!(lone("", 1), (512, 2 * MIB));
    assert_eq!(lone("", 513), (1024, 2 * MIB));
    assert_eq!(lone("", 1_048_576), (1_048_576, 2 * MIB));
    assert_eq!(lone("", 1_048_577), (1_049_088, 20 * MIB));
    assert_eq!(lone("", 10_485_248), (10_485_248, 20 * MIB));
    assert_eq!(lone("", 10_485_249), (10_485_760, 10 * MIB));
    assert_eq!(lone("large_segment_size_mb:64", 1_048_577), (1_049_088, 64 * MIB));
}

#[test]
fn a_tail_of_one_mib_is_not_split_off() {
    assert_eq!(lone("", 49 * MIB), (50 * MIB, 50 * MIB));
    assert_eq!(lone("", 49 * MIB - 512), (49 * MIB - 512, 50 * MIB));
    assert_eq!(lone("expandable_segments:True", 39 * MIB), (39 * MIB, 40 * MIB));
}

#[test]
fn power_of_two_divisions() {
    let list = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
    assert_eq!(lone(list, 400_000_000).0, 400_556_032);
    assert_eq!(lone(list, 600_000_000).0, 805_306_368);
    assert_eq!(lone(list, 1_100_000_000).0, 1_342_177_280);
    assert_eq!(lone(list, 2_200_000_000).0, 2_415_919_104);
    assert_eq!(lone("roundup_power2_divisions:4", 1200 * 1024).0, 1280 * 1024);
    assert_eq!(lone("roundup_power2_divisions:4", 2048), (2048, 2 * MIB));
    assert_eq!(lone("roundup_power2_divisions:4", 2049).0, 2560);
}

#[test]
fn nothing_is_allocated_for_zero_bytes() {
    let mut allocator = allocator("");
    let block = allocator.alloc(0, STREAM).unwrap();
    assert_eq!((block, allocator.address(block), reserved(&allocator)), (BlockId::NULL, 0, 0));
    allocator.free(block);
    allocator.free(block);
    assert_eq!(allocator.stats().allocation.all.peak, 0);
}

#[test]
#[should_panic(expected = "freed but not handed out")]
fn a_double_free_is_noticed() {
    let mut allocator = allocator("");
    let block = allocator.alloc(1, STREAM).unwrap();
    allocator.free(block);
    allocator.free(block);
}

#[test]
fn an_exabyte_is_refused_at_once() {
    let error = allocator("").alloc(1 << 60, STREAM).unwrap_err();
    assert_eq!(error.kind, OomKind::TooLarge);
    assert_eq!(error.to_string(), "CUDA out of memory. Tried to allocate more than 1EB memory.");
}

#[test]
fn expandable_worked_trace() {
    let mut allocator = allocator("expandable_segments:True");
    let first = allocator.alloc(30_000_000, STREAM).unwrap();
    assert_eq!(reserved(&allocator), 41_943_040);
    let second = allocator.alloc(50_000_000, STREAM).unwrap();
    assert_eq!(reserved(&allocator), 83_886_080);
    assert_eq!(allocator.address(second), allocator.address(first) + 30_000_128);
    allocator.free(first);
    allocator.empty_cache();
    assert_eq!(reserved(&allocator), 62_914_560);
    assert_eq!(allocator.stats().segment.all.current, 0);
    assert_eq!(allocator.stats().inactive_split.all.peak, 0);
}

#[test]
fn expandable_holes_are_filled_before_the_tail_grows() {
    let mut allocator = allocator("expandable_segments:True");
    let blocks = [20, 20, 20, 20, 19].map(|mib| allocator.alloc(mib * MIB, STREAM).unwrap());
    allocator.free(blocks[2]);
    allocator.free(blocks[0]);
    // The tail of 1 MiB could grow; of the two holes, equal in size and reach, the first is used.
    let filled = [1, 20].map(|mib| allocator.alloc(mib * MIB + 512, STREAM).unwrap());
    assert_eq!(allocator.address(filled[0]), allocator.address(blocks[1]) - 20 * MIB);
    assert_eq!(allocator.address(filled[1]), allocator.address(blocks[4]) + 19 * MIB);
    assert_eq!(reserved(&allocator), 120 * MIB);
}

#[test]
fn an_expandable_range_covers_nine_eighths_of_the_device() {
    const GAP: u64 = 1 << 40; // between ranges, the simulated driver's choice
    let mut allocator = small_device("expandable_segments:True", GIB);
    let first = allocator.alloc(2 * MIB, STREAM).unwrap();
    let second = allocator.alloc(2 * MIB, StreamId(7)).unwrap();
    let range = allocator.address(second) - allocator.address(first) - GAP;
    assert_eq!(range, (GIB + GIB / 8).next_multiple_of(20 * MIB));
}

#[test]
fn equal_blocks_by_segment_age_or_by_address() {
    let reused = |tie_break| {
        let driver = Driver::unlimited().descending().with_tie_break(tie_break);
        let mut allocator = Allocator::new(&AllocConf::default(), driver);
        let blocks = [(); 3].map(|()| allocator.alloc(40 * MIB, STREAM).unwrap());
        let addresses = blocks.map(|block| allocator.address(block));
        for block in blocks {
            allocator.free(block);
        }
        let again = allocator.alloc(40 * MIB, STREAM).unwrap();
        addresses.iter().position(|&address| address == allocator.address(again)).unwrap()
    };
    assert_eq!(reused(TieBreak::SegmentAge), 0);
    assert_eq!(reused(TieBreak::Address), 2);
}

#[test]
fn streams_do_not_share_blocks() {
    let mut allocator = allocator("");
    let block = allocator.alloc(MIB, STREAM).unwrap();
    allocator.free(block);
    allocator.alloc(MIB, StreamId(7)).unwrap();
    assert_eq!(reserved(&allocator), 4 * MIB);
    allocator.alloc(MIB, STREAM).unwrap();
    assert_eq!(reserved(&allocator), 4 * MIB);
}

#[test]
fn a_recorded_stream_delays_the_return() {
    let mut allocator = allocator("");
    let block = allocator.alloc(MIB, STREAM).unwrap();
    allocator.record_stream(block, STREAM);
    allocator.record_stream(block, StreamId(7));
    allocator.hold_events(true);
    allocator.free(block);
    assert_eq!(allocator.snapshot()[0].blocks[0].state, BlockState::ActivePendingFree);
    let other = allocator.alloc(512, STREAM).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.allocated_bytes.all.current, stats.active_bytes.all.current), (512, MIB + 512));
    allocator.hold_events(false);
    allocator.alloc(512, STREAM).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 1024);
    assert_ne!(allocator.address(other), 0);
}

#[test]
fn the_cache_is_released_before_giving_up() {
    let mut allocator = small_device("", 100 * MIB);
    let cached = allocator.alloc(60 * MIB, STREAM).unwrap();
    allocator.free(cached);
    allocator.alloc(70 * MIB, STREAM).unwrap();
    assert_eq!((allocator.stats().num_alloc_retries, allocator.stats().num_ooms), (1, 0));
    let error = allocator.alloc(40 * MIB, STREAM).unwrap_err();
    assert_eq!((error.kind, error.segment_bytes, error.free_bytes), (OomKind::Exhausted, 40 * MIB, 30 * MIB));
    assert_eq!((allocator.stats().num_alloc_retries, allocator.stats().num_ooms), (2, 1));
    assert_eq!(reserved(&allocator), 70 * MIB);
}

#[test]
fn preemptive_rejection_counts_cached_memory() {
    let mut allocator = small_device("throw_on_cudamalloc_oom:True", 4500 * MIB);
    let cached = allocator.alloc(3500 * MIB, STREAM).unwrap();
    allocator.free(cached);
    let error = allocator.alloc(3600 * MIB, STREAM).unwrap_err();
    assert_eq!(error.kind, OomKind::Rejected);
    assert_eq!((allocator.stats().num_oom_rejections, allocator.stats().num_ooms), (1, 0));
    assert_eq!(reserved(&allocator), 3500 * MIB);
}

#[test]
fn a_memory_fraction_limits_reserved_memory() {
    let mut allocator = small_device("", GIB);
    allocator.set_memory_fraction(0.5);
    assert!(allocator.alloc(512 * MIB, STREAM).is_ok());
    let error = allocator.alloc(1, STREAM).unwrap_err();
    assert_eq!((error.limit_bytes, error.segment_bytes), (Some(512 * MIB), 2 * MIB));
    allocator.set_memory_fraction(1.0);
    assert!(allocator.alloc(1, STREAM).is_ok());
}

#[test]
fn max_split_size_keeps_large_blocks_whole() {
    let mut allocator = allocator("max_split_size_mb:64");
    let block = allocator.alloc(100 * MIB, STREAM).unwrap();
    allocator.free(block);
    allocator.alloc(30 * MIB, STREAM).unwrap(); // below the limit: the oversize block is not for it
    assert_eq!(reserved(&allocator), 130 * MIB);
    allocator.alloc(79 * MIB, STREAM).unwrap(); // more than 20 MiB would be wasted
    assert_eq!(reserved(&allocator), 210 * MIB);
    let whole = allocator.alloc(81 * MIB, STREAM).unwrap();
    assert_eq!((allocator.block_bytes(whole), reserved(&allocator)), (100 * MIB, 210 * MIB));
    assert_eq!(allocator.stats().oversize_allocations.current, 2);
}

#[test]
fn private_pools_keep_their_memory_to_themselves() {
    let pool = PoolId(1, 0);
    let mut allocator = allocator("");
    allocator.begin_pool(pool).unwrap();
    assert_eq!(allocator.begin_pool(pool), Err(PoolError::AlreadyActive(pool)));
    allocator.set_no_split(pool).unwrap();
    let small = allocator.alloc(1, STREAM).unwrap();
    let mid = allocator.alloc(2 * MIB, STREAM).unwrap();
    assert_eq!(allocated(&allocator), 22 * MIB);
    allocator.end_pool(pool).unwrap();
    assert_eq!(allocator.end_pool(pool), Err(PoolError::NotActive(pool)));
    allocator.free(small);
    allocator.free(mid);
    allocator.alloc(1, STREAM).unwrap();
    allocator.empty_cache();
    assert_eq!(reserved(&allocator), 24 * MIB);
    allocator.release_pool(pool).unwrap();
    assert_eq!(allocator.release_pool(pool), Err(PoolError::NotInUse(pool)));
    assert_eq!(allocator.begin_pool(pool), Err(PoolError::NotInUse(pool)));
    allocator.empty_cache();
    assert_eq!(reserved(&allocator), 2 * MIB);
    assert_eq!(allocator.begin_pool(pool), Ok(()));
}

#[test]
fn an_overflow_pool_serves_what_would_fail() {
    let pool = PoolId(1, 0);
    let mut allocator = small_device("", 64 * MIB);
    allocator.begin_pool(pool).unwrap();
    let block = allocator.alloc(40 * MIB, STREAM).unwrap();
    allocator.end_pool(pool).unwrap();
    allocator.free(block);
    assert!(allocator.alloc(30 * MIB, STREAM).is_err());
    allocator.set_use_on_oom(pool, true);
    assert!(allocator.alloc(30 * MIB, STREAM).is_ok());
    assert_eq!((reserved(&allocator), allocator.stats().num_ooms), (40 * MIB, 1));
}

#[test]
fn garbage_collection_needs_a_limit() {
    let run = |fraction: f64| {
        let mut allocator = small_device("garbage_collection_threshold:0.5", GIB);
        allocator.set_memory_fraction(fraction);
        let old = allocator.alloc(400 * MIB, STREAM).unwrap();
        let new = allocator.alloc(40 * MIB, STREAM).unwrap();
        allocator.free(old);
        allocator.free(new);
        allocator.alloc(39 * MIB, STREAM).unwrap();
        allocator.alloc(500 * MIB, STREAM).unwrap();
        (reserved(&allocator), allocator.stats().num_alloc_retries)
    };
    assert_eq!(run(1.0), (940 * MIB, 0));
    assert_eq!(run(0.999), (940 * MIB, 0)); // 440 MiB reserved is below the threshold of 511 MiB
    assert_eq!(run(0.85), (540 * MIB, 0)); // ... and above that of 435 MiB
}

#[test]
fn out_of_memory_message() {
    let mut allocator = small_device("", 30 * MIB);
    allocator.alloc(10 * MIB, STREAM).unwrap();
    let held = allocator.alloc(1, STREAM).unwrap();
    let error = allocator.alloc(3_000_000, STREAM).unwrap_err();
    assert_eq!(
        error.message(3, Some(512 * MIB)),
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 30.00 MiB of which 18.00 MiB is \
         free. Including non-PyTorch memory, this process has 512.00 MiB memory in use. Of the allocated memory 10.00 \
         MiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated \
         memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See \
         documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-\
         usage-with-pytorch-cuda-alloc-conf)"
    );
    allocator.free(held);
}

#[test]
fn a_restored_snapshot_continues_as_before() {
    let mut original = allocator("");
    let blocks: Vec<BlockId> =
        [1000, MIB, 3 * MIB, 30 * MIB, 5000].iter().map(|&bytes| original.alloc(bytes, STREAM).unwrap()).collect();
    original.free(blocks[1]);
    original.free(blocks[3]);
    let segments = original.snapshot();
    let (mut restored, handed_out) = Allocator::restore(&AllocConf::default(), Driver::unlimited(), &segments).unwrap();
    assert_eq!(restored.snapshot(), segments);
    assert_eq!(handed_out.len(), 3);
    for bytes in [700_000, 25 * MIB, 512] {
        let (ours, theirs) = (restored.alloc(bytes, STREAM).unwrap(), original.alloc(bytes, STREAM).unwrap());
        assert_eq!(restored.address(ours), original.address(theirs));
    }
    let (restored, original) = (restored.stats(), original.stats());
    assert_eq!(restored.allocated_bytes.all.current, original.allocated_bytes.all.current);
    assert_eq!(restored.inactive_split_bytes.all.current, original.inactive_split_bytes.all.current);
    assert_eq!(restored.reserved_bytes.all.current, original.reserved_bytes.all.current);
}
