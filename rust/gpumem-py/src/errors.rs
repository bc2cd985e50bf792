//! Core errors as the classes of `gpumem.errors`, each with a hint.

use gpumem_core::error::Error;
use gpumem_core::target::TargetError;
use pyo3::PyErr;
use pyo3::import_exception;

import_exception!(gpumem.errors, AllocConfError);
import_exception!(gpumem.errors, BatchDependentError);
import_exception!(gpumem.errors, BudgetError);
import_exception!(gpumem.errors, CudnnError);
import_exception!(gpumem.errors, DoesNotFitError);
import_exception!(gpumem.errors, InputError);
import_exception!(gpumem.errors, SpecError);
import_exception!(gpumem.errors, StackError);
import_exception!(gpumem.errors, UnknownNameError);

/// The Python exception for a core error.
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Target(TargetError::UnknownGpu { name, nearest }) => {
            let hint = if nearest.is_empty() {
                "gpumem.gpus() lists the known cards; or give budget= and leave gpu= out".to_owned()
            } else {
                format!("nearest: {}; gpumem.gpus() lists all", nearest.join(", "))
            };
            UnknownNameError::new_err((format!("unknown GPU '{name}'"), hint))
        }
        Error::Target(TargetError::InvalidStack { .. }) => {
            StackError::new_err((message, "write it as torch-2.14+cu130".to_owned()))
        }
        Error::Target(TargetError::UnknownStack { nearest, .. }) => {
            StackError::new_err((message, format!("the nearest is {nearest}")))
        }
        Error::AllocConf(_) => AllocConfError::new_err((message, "see PyTorch's PYTORCH_CUDA_ALLOC_CONF".to_owned())),
        Error::BatchDependent { .. } | Error::OnlyBatch { .. } => BatchDependentError::new_err((
            message,
            "gpumem.estimate(model, batch=...) and gpumem.max_batch(model, ...) trace each size they need".to_owned(),
        )),
        Error::NotPolynomial { .. } => BatchDependentError::new_err((
            message,
            "the model pads or rounds with the batch: gpumem.estimate(model, batch=...) traces one size".to_owned(),
        )),
        Error::BudgetBelowContext { .. } => BudgetError::new_err((
            message,
            "the budget covers the whole process; pass context= if yours is smaller".to_owned(),
        )),
        Error::NothingFits { budget_bytes, smallest_bytes } => DoesNotFitError::new_err((
            message,
            "a larger budget, a smaller precision or optimizer, or activation checkpointing".to_owned(),
            budget_bytes,
            smallest_bytes,
        )),
        Error::Unbounded { .. } => {
            SpecError::new_err((message, "check that the batch is the first dimension of the inputs".to_owned()))
        }
        Error::ConvLibrary { .. } => {
            CudnnError::new_err((message, "conv_workspaces=\"auto\" takes the fitted rules then".to_owned()))
        }
        Error::NoBudget => BudgetError::new_err((message, "pass gpu=\"rtx3090\" or budget=\"24GB\"".to_owned())),
        Error::Target(_)
        | Error::Formula { .. }
        | Error::SizeOverflow { .. }
        | Error::ZeroBatch
        | Error::InvalidSpec { .. }
        | Error::Regions { .. }
        | Error::SchemaVersion { .. } => SpecError::new_err((message, String::new())),
    }
}
