//! Random event scripts, in the harness's language.

use std::fmt;

/// One line of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Alloc {
        id: u64,
        bytes: u64,
        stream: u64,
    },
    Free {
        id: u64,
    },
    /// Like a tensor: on stream 0, and other streams can be recorded on it.
    TensorAlloc {
        id: u64,
        bytes: u64,
    },
    RecordStream {
        id: u64,
    },
    TensorFree {
        id: u64,
    },
    EmptyCache,
    /// Memory fraction in percent.
    Fraction {
        percent: u64,
    },
    HoldEvents {
        held: bool,
    },
    BeginPool {
        pool: u64,
    },
    EndPool {
        pool: u64,
    },
    ReleasePool {
        pool: u64,
    },
    NoSplit {
        pool: u64,
    },
    UseOnOom {
        pool: u64,
    },
    Expandable {
        enabled: bool,
    },
    Statistics,
    Layout,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Alloc { id, bytes, stream } => write!(f, "A {id} {bytes} {stream}"),
            Self::Free { id } => write!(f, "F {id}"),
            Self::TensorAlloc { id, bytes } => write!(f, "D {id} {bytes}"),
            Self::RecordStream { id } => write!(f, "R {id} 0"),
            Self::TensorFree { id } => write!(f, "d {id}"),
            Self::EmptyCache => write!(f, "E"),
            Self::Fraction { percent } => write!(f, "X {}.{:02}", percent / 100, percent % 100),
            Self::HoldEvents { held } => write!(f, "P {}", u8::from(held)),
            Self::BeginPool { pool } => write!(f, "B {pool} 1"),
            Self::EndPool { pool } => write!(f, "b {pool} 1"),
            Self::ReleasePool { pool } => write!(f, "r {pool} 1"),
            Self::NoSplit { pool } => write!(f, "n {pool} 1"),
            Self::UseOnOom { pool } => write!(f, "u {pool} 1"),
            // New settings replace all the old ones, so the case's own settings come first.
            Self::Expandable { enabled } => {
                write!(f, "C {{settings}}expandable_segments:{}", if enabled { "True" } else { "False" })
            }
            Self::Statistics => write!(f, "S"),
            Self::Layout => write!(f, "N"),
        }
    }
}

/// What kinds of events a script contains beside allocations and frees.
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a generator")]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mix {
    pub(crate) streams: usize,
    pub(crate) record_stream: bool,
    pub(crate) pools: bool,
    pub(crate) no_split: bool,
    pub(crate) use_on_oom: bool,
    pub(crate) fraction: bool,
    pub(crate) toggle_expandable: bool,
    /// Largest request in MiB.
    pub(crate) largest_mib: u64,
}

/// xorshift64*: the same script for the same seed on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    /// An index into something of this length.
    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

const MIB: u64 = 1 << 20;
/// Sizes at which a rule changes; used with one byte less and more.
const EDGES: [u64; 10] = [512, 1024, MIB - 512, MIB, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB, 21 * MIB, 40 * MIB];

/// Writes a script while keeping track of what is alive.
pub(crate) struct Writer {
    random: Random,
    mix: Mix,
    events: Vec<Event>,
    next_id: u64,
    alive: Vec<u64>,
    tensors: Vec<u64>,
    next_pool: u64,
    active_pools: Vec<u64>,
    idle_pools: Vec<u64>,
    kept_pool: Option<u64>,
}

impl Writer {
    /// A script of `count` events, statistics after each, and the layout now and then and at the end.
    pub(crate) fn script(seed: u64, mix: Mix, count: usize) -> Vec<Event> {
        let mut writer = Self {
            random: Random::new(seed),
            mix,
            events: Vec::new(),
            next_id: 0,
            alive: Vec::new(),
            tensors: Vec::new(),
            next_pool: 1,
            active_pools: Vec::new(),
            idle_pools: Vec::new(),
            kept_pool: None,
        };
        for step in 0..count {
            let event = writer.next();
            writer.events.extend([event, Event::Statistics]);
            if step % 50 == 49 {
                writer.events.push(Event::Layout);
            }
        }
        writer.events.push(Event::Layout);
        writer.events
    }

    fn next(&mut self) -> Event {
        if self.random.chance(6) {
            if let Some(event) = self.rare() {
                return event;
            }
        }
        // Phases of growth and of shrinkage, as in a training step.
        let grows = (self.next_id / 60) % 2 == 0;
        let alive = self.alive.len() + self.tensors.len();
        if alive == 0 || self.random.chance(if grows { 65 } else { 40 }) { self.alloc() } else { self.free() }
    }

    fn alloc(&mut self) -> Event {
        let id = self.next_id;
        self.next_id += 1;
        let bytes = self.bytes();
        if self.mix.record_stream && self.random.chance(40) {
            self.tensors.push(id);
            return Event::TensorAlloc { id, bytes };
        }
        self.alive.push(id);
        let streams = [0, 5, 0x7000];
        let stream = streams[self.random.index(self.mix.streams)];
        Event::Alloc { id, bytes, stream }
    }

    fn free(&mut self) -> Event {
        let from_tensors = self.alive.is_empty() || (!self.tensors.is_empty() && self.random.chance(40));
        let newest_first = self.random.chance(40);
        let list = if from_tensors { &mut self.tensors } else { &mut self.alive };
        let at = if newest_first { list.len() - 1 } else { self.random.index(list.len()) };
        let id = list.remove(at);
        if from_tensors { Event::TensorFree { id } } else { Event::Free { id } }
    }

    fn bytes(&mut self) -> u64 {
        let largest = self.mix.largest_mib * MIB;
        match self.random.below(100) {
            0 => 0,
            1..10 => EDGES[self.random.index(EDGES.len())] - 1 + self.random.below(3),
            10..35 => 1 + self.random.below(8192),
            35..55 => 1 + self.random.below(MIB),
            55..75 => MIB + self.random.below(9 * MIB),
            75..97 => 10 * MIB + self.random.below(largest / 8),
            _ => 1 + self.random.below(largest),
        }
    }

    /// One of the less frequent events, if it makes sense now.
    fn rare(&mut self) -> Option<Event> {
        match self.random.below(10) {
            0 => Some(Event::EmptyCache),
            1 | 2 if self.mix.record_stream => Some(Event::HoldEvents { held: self.random.chance(50) }),
            3..6 if self.mix.record_stream && !self.tensors.is_empty() => {
                let id = self.tensors[self.random.index(self.tensors.len())];
                Some(Event::RecordStream { id })
            }
            6 if self.mix.fraction => Some(Event::Fraction { percent: (50 + self.random.below(101)).min(100) }),
            7 if self.mix.toggle_expandable => Some(Event::Expandable { enabled: self.random.chance(60) }),
            8 | 9 if self.mix.pools => self.pool_event(),
            _ => None,
        }
    }

    fn pool_event(&mut self) -> Option<Event> {
        match self.random.below(8) {
            0 | 1 => {
                let pool = self.next_pool;
                self.next_pool += 1;
                self.active_pools.push(pool);
                Some(Event::BeginPool { pool })
            }
            2 | 3 => {
                let at = self.pick(self.active_pools.len())?;
                let pool = self.active_pools.remove(at);
                self.idle_pools.push(pool);
                Some(Event::EndPool { pool })
            }
            4 | 5 => {
                let at = self.pick(self.idle_pools.len())?;
                if self.kept_pool == Some(self.idle_pools[at]) {
                    return None;
                }
                Some(Event::ReleasePool { pool: self.idle_pools.remove(at) })
            }
            6 if self.mix.no_split => {
                let at = self.pick(self.active_pools.len())?;
                Some(Event::NoSplit { pool: self.active_pools[at] })
            }
            7 if self.mix.use_on_oom && self.kept_pool.is_none() => {
                let at = self.pick(self.idle_pools.len())?;
                self.kept_pool = Some(self.idle_pools[at]);
                Some(Event::UseOnOom { pool: self.idle_pools[at] })
            }
            _ => None,
        }
    }

    fn pick(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.random.index(len))
    }
}
