//! What recomputation costs.

use crate::error::Error;
use crate::regions::cut::OpCost;
use crate::regions::space::RegionSpace;
use crate::target::Throughput;

/// Times of one step in picoseconds, on the roofline of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepCosts {
    /// The step in which every region keeps what autograd saves.
    pub(super) step_ps: u64,
    /// Per region and variant, what its backward pass takes longer than that.
    pub(super) recompute_ps: Vec<Vec<u64>>,
}

impl RegionSpace {
    pub(super) fn costs(&self, batch: u64, throughput: &Throughput) -> Result<StepCosts, Error> {
        let mut in_engine = vec![vec![0_u64; self.variants.len()]; self.paths.len()];
        let mut step_ps = 0_u64;
        for (variant, traced) in self.variants.iter().enumerate() {
            for cost in &traced.costs {
                let time = kernel_ps(cost, batch, throughput)?;
                if variant == 0 {
                    step_ps = step_ps.saturating_add(time);
                }
                let region = (cost.code >> 1).checked_sub(1).and_then(|region| in_engine.get_mut(region as usize));
                if let (Some(times), 1) = (region, cost.code & 1) {
                    times[variant] = times[variant].saturating_add(time);
                }
            }
        }
        let longer = |times: Vec<u64>| times.iter().map(|&time| time.saturating_sub(times[0])).collect();
        Ok(StepCosts { step_ps, recompute_ps: in_engine.into_iter().map(longer).collect() })
    }
}

fn kernel_ps(cost: &OpCost, batch: u64, throughput: &Throughput) -> Result<u64, Error> {
    let amount = |poly: crate::poly::Poly| poly.at(batch).and_then(|value| u64::try_from(value).ok());
    match (amount(cost.flops), amount(cost.moved_bytes)) {
        (Some(flops), Some(moved_bytes)) => Ok(throughput.kernel_ps(cost.unit, flops, moved_bytes)),
        _ => Err(Error::SizeOverflow { op: "a kernel's cost".to_owned(), layer: String::new(), batch }),
    }
}
