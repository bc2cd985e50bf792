//! What cuDNN itself says about convolutions, where it can be asked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Gpu;

/// A convolution as the formula `conv_workspace` has it: its integers.
pub type ConvIntegers = Vec<i64>;

/// A cuDNN that can be asked which plan `PyTorch` would take. The core asks, it does not know how.
pub trait ConvLibrary: fmt::Debug + Send + Sync {
    /// Its name with the version, for the report; called after it was asked.
    fn name(&self) -> String;

    /// Workspace bytes of each call on a card, in order; `None` where it has no answer.
    ///
    /// # Errors
    /// Why it cannot be asked.
    fn workspaces(&self, gpu: &Gpu, calls: &[ConvIntegers]) -> Result<Vec<Option<u64>>, String>;
}

/// Who says how large the workspaces of convolutions are.
#[derive(Debug, Clone)]
pub enum ConvWorkspaces {
    /// The fitted rules.
    Rules {
        /// Why nobody else, in words; empty when that was asked for.
        because: String,
    },
    /// A library; the rules for calls that it has no answer to.
    Library {
        /// Who is asked.
        library: Arc<dyn ConvLibrary>,
        /// Whether it is an error when it cannot be asked; else the rules do.
        required: bool,
    },
}

/// What was said about the convolutions of one loop at one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConvAnswers {
    /// Who was asked.
    pub library: String,
    /// Workspace bytes by call.
    bytes: BTreeMap<ConvIntegers, u64>,
    /// Calls without an answer.
    pub unanswered: usize,
    /// Why it could not be asked.
    pub failure: Option<String>,
}

impl ConvAnswers {
    /// Asks a library about every call, which must be distinct.
    ///
    /// # Errors
    /// Why it cannot be asked, when it is required.
    pub fn ask(library: &dyn ConvLibrary, required: bool, gpu: &Gpu, calls: Vec<ConvIntegers>) -> Result<Self, String> {
        let mut said = Self::default();
        if calls.is_empty() {
            return Ok(said);
        }
        match library.workspaces(gpu, &calls) {
            Ok(answers) => {
                let asked = calls.len();
                let answered = calls.into_iter().zip(answers);
                said.bytes = answered.filter_map(|(call, bytes)| Some((call, bytes?))).collect();
                said.unanswered = asked - said.bytes.len();
            }
            Err(reason) if required => return Err(reason),
            Err(reason) => said.failure = Some(reason),
        }
        // A library may learn its version by being asked.
        said.library = library.name();
        Ok(said)
    }

    /// Workspace bytes of a call; `None` when it was not asked about or has no answer.
    #[must_use]
    pub fn bytes(&self, call: &[i64]) -> Option<u64> {
        self.bytes.get(call).copied()
    }
}
