//! The simulator against the real `libc10_cuda`: random event scripts run through both, and after every event the
//! addresses, the statistics, the error texts and, now and then, the whole layout must be equal.
//!
//! Needs a CUDA 13 build of torch with `nvidia-cuda-crt`, g++ and `../shared`; says so and passes otherwise.
//! `GPUMEM_TORCH_PYTHON` names the Python to look in; `GPUMEM_REAL_TRACES` (3) and `GPUMEM_REAL_EVENTS` (800) set
//! how many scripts per configuration and how many events per script.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "real/harness.rs"]
mod harness;
#[path = "real/player.rs"]
mod player;
#[path = "real/script.rs"]
mod script;

use std::io::Write as _;
use std::sync::OnceLock;

use gpumem_core::allocator::AllocConf;
use harness::Harness;
use player::Player;
use script::{Mix, Writer};

const GIB: u64 = 1 << 30;
const PLAIN: Mix = Mix {
    streams: 1,
    record_stream: false,
    pools: false,
    no_split: false,
    use_on_oom: false,
    fraction: false,
    toggle_expandable: false,
    largest_mib: 400,
};
const RECORDED: Mix = Mix { streams: 3, record_stream: true, ..PLAIN };
const POOLS: Mix = Mix { pools: true, no_split: true, use_on_oom: true, ..RECORDED };

/// A setting string, the device's memory in bytes, and what the scripts contain.
struct Case {
    conf: &'static str,
    total: u64,
    overhead: u64,
    descending: bool,
    mix: Mix,
}

const fn case(conf: &'static str, total: u64, mix: Mix) -> Case {
    Case { conf, total, overhead: 0, descending: false, mix }
}

const CASES: [Case; 28] = [
    case("", 80 * GIB, PLAIN),
    Case { descending: true, ..case("", 80 * GIB, PLAIN) },
    case("", 80 * GIB, RECORDED),
    case("", GIB / 2, RECORDED),
    Case { overhead: GIB / 3, ..case("", GIB, RECORDED) },
    case("", GIB, POOLS),
    case("", 80 * GIB, POOLS),
    case("", GIB, Mix { toggle_expandable: true, ..POOLS }),
    Case { descending: true, ..case("", GIB / 2, POOLS) },
    case("max_split_size_mb:20", GIB / 2, RECORDED),
    case("max_split_size_mb:64,max_non_split_rounding_mb:32", GIB, POOLS),
    case("max_split_size_mb:33", GIB / 2, PLAIN),
    case("roundup_power2_divisions:4", GIB, RECORDED),
    case("roundup_power2_divisions:[1:8,16:2,64:1,>:4]", 3 * GIB, PLAIN),
    case("large_segment_size_mb:64", GIB, RECORDED),
    case("large_segment_size_mb:11,max_split_size_mb:25", GIB, RECORDED),
    case("garbage_collection_threshold:0.6", 3 * GIB / 2, Mix { fraction: true, ..RECORDED }),
    case("garbage_collection_threshold:0.3,per_process_memory_fraction:0.7", 2 * GIB, POOLS),
    case("per_process_memory_fraction:0.5,max_split_size_mb:50", 2 * GIB, RECORDED),
    case("throw_on_cudamalloc_oom:True", GIB, RECORDED),
    case("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.6", GIB, Mix { fraction: true, ..RECORDED }),
    case("throw_on_cudamalloc_oom:True", GIB, Mix { fraction: true, ..RECORDED }),
    case("expandable_segments:True", 80 * GIB, RECORDED),
    case("expandable_segments:True", GIB / 2, RECORDED),
    case("expandable_segments:True,large_segment_size_mb:32", GIB, POOLS),
    case("expandable_segments:True,max_split_size_mb:40,roundup_power2_divisions:8", GIB, RECORDED),
    case("", GIB, Mix { toggle_expandable: true, ..RECORDED }),
    case(
        "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        3 * GIB,
        Mix { fraction: true, toggle_expandable: true, ..RECORDED },
    ),
];

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// The harness, built once; `None`, and said so, where it cannot be.
fn harness() -> Option<&'static Harness> {
    static HARNESS: OnceLock<Result<Harness, String>> = OnceLock::new();
    match HARNESS.get_or_init(Harness::build) {
        Ok(harness) => Some(harness),
        Err(reason) => {
            // Written past the capture of passing tests: a skip must be seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED: nothing was compared with the real allocator: {reason}");
            None
        }
    }
}

#[test]
fn accepts_the_settings_the_real_parser_accepts() {
    let Some(harness) = harness() else { return };
    let settings = [
        "max_split_size_mb:20",
        "max_split_size_mb:19",
        "max_split_size_mb:99999999999999",
        "max_split_size_mb:abc",
        "max_split_size_mb:+40",
        "max_split_size_mb:20,large_segment_size_mb:30",
        "large_segment_size_mb:30,max_split_size_mb:20",
        "max_split_size_mb:40,large_segment_size_mb:30",
        "max_split_size_mb:40,max_split_size_mb:60",
        "max_split_size_mb:40:50",
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb:40,",
        "max_split_size_mb:40,,expandable_segments:True",
        ",max_split_size_mb:40",
        ":20",
        "max_non_split_rounding_mb:20",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:11",
        "large_segment_size_mb:10",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1e-3",
        "garbage_collection_threshold:+.5",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:x",
        "per_process_memory_fraction:0",
        "per_process_memory_fraction:1",
        "per_process_memory_fraction:1.1",
        "per_process_memory_fraction:-0.1",
        "per_process_memory_fraction:nan",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:1",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[256:1,512:2,1024:3]",
        "roundup_power2_divisions:[200:1]",
        "roundup_power2_divisions:[]",
        "roundup_power2_divisions:[>:8]",
        "roundup_power2_divisions:[>:3]",
        "roundup_power2_divisions:[0:4]",
        "roundup_power2_divisions:[256:0]",
        "roundup_power2_divisions:[256:1,]",
        "roundup_power2_divisions:[256:2,,512:4]",
        "roundup_power2_divisions:[256]",
        "roundup_power2_divisions:[256:1",
        "expandable_segments:False",
        "expandable_segments:true",
        "throw_on_cudamalloc_oom:yes",
        "backend:native",
        "backend:cudaMallocAsync",
        "backend:foo",
        "foo:bar",
        "release_lock_on_cudamalloc:True",
        "release_lock_on_hipmalloc:True",
        "release_lock_on_cudamalloc:x",
        "pinned_use_cuda_host_register:True",
        "pinned_use_hip_host_register:True",
        "pinned_num_register_threads:8",
        "pinned_num_register_threads:3",
        "pinned_num_register_threads:256",
        "pinned_use_background_threads:True",
        "graph_capture_record_stream_reuse:True",
        "pinned_reserve_segment_size_mb:5",
        "pinned_reserve_segment_size_mb:x",
        "pinned_max_round_threshold_mb:5",
        "pinned_max_cached_size_mb:5",
    ];
    // Torch keeps the segment size from one setting to the next, so it is put back before each.
    let script: String = settings.iter().flat_map(|text| ["C large_segment_size_mb:20\nC ", text, "\n"]).collect();
    let real = harness.run(&script, "", GIB, 0, false);
    let mut real = real.lines().filter(|line| *line == "conf ok" || line.starts_with("EXC"));
    for text in settings {
        assert_eq!(real.next(), Some("conf ok"), "before {text}");
        let accepted = real.next().map(|line| line == "conf ok");
        assert_eq!(Some(AllocConf::parse(text).is_ok()), accepted, "{text}");
    }
}

#[test]
fn equals_the_real_allocator_after_every_event() {
    let Some(harness) = harness() else { return };
    let traces = setting("GPUMEM_REAL_TRACES", 3);
    let events = setting("GPUMEM_REAL_EVENTS", 800);
    let mut total = player::Counts::default();
    for (number, case) in (0..).zip(&CASES) {
        let mut counts = player::Counts::default();
        for trace in 0..traces as u64 {
            let script = Writer::script(number * 1_000_003 + trace, case.mix, events);
            let settings = if case.conf.is_empty() { String::new() } else { format!("{},", case.conf) };
            let text: String = script.iter().flat_map(|event| [event.to_string(), "\n".to_owned()]).collect();
            let text = text.replace("{settings}", &settings);
            let real = harness.run(&text, case.conf, case.total, case.overhead, case.descending);
            let mut player = Player::new(case.conf, case.total, case.overhead, case.descending);
            if let Err(difference) = player.compare(&script, &real) {
                panic!("case {number} `{}` trace {trace}: {difference}", case.conf);
            }
            counts.add(&player.counts);
        }
        println!("case {number:2} `{}` {} MiB: {counts:?}", case.conf, case.total >> 20);
        total.add(&counts);
    }
    println!("torch {}: {} cases x {traces} scripts x {events} events: {total:?}", harness.torch_version, CASES.len());
    assert!(total.is_varied(), "the scripts no longer reach every mechanism: {total:?}");
}
