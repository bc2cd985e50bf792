//! What a timeline is computed for: a card, a software stack, and which end of the uncertain figures to take.

use std::sync::Arc;

use super::{ConvAnswers, Gpu, Range, Stack};

/// Which end of every uncertain figure a simulation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The least that is expected.
    Low,
    /// The best single answer.
    Likely,
    /// The most that is expected: what `fits` and `max_batch` answer for.
    High,
}

impl Range {
    /// The value at one end.
    #[must_use]
    pub const fn at(&self, end: End) -> u64 {
        match end {
            End::Low => self.low_bytes,
            End::Likely => self.likely_bytes,
            End::High => self.high_bytes,
        }
    }
}

/// Whether the workspaces of cuDNN are part of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryWorkspaces {
    /// As the rules of [`crate::workspace`] give them.
    Modelled,
    /// Zero bytes, as with the virtual GPU's stub cuDNN: for comparing everything else with it.
    Zero,
}

/// A card with its software.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The card.
    pub gpu: &'static Gpu,
    /// The software on it.
    pub stack: Stack,
    /// Whether cuDNN's workspaces count.
    pub library_workspaces: LibraryWorkspaces,
    /// `torch.backends.cudnn.benchmark`: every convolution new to the process is measured, and `PyTorch` then empties its
    /// cache (facts/workspaces.md section 4; torch 2.14 source `Conv_v8.cpp`).
    pub cudnn_benchmark: bool,
    /// What cuDNN itself said about the convolutions of the loop, if it was asked; the rules say the rest.
    pub conv_answers: Option<Arc<ConvAnswers>>,
    /// Which end of uncertain figures is taken.
    pub end: End,
}

impl Target {
    /// The same target at another end.
    #[must_use]
    pub fn at(&self, end: End) -> Self {
        Self { end, ..self.clone() }
    }
}
