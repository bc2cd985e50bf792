//! The engine of gpumem: everything that is arithmetic on bytes, nothing that knows Python.
//!
//! Data flows one way: a [`spec`] (what a traced training step asks for) becomes a [`timeline`] of requests and frees for
//! one batch and one [`target`], with the bytes that are no tensors supplied by [`formula`] and [`workspace`];
//! [`play`] runs it on the [`allocator`], which behaves as `PyTorch`'s CUDA caching allocator; [`report`] says what came
//! of it and [`search`] asks for the largest batch. The allocator never learns what a layer is; formulas never learn what
//! a block is.

pub mod allocator;
pub mod assemble;
pub mod chain;
pub mod error;
pub mod formula;
pub mod grid;
pub mod play;
pub mod poly;
pub mod regions;
pub mod report;
pub mod search;
pub mod setting;
pub mod spec;
pub mod target;
pub mod timeline;
pub mod units;
pub mod workspace;
