//! The parser of `PYTORCH_CUDA_ALLOC_CONF`, with torch 2.14.1's rules.
//!
//! Every rule was probed on the real `libc10_cuda` (line `C` of `shared/vgpu/allocator_harness`). Stricter than
//! torch in one respect: `stoull` and `stod` stop at the first character they cannot use (`30.5` is 30, `-5`
//! wraps to unlimited); here the whole value must be a number.

use thiserror::Error;

use super::conf::AllocConf;
use super::size::{DIVISION_SLOTS, MID_LIMIT_BYTES};
use crate::units::MIB;

/// Largest `large_segment_size_mb` accepted here: 2^60 bytes, the size at which every request fails.
const LARGE_SEGMENT_CEILING_MB: u64 = 1 << 40;
/// Largest division accepted here; a larger one could round no size below 2^60 bytes.
const DIVISION_CEILING: u64 = 1 << 50;

/// Why a setting string was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfError {
    /// Torch 2.14.1 has no such key.
    #[error("unknown allocator setting `{key}`")]
    UnknownKey {
        /// The key as written.
        key: String,
    },
    /// The value is outside what the key allows.
    #[error("allocator setting `{key}:{value}`: the value must be {allowed}")]
    InvalidValue {
        /// The key as written.
        key: String,
        /// The value as written.
        value: String,
        /// What would be allowed.
        allowed: String,
    },
    /// Another allocator, whose byte counts follow other rules.
    #[error("allocator backend `{backend}` is not simulated: only `native` is")]
    UnsupportedBackend {
        /// The backend as written.
        backend: String,
    },
    /// Not of the form `key:value,key:value`.
    #[error("allocator setting `{item}` is not of the form key:value")]
    Malformed {
        /// The offending part.
        item: String,
    },
}

impl AllocConf {
    /// Reads a setting string: `key:value` pairs separated by commas, blanks ignored, empty for the defaults.
    ///
    /// Keys that cannot change device bytes (`pinned_*`, `release_lock_on_cudamalloc`,
    /// `graph_capture_record_stream_reuse`) are checked for their form and dropped.
    ///
    /// # Errors
    /// [`ConfError`] with the key and the value for whatever torch 2.14.1 refuses, for `backend:cudaMallocAsync`
    /// (a different allocator), and for values with trailing characters.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let items = split_items(&text)?;
        let mut conf = Self::default();
        // Torch reads this key first wherever it stands, because it bounds two others.
        for &(key, value) in items.iter().filter(|(key, _)| *key == "large_segment_size_mb") {
            conf.large_segment_size_mb = large_segment(key, value)?;
        }
        for (key, value) in items {
            conf.set(key, value)?;
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        match key {
            "large_segment_size_mb" => {}
            "expandable_segments" => self.expandable_segments = boolean(key, value)?,
            "throw_on_cudamalloc_oom" => self.throw_on_cudamalloc_oom = boolean(key, value)?,
            "max_split_size_mb" => self.max_split_size_mb = Some(self.at_least_large_segment(key, value)?),
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding_mb = Some(self.at_least_large_segment(key, value)?);
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = divisions(key, value)?,
            "garbage_collection_threshold" => {
                self.garbage_collection_threshold =
                    real(key, value, "a number above 0 and below 1", |x| x > 0.0 && x < 1.0)?;
            }
            "per_process_memory_fraction" => {
                self.per_process_memory_fraction =
                    real(key, value, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))?;
            }
            "backend" if value == "cudaMallocAsync" => {
                return Err(ConfError::UnsupportedBackend { backend: value.to_owned() });
            }
            "backend" if value == "native" => {}
            "backend" => return Err(invalid(key, value, "native")),
            _ => check_ignored(key, value)?,
        }
        Ok(())
    }

    fn at_least_large_segment(&self, key: &str, value: &str) -> Result<u64, ConfError> {
        let floor = self.large_segment_size_mb;
        integer(value)
            .filter(|&mb| mb >= floor)
            .ok_or_else(|| invalid(key, value, &format!("an integer >= {floor} (large_segment_size_mb)")))
    }
}

/// Splits at the commas outside brackets. One comma may end the text, as in torch.
fn split_items(text: &str) -> Result<Vec<(&str, &str)>, ConfError> {
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut in_list = false;
        let end = rest.find(|c| {
            in_list = (in_list || c == '[') && c != ']';
            c == ',' && !in_list
        });
        let (item, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        match item.split_once(':') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => items.push((key, value)),
            _ => return Err(ConfError::Malformed { item: item.to_owned() }),
        }
        rest = after;
    }
    Ok(items)
}

fn invalid(key: &str, value: &str, allowed: &str) -> ConfError {
    ConfError::InvalidValue { key: key.to_owned(), value: value.to_owned(), allowed: allowed.to_owned() }
}

fn integer(value: &str) -> Option<u64> {
    value.parse().ok()
}

fn boolean(key: &str, value: &str) -> Result<bool, ConfError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(invalid(key, value, "True or False")),
    }
}

fn real(key: &str, value: &str, allowed: &str, is_allowed: impl Fn(f64) -> bool) -> Result<f64, ConfError> {
    value.parse().ok().filter(|&x| is_allowed(x)).ok_or_else(|| invalid(key, value, allowed))
}

fn large_segment(key: &str, value: &str) -> Result<u64, ConfError> {
    let floor = MID_LIMIT_BYTES / MIB;
    integer(value)
        .filter(|&mb| mb > floor && mb <= LARGE_SEGMENT_CEILING_MB)
        .ok_or_else(|| invalid(key, value, &format!("an integer > {floor} and <= {LARGE_SEGMENT_CEILING_MB}")))
}

/// Keys that are read and have no effect on device bytes (facts/allocator.md section 14).
fn check_ignored(key: &str, value: &str) -> Result<(), ConfError> {
    match key {
        "release_lock_on_cudamalloc"
        | "release_lock_on_hipmalloc"
        | "pinned_use_cuda_host_register"
        | "pinned_use_hip_host_register"
        | "pinned_use_background_threads"
        | "graph_capture_record_stream_reuse" => boolean(key, value).map(drop),
        "pinned_num_register_threads" => match integer(value) {
            Some(threads) if threads.is_power_of_two() && threads <= 128 => Ok(()),
            _ => Err(invalid(key, value, "a power of two up to 128")),
        },
        "pinned_reserve_segment_size_mb" | "pinned_max_round_threshold_mb" | "pinned_max_cached_size_mb" => {
            integer(value).map(drop).ok_or_else(|| invalid(key, value, "an integer >= 0"))
        }
        _ => Err(ConfError::UnknownKey { key: key.to_owned() }),
    }
}

/// `4`, or `[256:1,512:2,>:8]` with keys in MiB: the first key also fills every slot below it, `>` every slot
/// above the last key named before it (above the first slot when there is none).
fn divisions(key: &str, value: &str) -> Result<[u64; DIVISION_SLOTS], ConfError> {
    let Some(list) = value.strip_prefix('[') else {
        let division = integer(value)
            .filter(|d| d.is_power_of_two() && *d <= DIVISION_CEILING)
            .ok_or_else(|| invalid(key, value, "a power of two, or a list [MiB:divisions,...,>:divisions]"))?;
        return Ok([division; DIVISION_SLOTS]);
    };
    let list = list.strip_suffix(']').ok_or_else(|| ConfError::Malformed { item: format!("{key}:{value}") })?;
    let mut slots = [0; DIVISION_SLOTS];
    let mut named = None;
    let mut rest = list;
    while !rest.is_empty() {
        let (pair, after) = rest.split_once(',').unwrap_or((rest, ""));
        let (size, division) =
            pair.split_once(':').ok_or_else(|| ConfError::Malformed { item: format!("{key}:{value}") })?;
        let division = integer(division)
            .filter(|d| *d == 0 || (d.is_power_of_two() && *d <= DIVISION_CEILING))
            .ok_or_else(|| invalid(key, pair, "a power of two or 0 after the colon"))?;
        if size == ">" {
            slots[named.unwrap_or(0) + 1..].fill(division);
        } else {
            let mib = integer(size)
                .filter(|mib| mib.is_power_of_two())
                .ok_or_else(|| invalid(key, pair, "`>` or a power of two (MiB) before the colon"))?;
            let slot = (mib.ilog2() as usize).min(DIVISION_SLOTS - 1);
            let start = if named.is_none() { 0 } else { slot };
            slots[start..=slot].fill(division);
            named = Some(slot);
        }
        rest = after;
    }
    Ok(slots)
}
