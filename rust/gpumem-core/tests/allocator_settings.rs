//! What a setting string means: accepted, refused, and read as torch 2.14.1 reads it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use gpumem_core::allocator::{AllocConf, Allocator, ConfError, Driver, StreamId};

/// Bytes of the block a lone request gets.
fn lone(conf: &str, bytes: u64) -> u64 {
    let mut allocator = Allocator::new(&AllocConf::parse(conf).unwrap(), Driver::unlimited());
    let block = allocator.alloc(bytes, StreamId(0)).unwrap();
    allocator.block_bytes(block)
}

/// What the lists mean to torch 2.14.1, read off its block sizes.
#[test]
fn division_lists() {
    let sizes = [1_300_000, 300_000_000, 600_000_000, 1_100_000_000, 2_200_000_000];
    let blocks = |list: &str| sizes.map(|bytes| lone(&format!("roundup_power2_divisions:{list}"), bytes));
    assert_eq!(blocks("[>:8]"), [1_300_480, 301_989_888, 603_979_776, 1_207_959_552, 2_415_919_104]);
    assert_eq!(blocks("[65536:4]"), [1_310_720, 335_544_320, 671_088_640, 1_342_177_280, 2_684_354_560]);
    assert_eq!(blocks("[32768:4,>:8]"), blocks("[65536:4]"));
    assert_eq!(blocks("[256:2,>:8,1024:4]"), [1_572_864, 402_653_184, 603_979_776, 1_342_177_280, 2_415_919_104]);
    assert_eq!(blocks("[256:2,256:4]"), [1_572_864, 335_544_320, 600_000_000, 1_101_004_800, 2_200_000_000]);
    assert_eq!(blocks("[256:2,512:8,>:0]"), [1_572_864, 402_653_184, 603_979_776, 1_101_004_800, 2_200_000_000]);
    assert_eq!(blocks("[]"), blocks("1"));
    assert_eq!(blocks("[256:1,]"), blocks("1"));
}

#[test]
fn settings_round_trip_through_their_text() {
    for text in [
        "",
        "expandable_segments:True",
        "large_segment_size_mb:30,max_split_size_mb:40,max_non_split_rounding_mb:32",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[1:0,>:8]",
        "roundup_power2_divisions:[16384:4,>:2]",
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.25,throw_on_cudamalloc_oom:True",
    ] {
        let conf = AllocConf::parse(text).unwrap();
        assert_eq!(conf.to_string(), text);
        let json = serde_json::to_string(&conf).unwrap();
        assert_eq!(serde_json::from_str::<AllocConf>(&json).unwrap(), conf);
    }
    let written_otherwise = AllocConf::parse(" max_split_size_mb: 30 , large_segment_size_mb:30, ").unwrap();
    assert_eq!(written_otherwise.to_string(), "large_segment_size_mb:30,max_split_size_mb:30");
    assert!(serde_json::from_str::<AllocConf>("\"max_split_size_mb:1\"").is_err());
}

#[test]
fn ignored_settings_are_accepted() {
    let text = "backend:native,release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:False,\
                pinned_num_register_threads:8,pinned_use_background_threads:True,pinned_reserve_segment_size_mb:5,\
                graph_capture_record_stream_reuse:True,pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:0";
    assert_eq!(AllocConf::parse(text).unwrap(), AllocConf::default());
}

/// Each was also refused by torch 2.14.1, but for the last three, where it reads a prefix of the value.
#[test]
fn refused_settings_name_key_and_value() {
    for (text, message) in [
        ("foo:bar", "unknown allocator setting `foo`"),
        ("max_split_size_mb", "allocator setting `max_split_size_mb` is not of the form key:value"),
        ("max_split_size_mb:40,,expandable_segments:True", "allocator setting `` is not of the form key:value"),
        (
            "max_split_size_mb:20,large_segment_size_mb:30",
            "allocator setting `max_split_size_mb:20`: the value must be an integer >= 30 (large_segment_size_mb)",
        ),
        (
            "max_non_split_rounding_mb:19",
            "allocator setting `max_non_split_rounding_mb:19`: the value must be an integer >= 20 \
             (large_segment_size_mb)",
        ),
        (
            "large_segment_size_mb:10",
            "allocator setting `large_segment_size_mb:10`: the value must be an integer > 10 and <= 1099511627776",
        ),
        (
            "garbage_collection_threshold:1",
            "allocator setting `garbage_collection_threshold:1`: the value must be a number above 0 and below 1",
        ),
        (
            "per_process_memory_fraction:1.1",
            "allocator setting `per_process_memory_fraction:1.1`: the value must be a number from 0 to 1",
        ),
        (
            "per_process_memory_fraction:nan",
            "allocator setting `per_process_memory_fraction:nan`: the value must be a number from 0 to 1",
        ),
        ("expandable_segments:true", "allocator setting `expandable_segments:true`: the value must be True or False"),
        (
            "roundup_power2_divisions:3",
            "allocator setting `roundup_power2_divisions:3`: the value must be a power of two, or a list \
             [MiB:divisions,...,>:divisions]",
        ),
        (
            "roundup_power2_divisions:[200:1]",
            "allocator setting `roundup_power2_divisions:200:1`: the value must be `>` or a power of two (MiB) before \
             the colon",
        ),
        (
            "roundup_power2_divisions:[256:3]",
            "allocator setting `roundup_power2_divisions:256:3`: the value must be a power of two or 0 after the colon",
        ),
        (
            "roundup_power2_divisions:[256:1",
            "allocator setting `roundup_power2_divisions:[256:1` is not of the form key:value",
        ),
        ("backend:foo", "allocator setting `backend:foo`: the value must be native"),
        ("backend:cudaMallocAsync", "allocator backend `cudaMallocAsync` is not simulated: only `native` is"),
        (
            "pinned_num_register_threads:3",
            "allocator setting `pinned_num_register_threads:3`: the value must be a power of two up to 128",
        ),
        (
            "max_split_size_mb:30.5",
            "allocator setting `max_split_size_mb:30.5`: the value must be an integer >= 20 (large_segment_size_mb)",
        ),
        (
            "max_split_size_mb:-5",
            "allocator setting `max_split_size_mb:-5`: the value must be an integer >= 20 (large_segment_size_mb)",
        ),
        (
            "garbage_collection_threshold:0.8x",
            "allocator setting `garbage_collection_threshold:0.8x`: the value must be a number above 0 and below 1",
        ),
    ] {
        let error: ConfError = AllocConf::parse(text).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}
