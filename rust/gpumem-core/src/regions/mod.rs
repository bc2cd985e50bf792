//! Checkpoint plans put together from traces of the pure cases.
//!
//! A *region* is a module that a plan treats as one: it keeps what autograd saves, or checkpoints itself or modules inside
//! it. Extraction traces the loop once with every region keeping, and once for each way of checkpointing with every region
//! doing it: a *variant* each; a *segment* of several regions in a row, checkpointed as one, is an option of all of them
//! together. [`cut`](Variant::cut) splits a variant's steps into runs of events with one owner, the
//! space's constructor matches the runs of all variants, and [`splice`](RegionSpace::splice) joins the runs that a plan asks for into an
//! ordinary [`ModelSpec`](crate::spec::ModelSpec). Everything that `torch.utils.checkpoint` does inside a region was traced, not imitated; what is
//! worked out here is only when storages die that several owners hold.

mod chain;
mod choose;
mod cost;
mod cut;
mod holds;
mod joined;
mod left;
mod matching;
#[cfg(test)]
mod nearby_tests;
mod neighbours;
mod parallel;
mod pareto;
mod pieces;
mod plan;
mod prepared;
mod segments;
mod source;
mod space;
mod splice;
mod structured;
mod tables;
mod trial;

pub use cut::{OpCost, RegionTrace, Run, Variant};
pub use pareto::FrontPlan;
pub use plan::{ChainWay, FoundPlan};
pub use segments::Segment;
pub use space::RegionSpace;
pub use tables::PlanTable;
pub use trial::Played;
