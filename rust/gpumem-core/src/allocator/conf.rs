//! Settings of the allocator: what `PYTORCH_CUDA_ALLOC_CONF` says.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::size::DIVISION_SLOTS;

/// Default of `large_segment_size_mb` (facts/allocator.md section 1).
pub(super) const LARGE_SEGMENT_MB: u64 = 20;

/// Settings of `PyTorch`'s native caching allocator, as torch 2.14.1 reads them.
///
/// A value is always valid: it comes from [`AllocConf::parse`] or is the default. Its `Display` and its
/// serde form are the canonical setting string, which names only what differs from the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllocConf {
    pub(super) expandable_segments: bool,
    pub(super) max_split_size_mb: Option<u64>,
    pub(super) max_non_split_rounding_mb: Option<u64>,
    pub(super) roundup_power2_divisions: [u64; DIVISION_SLOTS],
    pub(super) garbage_collection_threshold: f64,
    pub(super) large_segment_size_mb: u64,
    pub(super) per_process_memory_fraction: f64,
    pub(super) throw_on_cudamalloc_oom: bool,
}

impl Default for AllocConf {
    fn default() -> Self {
        Self {
            expandable_segments: false,
            max_split_size_mb: None,
            max_non_split_rounding_mb: None,
            roundup_power2_divisions: [0; DIVISION_SLOTS],
            garbage_collection_threshold: 0.0,
            large_segment_size_mb: LARGE_SEGMENT_MB,
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
        }
    }
}

impl AllocConf {
    /// Whether segments grow in place (`expandable_segments`).
    #[must_use]
    pub fn expandable_segments(&self) -> bool {
        self.expandable_segments
    }

    /// Blocks of this many MiB or more are not split; `None` is no limit.
    #[must_use]
    pub fn max_split_size_mb(&self) -> Option<u64> {
        self.max_split_size_mb
    }

    /// How many MiB larger than a request of `max_split_size_mb` or more a cached block may be.
    #[must_use]
    pub fn max_non_split_rounding_mb(&self) -> u64 {
        self.max_non_split_rounding_mb.unwrap_or(self.large_segment_size_mb)
    }

    /// Divisions between powers of two, for sizes from 1 MiB (and below) to 32 GiB (and above); 0 and 1 are off.
    #[must_use]
    pub fn roundup_power2_divisions(&self) -> &[u64; DIVISION_SLOTS] {
        &self.roundup_power2_divisions
    }

    /// Share of the memory limit above which cached segments are collected; 0 is never.
    #[must_use]
    pub fn garbage_collection_threshold(&self) -> f64 {
        self.garbage_collection_threshold
    }

    /// Size in MiB of the segment that requests between 1 and 10 MiB share.
    #[must_use]
    pub fn large_segment_size_mb(&self) -> u64 {
        self.large_segment_size_mb
    }

    /// Share of the device's total memory that may be reserved.
    #[must_use]
    pub fn per_process_memory_fraction(&self) -> f64 {
        self.per_process_memory_fraction
    }

    /// Whether a request beyond the memory fraction fails before the cache is released.
    #[must_use]
    pub fn throw_on_cudamalloc_oom(&self) -> bool {
        self.throw_on_cudamalloc_oom
    }

    /// Whether a limit on the device's bytes changes nothing before a segment does not fit below it: no share of a total
    /// is watched, no range is as long as the device is large (expandable segments), and segments take whole pieces of
    /// the driver's.
    #[must_use]
    pub fn acts_at_the_limit_only(&self) -> bool {
        !self.expandable_segments
            && self.garbage_collection_threshold <= 0.0
            && self.per_process_memory_fraction >= 1.0
            && self.large_segment_size_mb % 2 == 0
    }

    /// The divisions as a setting value: a bare number, or a list with as few keys as possible.
    fn divisions_value(&self) -> String {
        let slots = &self.roundup_power2_divisions;
        let last = slots[DIVISION_SLOTS - 1];
        if last != 0 && slots.iter().all(|&d| d == last) {
            return last.to_string();
        }
        let first_key = slots.iter().take_while(|&&d| d == slots[0]).count() - 1;
        let tail = slots.iter().rev().take_while(|&&d| d == last).count();
        let last_key = (DIVISION_SLOTS - tail).max(first_key + 1) - 1;
        let mut pairs: Vec<String> =
            (first_key..=last_key).map(|slot| format!("{}:{}", 1_u64 << slot, slots[slot])).collect();
        if last != 0 && last_key + 1 < DIVISION_SLOTS {
            pairs.push(format!(">:{last}"));
        }
        format!("[{}]", pairs.join(","))
    }
}

impl fmt::Display for AllocConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut items = Vec::new();
        if self.expandable_segments {
            items.push("expandable_segments:True".to_owned());
        }
        if self.large_segment_size_mb != default.large_segment_size_mb {
            items.push(format!("large_segment_size_mb:{}", self.large_segment_size_mb));
        }
        if let Some(mb) = self.max_split_size_mb {
            items.push(format!("max_split_size_mb:{mb}"));
        }
        if let Some(mb) = self.max_non_split_rounding_mb {
            items.push(format!("max_non_split_rounding_mb:{mb}"));
        }
        if self.roundup_power2_divisions != default.roundup_power2_divisions {
            items.push(format!("roundup_power2_divisions:{}", self.divisions_value()));
        }
        if self.garbage_collection_threshold > 0.0 {
            items.push(format!("garbage_collection_threshold:{}", self.garbage_collection_threshold));
        }
        if self.per_process_memory_fraction < 1.0 {
            items.push(format!("per_process_memory_fraction:{}", self.per_process_memory_fraction));
        }
        if self.throw_on_cudamalloc_oom {
            items.push("throw_on_cudamalloc_oom:True".to_owned());
        }
        f.write_str(&items.join(","))
    }
}

impl From<AllocConf> for String {
    fn from(conf: AllocConf) -> Self {
        conf.to_string()
    }
}

impl TryFrom<String> for AllocConf {
    type Error = super::ConfError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl FromStr for AllocConf {
    type Err = super::ConfError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
