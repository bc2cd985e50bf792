//! `ModelSpec`: what one traced loop asks of the allocator, for every batch size, as plain data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::formula;
use crate::poly::Poly;
use crate::target::ConvIntegers;

/// Version of the JSON form; raised when a reader of the old one would misread the new one.
pub const SCHEMA_VERSION: u32 = 1;

/// Part of the loop in which something happens. The numbers are those of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Before the first step: the model and what the optimizer's constructor makes.
    Setup,
    /// Batch, forward pass and loss.
    Forward,
    /// The autograd engine.
    Backward,
    /// Gradient clipping, the optimizer, the scaler.
    Optimizer,
    /// After the last step.
    End,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 5] = [Self::Setup, Self::Forward, Self::Backward, Self::Optimizer, Self::End];

    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::End => "end",
        }
    }
}

/// What bytes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// Parameters.
    Param,
    /// Buffers of the model.
    Buffer,
    /// Gradients of parameters.
    Grad,
    /// Optimizer state.
    Optimizer,
    /// The batch.
    Input,
    /// Results of the forward pass that outlive it: saved for backward, or still referenced.
    Activation,
    /// Buffers of cuBLAS, cuDNN and kernels.
    Workspace,
    /// Everything that comes and goes within a phase.
    Temporary,
}

impl Category {
    /// All categories, in the order of a report.
    pub const ALL: [Self; 8] = [
        Self::Param,
        Self::Buffer,
        Self::Grad,
        Self::Optimizer,
        Self::Input,
        Self::Activation,
        Self::Workspace,
        Self::Temporary,
    ];

    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Param => "param",
            Self::Buffer => "buffer",
            Self::Grad => "grad",
            Self::Optimizer => "optimizer",
            Self::Input => "input",
            Self::Activation => "activation",
            Self::Workspace => "workspace",
            Self::Temporary => "temporary",
        }
    }
}

/// Where something was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Index into [`ModelSpec::ops`].
    pub op: u32,
    /// Index into [`ModelSpec::layers`].
    pub layer: u32,
    /// The phase.
    pub phase: Phase,
}

/// One allocation of the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Requested bytes.
    pub bytes: Poly,
    /// Who asks.
    pub origin: Origin,
    /// What for.
    pub category: Category,
}

/// One call of a scratch formula ([`crate::formula`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormulaCall {
    /// Name of the formula.
    pub kind: String,
    /// Its integers.
    pub arguments: Vec<Poly>,
    /// Who asks.
    pub origin: Origin,
}

/// One module of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Dotted path, empty for the model itself.
    pub path: String,
    /// Class name.
    pub kind: String,
    /// Floating-point operations of its own ops in one step's forward pass.
    pub forward_flops: Poly,
    /// The same in its backward pass.
    pub backward_flops: Poly,
}

/// One event of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Allocation with this index is requested.
    Alloc(u32),
    /// It is freed.
    Free(u32),
    /// A stage of a formula call happens.
    Scratch {
        /// Index into [`ModelSpec::formulas`].
        call: u32,
        /// Stage of the formula.
        stage: u8,
    },
    /// A phase begins.
    Mark(Phase),
}

/// Bits of a tagged event's kind, and of a scratch event's stage.
const TAG_BITS: u32 = 2;
const STAGE_BITS: u32 = 3;

impl Event {
    /// Reads the recorder's tagged integer (`python/gpumem/extraction/recorder.py`).
    #[must_use]
    pub fn from_tagged(tagged: u64) -> Option<Self> {
        let payload = tagged >> TAG_BITS;
        let index = u32::try_from(payload).ok()?;
        Some(match tagged & ((1 << TAG_BITS) - 1) {
            0 => Self::Alloc(index),
            1 => Self::Free(index),
            2 => {
                Self::Scratch { call: index >> STAGE_BITS, stage: u8::try_from(index & ((1 << STAGE_BITS) - 1)).ok()? }
            }
            _ => Self::Mark(*Phase::ALL.get(usize::try_from(payload).ok()?)?),
        })
    }

    /// The tagged integer.
    #[must_use]
    pub fn to_tagged(self) -> u64 {
        match self {
            Self::Alloc(index) => u64::from(index) << TAG_BITS,
            Self::Free(index) => u64::from(index) << TAG_BITS | 1,
            Self::Scratch { call, stage } => (u64::from(call) << STAGE_BITS | u64::from(stage)) << TAG_BITS | 2,
            Self::Mark(phase) => (phase as u64) << TAG_BITS | 3,
        }
    }
}

/// Events as they are written: tagged integers.
mod tagged {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Event;

    pub(super) fn serialize<S: Serializer>(steps: &[Vec<Event>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(steps.iter().map(|step| step.iter().map(|event| event.to_tagged()).collect::<Vec<_>>()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<Event>>, D::Error> {
        Vec::<Vec<u64>>::deserialize(deserializer)?
            .into_iter()
            .map(|step| {
                step.into_iter()
                    .map(|tagged| Event::from_tagged(tagged).ok_or_else(|| D::Error::custom("unknown event")))
                    .collect()
            })
            .collect()
    }
}

/// What was traced, in words; nothing in it changes a byte.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct About {
    /// Class or name of the model.
    pub model: String,
    /// The input, with the batch written `b`.
    pub input: String,
    /// `train` or `infer`.
    pub mode: String,
    /// Precision of the loop.
    pub precision: String,
    /// The optimizer with its arguments.
    pub optimizer: String,
    /// The loss.
    pub criterion: String,
    /// The traced torch version.
    pub torch: String,
    /// Compute capability for which kernels were chosen, e.g. `8.6`.
    pub capability: String,
    /// Whether another capability could have chosen other kernels (attention, bf16).
    pub depends_on_capability: bool,
    /// Choices that gpumem made for the user.
    pub assumptions: Vec<String>,
    /// ATen ops that ran and were never compared with CUDA.
    pub unverified_ops: Vec<String>,
    /// Sites where the program read a value that a trace does not have.
    pub host_reads: Vec<String>,
}

/// Which batch sizes a spec answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Batches {
    /// Every size is a polynomial in the batch.
    Any,
    /// Only the one that was traced.
    Only(u64),
}

/// A traced loop, ready for any number of what-ifs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Version of this form.
    pub schema: u32,
    /// In words.
    pub about: About,
    /// Batch sizes it answers for.
    pub batches: Batches,
    /// Batch sizes that were traced.
    pub traced_batches: Vec<u64>,
    /// ATen overloads.
    pub ops: Vec<String>,
    /// Modules.
    pub layers: Vec<LayerSpec>,
    /// Allocations in order of request.
    pub allocations: Vec<Allocation>,
    /// Formula calls.
    pub formulas: Vec<FormulaCall>,
    /// Events of: setup, then each traced step.
    #[serde(with = "tagged")]
    pub steps: Vec<Vec<Event>>,
    /// For one more step like the last: what the last step freed of earlier ones, and what it left in its place.
    pub carried: Option<Vec<(u32, u32)>>,
}

impl ModelSpec {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`Error::SchemaVersion`] for another schema, [`Error::InvalidSpec`] for anything unreadable or inconsistent.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Header {
            schema: u32,
        }
        let invalid = |error: serde_json::Error| Error::InvalidSpec { reason: error.to_string() };
        let header: Header = serde_json::from_str(text).map_err(invalid)?;
        if header.schema != SCHEMA_VERSION {
            return Err(Error::SchemaVersion { found: header.schema, supported: SCHEMA_VERSION });
        }
        let spec: Self = serde_json::from_str(text).map_err(invalid)?;
        spec.validate()?;
        Ok(spec)
    }

    /// The JSON form.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] if the serializer refuses (it does not).
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::InvalidSpec { reason: error.to_string() })
    }

    /// Every index points at something, every allocation is requested once and freed at most once, after its request.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] naming the first inconsistency.
    pub fn validate(&self) -> Result<(), Error> {
        let fault = |reason: String| Err(Error::InvalidSpec { reason });
        let origins = self.allocations.iter().map(|a| a.origin).chain(self.formulas.iter().map(|f| f.origin));
        for origin in origins {
            if origin.op as usize >= self.ops.len() || origin.layer as usize >= self.layers.len() {
                return fault(format!("an origin points at op {} and layer {}", origin.op, origin.layer));
            }
        }
        for call in &self.formulas {
            if let Err(error) = crate::formula::kind_index(&call.kind) {
                return fault(error.to_string());
            }
        }
        let mut alive = vec![None; self.allocations.len()];
        for (step, events) in self.steps.iter().enumerate() {
            for event in events {
                match *event {
                    Event::Alloc(index) => match alive.get_mut(index as usize) {
                        Some(state @ None) => *state = Some(true),
                        _ => return fault(format!("step {step} requests allocation {index}, unknown or twice")),
                    },
                    Event::Free(index) => match alive.get_mut(index as usize) {
                        Some(state @ Some(true)) => *state = Some(false),
                        _ => return fault(format!("step {step} frees allocation {index}, which is not alive")),
                    },
                    Event::Scratch { call, .. } if call as usize >= self.formulas.len() => {
                        return fault(format!("step {step} calls formula {call}, which is unknown"));
                    }
                    Event::Scratch { .. } | Event::Mark(_) => {}
                }
            }
        }
        self.validate_carried()
    }

    /// One more step frees each allocation that earlier ones left to it once, and puts one of its own in its place.
    fn validate_carried(&self) -> Result<(), Error> {
        let last = self.steps.last().map_or(&[][..], Vec::as_slice);
        let mut requested = BTreeSet::new();
        let mut released = BTreeSet::new();
        for event in last {
            match *event {
                Event::Alloc(index) => {
                    requested.insert(index);
                }
                Event::Free(index) => {
                    released.insert(index);
                }
                Event::Scratch { .. } | Event::Mark(_) => {}
            }
        }
        for &(freed, left) in self.carried.iter().flatten() {
            // Taken out, so that a second pair with one of them is a fault too.
            let is_earlier = !requested.contains(&freed) && released.remove(&freed);
            let stays = !released.contains(&left) && requested.remove(&left);
            if !is_earlier || !stays {
                let reason = format!("the carried pair {freed}, {left} is not of the last step");
                return Err(Error::InvalidSpec { reason });
            }
        }
        Ok(())
    }

    /// Whether this spec answers for `batch`.
    ///
    /// # Errors
    /// [`Error::ZeroBatch`] or [`Error::OnlyBatch`].
    pub fn check_batch(&self, batch: u64) -> Result<(), Error> {
        match self.batches {
            _ if batch == 0 => Err(Error::ZeroBatch),
            Batches::Only(traced) if traced != batch => Err(Error::OnlyBatch { traced, asked: batch }),
            _ => Ok(()),
        }
    }
}

/// The distinct convolutions that cuDNN computes in these loops at one batch, as formula `conv_workspace` has them.
///
/// A call whose sizes do not fit 64 bits is left out: its loop has no timeline.
///
/// # Errors
/// As [`ModelSpec::check_batch`].
pub fn convolutions<'a>(
    specs: impl IntoIterator<Item = &'a ModelSpec>,
    batch: u64,
) -> Result<Vec<ConvIntegers>, Error> {
    let mut found = BTreeSet::new();
    for spec in specs {
        spec.check_batch(batch)?;
        let calls = spec.formulas.iter().filter(|call| call.kind == formula::convolution::KIND);
        found.extend(
            calls.filter_map(|call| call.arguments.iter().map(|poly| poly.at(batch)).collect::<Option<ConvIntegers>>()),
        );
    }
    Ok(found.into_iter().collect())
}
