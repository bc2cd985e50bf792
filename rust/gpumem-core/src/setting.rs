//! The question beside the spec: on which card, with which software, under which budget.

use std::sync::Arc;

use crate::allocator::{AllocConf, Driver};
use crate::error::Error;
use crate::spec::{ModelSpec, convolutions};
use crate::target::{ConvAnswers, ConvWorkspaces, End, Gpu, LibraryWorkspaces, Range, Stack, Target, context_bytes};

/// The card whose kernels are assumed when only a budget is given: capability 8.6 is what extraction was verified on.
pub const DEFAULT_GPU: &str = "rtx3090";

/// Where and within what a loop is to run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The card.
    pub gpu: &'static Gpu,
    /// The name by which the user asked for the card: its total is then the budget unless another is given.
    pub gpu_asked: Option<String>,
    /// The software stack.
    pub stack: Stack,
    /// Bytes for the whole process, context included.
    pub budget_bytes: Option<u64>,
    /// The CUDA context, if the user knows it.
    pub context_override_bytes: Option<u64>,
    /// The allocator's knobs.
    pub alloc_conf: AllocConf,
    /// Whether cuDNN's workspaces count.
    pub library_workspaces: LibraryWorkspaces,
    /// Whether `torch.backends.cudnn.benchmark` is on.
    pub cudnn_benchmark: bool,
    /// Who says how large the workspaces of convolutions are.
    pub conv_workspaces: ConvWorkspaces,
}

impl Setting {
    /// What formulas need to know, at one end of the uncertainty, with the workspaces of convolutions by the rules.
    #[must_use]
    pub const fn target(&self, end: End) -> Target {
        Target {
            gpu: self.gpu,
            stack: self.stack,
            library_workspaces: self.library_workspaces,
            cudnn_benchmark: self.cudnn_benchmark,
            conv_answers: None,
            end,
        }
    }

    /// The same for loops at one batch, about whose convolutions the library is asked if there is one.
    ///
    /// # Errors
    /// [`Error::ZeroBatch`], [`Error::OnlyBatch`], or [`Error::ConvLibrary`] when it is required and cannot be asked.
    pub fn target_for<'a>(
        &self,
        specs: impl IntoIterator<Item = &'a ModelSpec>,
        batch: u64,
        end: End,
    ) -> Result<Target, Error> {
        let mut target = self.target(end);
        if let (ConvWorkspaces::Library { library, required }, LibraryWorkspaces::Modelled) =
            (&self.conv_workspaces, self.library_workspaces)
        {
            let calls = convolutions(specs, batch)?;
            let said = ConvAnswers::ask(&**library, *required, self.gpu, calls);
            target.conv_answers = Some(Arc::new(said.map_err(|reason| Error::ConvLibrary { reason })?));
        }
        Ok(target)
    }

    /// The same setting with the workspaces of convolutions by the rules; `None` when they are by the rules already.
    #[must_use]
    pub fn by_rules(&self) -> Option<Self> {
        let ConvWorkspaces::Library { .. } = self.conv_workspaces else { return None };
        Some(Self { conv_workspaces: ConvWorkspaces::Rules { because: String::new() }, ..self.clone() })
    }

    /// Bytes of the CUDA context and where the figure comes from.
    #[must_use]
    pub fn context(&self) -> (Range, &'static str) {
        if let Some(bytes) = self.context_override_bytes {
            return (Range::exact(bytes), "given");
        }
        let context = context_bytes(self.gpu, &self.stack);
        (context.bytes, context.source)
    }

    /// The budget of the process: as given, else the card's total if the card was given.
    #[must_use]
    pub fn budget_bytes(&self) -> Option<u64> {
        self.budget_bytes.or(self.gpu_asked.as_ref().map(|_| self.gpu.total_bytes))
    }

    /// The driver that the allocator meets at one end of the uncertainty.
    ///
    /// # Errors
    /// [`Error::BudgetBelowContext`].
    pub fn driver(&self, end: End) -> Result<Driver, Error> {
        let Some(budget_bytes) = self.budget_bytes() else { return Ok(Driver::unlimited()) };
        let context_bytes = self.context().0.at(end);
        let capacity = budget_bytes.checked_sub(context_bytes);
        let capacity = capacity.ok_or(Error::BudgetBelowContext { budget_bytes, context_bytes })?;
        Ok(Driver::new(capacity, budget_bytes))
    }
}
