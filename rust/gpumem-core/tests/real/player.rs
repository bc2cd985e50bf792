//! Plays a script on the simulator and checks each line the real allocator printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpumem_core::allocator::{
    AllocConf, Allocator, BlockId, BlockState, Driver, OomKind, OutOfMemory, PoolId, PoolStat, StreamId,
};

use crate::script::Event;

/// The stream that `RecordStream` records; only that it differs from 0 matters.
const SIDE_STREAM: StreamId = StreamId(0x1010);

/// What was compared.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) addresses: u64,
    pub(crate) statistics: u64,
    pub(crate) layouts: u64,
    pub(crate) blocks: u64,
    pub(crate) ooms: u64,
    pub(crate) rejections: u64,
    pub(crate) retries: u64,
    pub(crate) device_frees: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.addresses += other.addresses;
        self.statistics += other.statistics;
        self.layouts += other.layouts;
        self.blocks += other.blocks;
        self.ooms += other.ooms;
        self.rejections += other.rejections;
        self.retries += other.retries;
        self.device_frees += other.device_frees;
    }

    /// Whether every mechanism took part.
    pub(crate) fn is_varied(&self) -> bool {
        let counts = [self.addresses, self.statistics, self.layouts, self.blocks, self.ooms];
        counts.into_iter().chain([self.rejections, self.retries, self.device_frees]).all(|count| count > 0)
    }
}

/// The simulator's side of a comparison.
pub(crate) struct Player {
    conf: String,
    allocator: Allocator,
    blocks: BTreeMap<u64, BlockId>,
    tensors: BTreeMap<u64, BlockId>,
    pub(crate) counts: Counts,
}

impl Player {
    pub(crate) fn new(conf: &str, total: u64, overhead: u64, descending: bool) -> Self {
        let driver = Driver::new(total - overhead, total);
        let driver = if descending { driver.descending() } else { driver };
        Self {
            conf: conf.to_owned(),
            allocator: Allocator::new(&AllocConf::parse(conf).unwrap(), driver),
            blocks: BTreeMap::new(),
            tensors: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Plays the script; an error describes the first line that differs.
    pub(crate) fn compare(&mut self, script: &[Event], real: &str) -> Result<(), String> {
        let mut lines = real.lines().filter(|line| is_answer(line));
        let mut history: Vec<String> = Vec::new();
        for event in script {
            history.push(event.to_string());
            for expected in self.play(*event) {
                let got = lines.next().map(strip_other_process).unwrap_or_default();
                if got != expected {
                    let recent: Vec<String> =
                        history.iter().rev().filter(|line| *line != "S").take(6).cloned().collect();
                    let at = history.iter().filter(|line| *line != "S" && *line != "N").count();
                    return Err(format!("event {at}, latest {recent:?}\nreal {got}\nours {expected}"));
                }
            }
        }
        self.counts.retries += self.allocator.stats().num_alloc_retries;
        self.counts.device_frees += self.allocator.stats().num_device_free;
        self.counts.rejections += self.allocator.stats().num_oom_rejections;
        match lines.next() {
            None => Ok(()),
            Some(line) => Err(format!("the real allocator said more: {line}")),
        }
    }

    /// Plays one event; returns what the harness prints for it.
    fn play(&mut self, event: Event) -> Vec<String> {
        match event {
            Event::Alloc { id, bytes, stream } => return vec![self.alloc("A", id, bytes, StreamId(stream))],
            Event::TensorAlloc { id, bytes } => return vec![self.alloc("D", id, bytes, StreamId(0))],
            Event::Free { id } => {
                if let Some(block) = self.blocks.remove(&id) {
                    self.allocator.free(block);
                }
            }
            Event::TensorFree { id } => {
                if let Some(block) = self.tensors.remove(&id) {
                    self.allocator.free(block);
                }
            }
            Event::RecordStream { id } => {
                if let Some(&block) = self.tensors.get(&id) {
                    self.allocator.record_stream(block, SIDE_STREAM);
                }
            }
            Event::EmptyCache => self.allocator.empty_cache(),
            Event::Fraction { percent } => {
                let fraction: f64 = format!("{}.{:02}", percent / 100, percent % 100).parse().unwrap();
                self.allocator.set_memory_fraction(fraction);
            }
            Event::HoldEvents { held } => self.allocator.hold_events(held),
            Event::BeginPool { pool } => self.allocator.begin_pool(PoolId(pool, 1)).unwrap(),
            Event::EndPool { pool } => self.allocator.end_pool(PoolId(pool, 1)).unwrap(),
            Event::ReleasePool { pool } => self.allocator.release_pool(PoolId(pool, 1)).unwrap(),
            Event::NoSplit { pool } => self.allocator.set_no_split(PoolId(pool, 1)).unwrap(),
            Event::UseOnOom { pool } => self.allocator.set_use_on_oom(PoolId(pool, 1), true),
            Event::Expandable { enabled } => {
                let enabled = if enabled { "True" } else { "False" };
                let conf = format!("{},expandable_segments:{enabled}", self.conf);
                self.allocator.reconfigure(&AllocConf::parse(conf.trim_start_matches(',')).unwrap());
                return vec!["conf ok".to_owned()];
            }
            Event::Statistics => return vec![self.statistics()],
            Event::Layout => return self.layout(),
        }
        Vec::new()
    }

    fn alloc(&mut self, letter: &str, id: u64, bytes: u64, stream: StreamId) -> String {
        match self.allocator.alloc(bytes, stream) {
            Ok(block) => {
                self.counts.addresses += 1;
                let blocks = if letter == "A" { &mut self.blocks } else { &mut self.tensors };
                blocks.insert(id, block);
                format!("{letter} {id} {:x}", self.allocator.address(block))
            }
            Err(error) => {
                self.counts.ooms += 1;
                format!("OOM {}", self.message(&error))
            }
        }
    }

    fn message(&self, error: &OutOfMemory) -> String {
        let driver = self.allocator.driver();
        let used = driver.capacity_bytes() - driver.free_bytes();
        if error.kind == OomKind::Exhausted { error.message(0, Some(used)) } else { error.to_string() }
    }

    fn statistics(&mut self) -> String {
        self.counts.statistics += 1;
        let stats = self.allocator.stats();
        let mut line = "S".to_owned();
        for stat in [
            &stats.allocated_bytes,
            &stats.active_bytes,
            &stats.requested_bytes,
            &stats.reserved_bytes,
            &stats.inactive_split_bytes,
            &stats.inactive_split,
            &stats.segment,
            &stats.allocation,
            &stats.active,
        ] {
            let PoolStat { all, small_pool, large_pool } = stat;
            write!(line, " {}/{}/{}", all.current, small_pool.current, large_pool.current).unwrap();
        }
        let driver = self.allocator.driver();
        write!(
            line,
            " retries={} ooms={} dalloc={} dfree={} ov={}/{} peak_alloc={} peak_res={} used={}",
            stats.num_alloc_retries,
            stats.num_ooms,
            stats.num_device_alloc,
            stats.num_device_free,
            stats.oversize_allocations.current,
            stats.oversize_segments.current,
            stats.allocated_bytes.all.peak,
            stats.reserved_bytes.all.peak,
            driver.capacity_bytes() - driver.free_bytes(),
        )
        .unwrap();
        line
    }

    fn layout(&mut self) -> Vec<String> {
        self.counts.layouts += 1;
        let mut lines: Vec<String> = Vec::new();
        for segment in self.allocator.snapshot() {
            let mut line = format!(
                "SEG {:x} {} st={:x} large={} exp={} :",
                segment.address,
                segment.total_bytes,
                segment.stream,
                u8::from(segment.is_large),
                u8::from(segment.is_expandable)
            );
            for block in &segment.blocks {
                let state = match block.state {
                    BlockState::ActiveAllocated => 'a',
                    BlockState::ActivePendingFree => 'p',
                    BlockState::Inactive => 'f',
                };
                write!(line, " {}{state}", block.size_bytes).unwrap();
                self.counts.blocks += 1;
            }
            lines.push(line);
        }
        lines.push("ENDN".to_owned());
        lines
    }
}

/// Lines that answer an event; the rest are stack frames below an exception.
fn is_answer(line: &str) -> bool {
    ["A ", "D ", "OOM ", "EXC ", "S ", "SEG ", "ENDN", "conf ok"].iter().any(|start| line.starts_with(start))
}

/// The fake NVML reports a second process; which ones exist is not the allocator's business.
fn strip_other_process(line: &str) -> String {
    match line.split_once("Process 4242 has ") {
        Some((before, after)) => {
            let (_, after) = after.split_once("memory in use. ").unwrap();
            format!("{before}{after}")
        }
        None => line.to_owned(),
    }
}
