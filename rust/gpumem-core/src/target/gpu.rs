//! GPU profiles: the numbers of a card that decide how much memory there is and how kernels are launched.
//!
//! The table is `data/gpus.json`; every number there carries its source and whether somebody read it from a card or it
//! is taken from a specification.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use serde::Deserialize;

use super::TargetError;

const TABLE: &str = include_str!("../../data/gpus.json");
const TABLE_SCHEMA: u32 = 2;
/// Words that vendors and drivers put around a model name; removed when names are compared.
const NOISE_WORDS: [&str; 6] = ["nvidia", "geforce", "tesla", "generation", "quadro", "graphics"];
/// Similarity (normalised Levenshtein, 0 to 1) from which a name is offered as a suggestion.
const SUGGESTION_MIN_SIMILARITY: f64 = 0.5;
const SUGGESTIONS_MAX: usize = 3;

/// CUDA compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// The number before the point.
    pub major: u32,
    /// The number after the point.
    pub minor: u32,
}

impl Capability {
    /// `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Generations whose kernels, libraries and contexts behave alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuFamily {
    /// 3.x, 5.x, 6.x: no tensor cores.
    PreVolta,
    /// 7.0: fp16 tensor cores.
    Volta,
    /// 7.5: fp16 tensor cores.
    Turing,
    /// 8.0: A100, A30.
    AmpereDatacenter,
    /// 8.6, 8.7: `GeForce` 30 series, RTX A cards, A10, A40.
    AmpereConsumer,
    /// 8.9: `GeForce` 40 series, L4, L40S.
    Ada,
    /// 9.x.
    Hopper,
    /// 10.x and 11.x: B200, GB200.
    BlackwellDatacenter,
    /// 12.x: `GeForce` 50 series, RTX PRO Blackwell.
    BlackwellConsumer,
}

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Somebody read it from a card.
    Measured,
    /// From a specification or a sibling card; not read from this card.
    FromSpec,
}

/// A number with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sourced {
    /// The number.
    pub value: u64,
    /// Measured or from a specification.
    pub evidence: Evidence,
    /// Where it was found.
    pub source: String,
}

/// What decides how fast a card is: read by cuDNN's heuristics on the virtual GPU, not by gpumem's formulas.
///
/// From public specifications; the table says so once for all cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Launch {
    /// Level-2 cache, bytes.
    pub l2_bytes: u64,
    /// Boost clock of the multiprocessors, kHz.
    pub sm_clock_khz: u32,
    /// Clock of the memory as CUDA reports it, kHz: bandwidth is 2 x clock x bus width / 8.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Canonical short name, e.g. `rtx3090`.
    pub name: String,
    /// The name `torch.cuda.get_device_name` prints.
    pub torch_name: String,
    /// Other accepted spellings.
    pub aliases: Vec<String>,
    /// Compute capability.
    pub capability: Capability,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Where [`Self::sm_count`] comes from.
    pub sm_count_source: Sourced,
    /// Resident threads per multiprocessor (a property of the capability).
    pub max_threads_per_sm: u32,
    /// Resident blocks per multiprocessor (a property of the capability).
    pub max_blocks_per_sm: u32,
    /// Shared memory of a multiprocessor, bytes (a property of the capability).
    pub shared_memory_per_sm_bytes: u64,
    /// Largest shared memory a block can opt in to, bytes (a property of the capability).
    pub shared_memory_per_block_optin_bytes: u64,
    /// Total bytes as `cudaMemGetInfo` and torch's `total_memory` report them.
    pub total_bytes: u64,
    /// Where [`Self::total_bytes`] comes from.
    pub total_bytes_source: Sourced,
    /// Caches, clocks and bus.
    pub launch: Launch,
}

impl Gpu {
    /// The profile with this name, alias or device name; case, spaces, dashes and vendor words do not matter.
    ///
    /// # Errors
    /// [`TargetError::UnknownGpu`] with the nearest names; [`TargetError::InvalidGpuTable`] if the build's table is
    /// malformed.
    pub fn by_name(name: &str) -> Result<&'static Self, TargetError> {
        let table = Self::table()?;
        let wanted = normalise(name);
        table
            .iter()
            .find(|gpu| gpu.keys().any(|key| key == wanted))
            .ok_or_else(|| TargetError::UnknownGpu { name: name.to_owned(), nearest: nearest(table, &wanted) })
    }

    /// Other cards that `name`, by which this one was found, may mean: their names say more (`a100`: `a100-80gb`).
    ///
    /// # Errors
    /// [`TargetError::InvalidGpuTable`].
    pub fn also_meant_by(&self, name: &str) -> Result<Vec<&'static Self>, TargetError> {
        let wanted = normalise(name);
        let also = |gpu: &&Self| gpu.name != self.name && gpu.short_keys().any(|key| key == wanted);
        Ok(Self::table()?.iter().filter(also).collect())
    }

    /// All profiles, in the order of the table.
    ///
    /// # Errors
    /// [`TargetError::InvalidGpuTable`] if the build's table is malformed.
    pub fn table() -> Result<&'static [Self], TargetError> {
        static PARSED: OnceLock<Result<Vec<Gpu>, TargetError>> = OnceLock::new();
        match PARSED.get_or_init(parse_table) {
            Ok(gpus) => Ok(gpus),
            Err(error) => Err(error.clone()),
        }
    }

    /// The generation, from the compute capability.
    #[must_use]
    pub const fn family(&self) -> GpuFamily {
        match (self.capability.major, self.capability.minor) {
            (0..=6, _) => GpuFamily::PreVolta,
            (7, 0..=4) => GpuFamily::Volta,
            (7, _) => GpuFamily::Turing,
            (8, 0..=5) => GpuFamily::AmpereDatacenter,
            (8, 6..=8) => GpuFamily::AmpereConsumer,
            (8, _) => GpuFamily::Ada,
            (9, _) => GpuFamily::Hopper,
            (10 | 11, _) => GpuFamily::BlackwellDatacenter,
            _ => GpuFamily::BlackwellConsumer,
        }
    }

    fn keys(&self) -> impl Iterator<Item = String> + '_ {
        [&self.name, &self.torch_name].into_iter().chain(&self.aliases).map(|name| normalise(name))
    }

    /// The device name, and the other names without what stands after one of their dashes.
    fn short_keys(&self) -> impl Iterator<Item = String> + '_ {
        let names = std::iter::once(&self.name).chain(&self.aliases);
        let short = names.flat_map(|name| name.match_indices('-').map(|(dash, _)| normalise(&name[..dash])));
        std::iter::once(normalise(&self.torch_name)).chain(short)
    }
}

/// Lower case, letters and digits only, vendor words removed.
fn normalise(name: &str) -> String {
    let lower = name.to_lowercase();
    lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !NOISE_WORDS.contains(word)).collect::<String>()
}

fn nearest(table: &[Gpu], wanted: &str) -> Vec<String> {
    let mut scored: Vec<(f64, &str)> = table
        .iter()
        .map(|gpu| {
            let best = gpu.keys().map(|key| strsim::normalized_levenshtein(&key, wanted)).fold(0.0, f64::max);
            (best, gpu.name.as_str())
        })
        .filter(|(score, _)| *score >= SUGGESTION_MIN_SIMILARITY)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(SUGGESTIONS_MAX).map(|(_, name)| name.to_owned()).collect()
}

#[derive(Deserialize)]
struct TableFile {
    schema: u32,
    capabilities: BTreeMap<String, CapabilityRow>,
    gpus: Vec<GpuRow>,
}

#[derive(Deserialize)]
struct CapabilityRow {
    max_threads_per_sm: u32,
    max_blocks_per_sm: u32,
    shared_memory_per_sm_bytes: u64,
    shared_memory_per_block_optin_bytes: u64,
}

#[derive(Deserialize)]
struct GpuRow {
    name: String,
    torch_name: String,
    aliases: Vec<String>,
    capability: String,
    sm_count: Sourced,
    total_bytes: Sourced,
    launch: Launch,
}

fn parse_table() -> Result<Vec<Gpu>, TargetError> {
    let malformed = |reason: String| TargetError::InvalidGpuTable { reason };
    let file: TableFile = serde_json::from_str(TABLE).map_err(|error| malformed(error.to_string()))?;
    if file.schema != TABLE_SCHEMA {
        return Err(malformed(format!("schema {} instead of {TABLE_SCHEMA}", file.schema)));
    }
    let gpus = file.gpus.into_iter().map(|row| {
        let capability = Capability::parse(&row.capability)
            .ok_or_else(|| malformed(format!("{}: capability '{}'", row.name, row.capability)))?;
        let limits = file
            .capabilities
            .get(&row.capability)
            .ok_or_else(|| malformed(format!("{}: no limits for capability {}", row.name, row.capability)))?;
        let sm_count = u32::try_from(row.sm_count.value)
            .map_err(|_| malformed(format!("{}: sm_count {}", row.name, row.sm_count.value)))?;
        Ok(Gpu {
            name: row.name,
            torch_name: row.torch_name,
            aliases: row.aliases,
            capability,
            sm_count,
            sm_count_source: row.sm_count,
            max_threads_per_sm: limits.max_threads_per_sm,
            max_blocks_per_sm: limits.max_blocks_per_sm,
            shared_memory_per_sm_bytes: limits.shared_memory_per_sm_bytes,
            shared_memory_per_block_optin_bytes: limits.shared_memory_per_block_optin_bytes,
            total_bytes: row.total_bytes.value,
            total_bytes_source: row.total_bytes,
            launch: row.launch,
        })
    });
    gpus.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    #[test]
    fn names_aliases_and_device_names_find_the_same_card() {
        for (text, name) in [
            ("rtx3090", "rtx3090"),
            ("3090", "rtx3090"),
            ("RTX 3090", "rtx3090"),
            ("NVIDIA GeForce RTX 3090", "rtx3090"),
            ("GeForce RTX 3090", "rtx3090"),
            ("a100", "a100-40gb"),
            ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("A100 80GB", "a100-80gb"),
            ("h100", "h100-80gb"),
            ("NVIDIA H100 80GB HBM3", "h100-80gb"),
            ("H100-PCIe", "h100-pcie"),
            ("Tesla T4", "t4"),
            ("V100", "v100-16gb"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
            ("RTX A6000", "a6000"),
            ("3080", "rtx3080-10gb"),
            ("RTX 4070 Ti SUPER", "rtx4070tisuper"),
        ] {
            assert_eq!(Gpu::by_name(text).unwrap().name, name, "{text}");
        }
    }

    #[test]
    fn unknown_names_suggest_the_nearest() {
        let error = Gpu::by_name("rtx3091").unwrap_err();
        let TargetError::UnknownGpu { nearest, .. } = &error else { panic!("{error}") };
        assert!(nearest.contains(&"rtx3090".to_owned()), "{nearest:?}");
        assert!(error.to_string().contains("did you mean"));
        let TargetError::UnknownGpu { nearest, .. } = Gpu::by_name("gaudi accelerator").unwrap_err() else { panic!() };
        assert!(nearest.is_empty(), "{nearest:?}");
    }

    #[test]
    fn names_of_several_cards_say_so_and_take_the_smallest() {
        for (text, others) in [
            ("a100", &["a100-80gb"] as &[_]),
            ("V100", &["v100-32gb"]),
            ("h100", &["h100-pcie", "h100-nvl"]),
            ("3080", &["rtx3080-12gb"]),
            ("NVIDIA GeForce RTX 3080", &["rtx3080-12gb"]),
            ("RTX 4060 Ti", &["rtx4060ti-16gb"]),
            ("a100-40gb", &[]),
            ("NVIDIA A100-SXM4-80GB", &[]),
            ("rtx3080-10gb", &[]),
            ("rtx3090", &[]),
            ("a10", &[]),
            ("t4", &[]),
        ] {
            let taken = Gpu::by_name(text).unwrap();
            let also = taken.also_meant_by(text).unwrap();
            assert_eq!(also.iter().map(|gpu| gpu.name.as_str()).collect::<Vec<_>>(), others, "{text}");
            // The H100's readings differ by 0.1 % between boards of one size.
            assert!(also.iter().all(|gpu| gpu.total_bytes > taken.total_bytes / 1000 * 999), "{text}");
        }
    }

    #[test]
    fn every_profile_is_plausible_and_every_key_leads_to_its_card() {
        let table = Gpu::table().unwrap();
        assert!(table.len() >= 40);
        for gpu in table {
            assert!((8..=200).contains(&gpu.sm_count), "{}", gpu.name);
            assert!((6 * GIB..300 * GIB).contains(&gpu.total_bytes), "{}", gpu.name);
            assert_eq!(gpu.total_bytes % 512, 0, "{}", gpu.name);
            let gigabytes_per_second =
                u64::from(gpu.launch.memory_clock_khz) * u64::from(gpu.launch.memory_bus_bits) / 4 / 1_000_000;
            assert!((190..10_000).contains(&gigabytes_per_second), "{}: {gigabytes_per_second}", gpu.name);
            assert!((700_000..3_000_000).contains(&gpu.launch.sm_clock_khz), "{}", gpu.name);
            assert!((MIB..200 * MIB).contains(&gpu.launch.l2_bytes), "{}", gpu.name);
            assert!(gpu.shared_memory_per_block_optin_bytes <= gpu.shared_memory_per_sm_bytes, "{}", gpu.name);
            assert!(!gpu.total_bytes_source.source.is_empty() && !gpu.sm_count_source.source.is_empty());
            assert_eq!(Gpu::by_name(&gpu.name).unwrap().name, gpu.name);
            for key in gpu.keys() {
                // Capacity variants of one model report the same device name; the first in the table answers.
                let found = Gpu::by_name(&key).unwrap();
                assert!(found.name == gpu.name || found.torch_name == gpu.torch_name, "{key}: {}", found.name);
            }
        }
    }

    #[test]
    fn families_follow_the_capability() {
        let family = |name: &str| Gpu::by_name(name).unwrap().family();
        assert_eq!(family("a100"), GpuFamily::AmpereDatacenter);
        assert_eq!(family("rtx3090"), GpuFamily::AmpereConsumer);
        assert_eq!(family("l4"), GpuFamily::Ada);
        assert_eq!(family("h200"), GpuFamily::Hopper);
        assert_eq!(family("b200"), GpuFamily::BlackwellDatacenter);
        assert_eq!(family("rtx5090"), GpuFamily::BlackwellConsumer);
        assert_eq!(family("v100"), GpuFamily::Volta);
        assert_eq!(family("p100"), GpuFamily::PreVolta);
    }
}
