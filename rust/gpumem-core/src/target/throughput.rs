//! How fast a card could run a kernel at best: the roofline by which plans are ranked.
//!
//! The figures are specifications (`data/throughput.json`), so times are good for comparing plans on one card, not for
//! predicting a clock. Launch overhead is left out.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use super::{Gpu, TargetError};

const TABLE: &str = include_str!("../../data/throughput.json");

/// Which arithmetic unit a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// 32-bit floating point.
    Fp32,
    /// 32-bit data through the tensor cores' TF32 mode, where there is one.
    Tf32,
    /// 16-bit floating point on tensor cores, where there are any.
    Half,
    /// None: bytes go to the host's memory or come from there, over PCI Express.
    Host,
}

#[derive(Deserialize)]
struct Rates {
    fp32: u64,
    tf32: u64,
    half: u64,
}

#[derive(Deserialize)]
struct Card {
    gigabytes_per_s: u64,
    boost_mhz: u64,
}

#[derive(Deserialize)]
struct Table {
    multiply_adds_per_clock: BTreeMap<String, Rates>,
    host_gigabytes_per_s: BTreeMap<String, u64>,
    gpus: BTreeMap<String, Card>,
}

/// Peak rates of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throughput {
    /// Bytes per microsecond.
    bytes: u64,
    /// Operations per microsecond of each unit.
    fp32: u64,
    tf32: u64,
    half: u64,
    /// Bytes per microsecond to the host or back.
    host: u64,
}

impl Throughput {
    /// The rates of a card of the table.
    ///
    /// # Errors
    /// [`TargetError::InvalidGpuTable`] when the build's table lacks the card.
    pub fn of(gpu: &Gpu) -> Result<Self, TargetError> {
        static PARSED: OnceLock<Result<Table, String>> = OnceLock::new();
        let table = PARSED.get_or_init(|| serde_json::from_str(TABLE).map_err(|error| error.to_string()));
        let fault = |reason: String| TargetError::InvalidGpuTable { reason };
        let table = table.as_ref().map_err(|reason| fault(reason.clone()))?;
        let card = table.gpus.get(&gpu.name).ok_or_else(|| fault(format!("no throughput of {}", gpu.name)))?;
        let capability = gpu.capability.to_string();
        let rates = table.multiply_adds_per_clock.get(&capability);
        let rates = rates.ok_or_else(|| fault(format!("no throughput of capability {capability}")))?;
        let host = table.host_gigabytes_per_s.get(&capability);
        let host = host.ok_or_else(|| fault(format!("no rate to the host of capability {capability}")))?;
        // A multiply-add is two operations; MHz are clocks per microsecond.
        let flops = |rate: u64| 2 * rate * u64::from(gpu.sm_count) * card.boost_mhz;
        Ok(Self {
            bytes: card.gigabytes_per_s * 1000,
            fp32: flops(rates.fp32),
            tf32: flops(rates.tf32),
            half: flops(rates.half),
            host: host * 1000,
        })
    }

    /// Least time of a kernel, in picoseconds: that of its operations or of its bytes, whichever is longer.
    #[must_use]
    pub fn kernel_ps(&self, unit: Unit, flops: u64, moved_bytes: u64) -> u64 {
        const PS_PER_US: u128 = 1_000_000;
        let (rate, bytes) = match unit {
            Unit::Fp32 => (self.fp32, self.bytes),
            Unit::Tf32 => (self.tf32, self.bytes),
            Unit::Half => (self.half, self.bytes),
            Unit::Host => (self.fp32, self.host),
        };
        let time = |amount: u64, rate: u64| u128::from(amount) * PS_PER_US / u128::from(rate.max(1));
        u64::try_from(time(flops, rate).max(time(moved_bytes, bytes))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_has_rates_and_tensor_cores_are_never_slower() {
        for gpu in Gpu::table().expect("the table is part of the build") {
            let rates = Throughput::of(gpu).expect("every card is listed");
            assert!(rates.bytes > 0, "{}", gpu.name);
            assert!(rates.half >= rates.fp32, "{}", gpu.name);
            assert!(rates.host > 0 && rates.host < rates.bytes, "{}", gpu.name);
        }
    }

    #[test]
    fn a_kernel_takes_as_long_as_the_slower_of_its_two_sides() {
        let rates = Throughput { bytes: 1000, fp32: 100, tf32: 200, half: 400, host: 10 };
        assert_eq!(rates.kernel_ps(Unit::Fp32, 100, 1000), 1_000_000);
        assert_eq!(rates.kernel_ps(Unit::Half, 100, 2000), 2_000_000);
        assert_eq!(rates.kernel_ps(Unit::Tf32, 400, 0), 2_000_000);
        assert_eq!(rates.kernel_ps(Unit::Host, 0, 1000), 100_000_000);
    }
}
