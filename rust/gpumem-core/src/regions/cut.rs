//! One variant: a spec whose steps are cut into runs of events with one owner.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::poly::Poly;
use crate::spec::ModelSpec;
use crate::target::Unit;

/// One kernel call of the last traced step, for the cost of running it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCost {
    /// Whose call it is, and whether the autograd engine makes it.
    pub code: u32,
    /// Floating-point operations of matrix products, convolutions and attention.
    pub flops: Poly,
    /// Bytes of tensors read and written.
    pub moved_bytes: Poly,
    /// Arithmetic unit.
    pub unit: Unit,
}

/// What extraction notes beside the events, for one variant. Positions count the events of the whole trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionTrace {
    /// `(position, code)`: from there on events belong to owner `code >> 1` (0 = outside, region `i` = `i + 1`); the low
    /// bit says whether the autograd engine runs.
    pub borders: Vec<(usize, u32)>,
    /// `(position, allocation, border)`: the owner that the last of so many borders named holds the allocation until just
    /// before this position.
    pub touches: Vec<(usize, u32, usize)>,
    /// Kernel calls of the last step.
    pub costs: Vec<OpCost>,
    /// `(first, regions)`: so many regions in a row that are checkpointed as one. Without any, every region is by itself.
    pub segments: Vec<(usize, usize)>,
}

/// Events in a row with one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// As in [`RegionTrace::borders`].
    pub code: u32,
    /// Which events of the step.
    pub events: Range<usize>,
    /// `(event, allocation)`: held until just before this event of the step.
    pub touches: Vec<(usize, u32)>,
}

impl Run {
    /// The region whose run this is.
    #[must_use]
    pub const fn region(&self) -> Option<usize> {
        match self.code >> 1 {
            0 => None,
            owner => Some(owner as usize - 1),
        }
    }

    /// Whether the autograd engine runs here.
    #[must_use]
    pub const fn in_engine(&self) -> bool {
        self.code & 1 == 1
    }
}

/// The loop with every region doing the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// The traced loop.
    pub spec: ModelSpec,
    /// Runs of setup, then of each step, covering all its events.
    pub steps: Vec<Vec<Run>>,
    /// Kernel calls of the last step.
    pub costs: Vec<OpCost>,
    /// As in [`RegionTrace::segments`].
    #[serde(default)]
    pub segments: Vec<(usize, usize)>,
}

impl Variant {
    /// Cuts the steps of `spec` at the borders.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] for positions out of order.
    pub fn cut(spec: ModelSpec, trace: RegionTrace) -> Result<Self, Error> {
        let ordered = trace.borders.is_sorted_by_key(|&(at, _)| at) && trace.touches.is_sorted_by_key(|&(at, ..)| at);
        if !ordered {
            return Err(Error::InvalidSpec { reason: "borders or touches are out of order".to_owned() });
        }
        let mut borders = trace.borders.into_iter().peekable();
        let mut touches = trace.touches.into_iter().peekable();
        let mut steps = Vec::with_capacity(spec.steps.len());
        let (mut begin, mut passed) = (0, 0);
        for events in &spec.steps {
            let end = begin + events.len();
            // Every step begins outside all regions.
            let mut runs = vec![Run { code: 0, events: 0..events.len(), touches: Vec::new() }];
            let passed_before = passed;
            while let Some((at, code)) = borders.next_if(|&(at, _)| at < end) {
                let at = at - begin;
                if let Some(last) = runs.last_mut() {
                    last.events.end = at;
                }
                runs.push(Run { code, events: at..events.len(), touches: Vec::new() });
                passed += 1;
            }
            while let Some((at, allocation, border)) = touches.next_if(|&(at, ..)| at < end) {
                let run = border.saturating_sub(passed_before).min(runs.len() - 1);
                runs[run].touches.push((at - begin, allocation));
            }
            steps.push(runs);
            begin = end;
        }
        Ok(Self { spec, steps, costs: trace.costs, segments: trace.segments })
    }

    /// The regions that run as one with `region`, itself among them.
    #[must_use]
    pub fn segment(&self, region: usize) -> Range<usize> {
        let mut segments = self.segments.iter().map(|&(first, count)| first..first + count);
        segments.find(|segment| segment.contains(&region)).unwrap_or(region..region + 1)
    }

    /// Whether two runs belong to the same segment, or to the same region, or both to none.
    pub(super) fn are_one(&self, run: &Run, other: &Run) -> bool {
        match (run.region(), other.region()) {
            (Some(region), Some(other)) => region == other || self.segment(region).contains(&other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Whether the runs cover the events and everything named exists, with so many regions.
    pub(super) fn check(&self, regions: usize) -> Result<(), Error> {
        self.spec.validate()?;
        let fault = |what: &str| Err(Error::InvalidSpec { reason: format!("runs {what}") });
        if self.steps.len() != self.spec.steps.len() {
            return fault("are not those of the steps");
        }
        let mut next = 0;
        for &(first, count) in &self.segments {
            let end = first.checked_add(count).filter(|&end| first >= next && count > 1 && end <= regions);
            next =
                end.ok_or_else(|| Error::InvalidSpec { reason: "segments overlap or have no regions".to_owned() })?;
        }
        for (runs, events) in self.steps.iter().zip(&self.spec.steps) {
            let mut end = 0;
            for run in runs {
                let touches_ordered = run.touches.is_sorted_by_key(|&(at, _)| at);
                if run.events.start != end || run.events.end < end || !touches_ordered {
                    return fault("or touches are out of order");
                }
                end = run.events.end;
                if run.region().is_some_and(|region| region >= regions) {
                    return fault("of regions that do not exist");
                }
                let known = |&(at, allocation): &(usize, u32)| {
                    run.events.start <= at
                        && at <= run.events.end
                        && (allocation as usize) < self.spec.allocations.len()
                };
                if !run.touches.iter().all(known) {
                    return fault("touch what they do not hold");
                }
            }
            if end != events.len() {
                return fault("do not cover their step");
            }
        }
        Ok(())
    }
}
