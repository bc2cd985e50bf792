//! The cuDNN that `gpumem.cudnn` asks, as the core's `ConvLibrary`.

use std::sync::{Arc, Mutex, PoisonError};

use gpumem_core::error::Error;
use gpumem_core::setting::Setting;
use gpumem_core::target::{ConvIntegers, ConvLibrary, ConvWorkspaces, Gpu, Version};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::{CudnnError, to_python};

/// A Python object with `name()` and `workspaces(gpu, calls)`.
#[derive(Debug)]
struct Asker {
    object: Py<PyAny>,
    /// What it raised that is no refusal: an interrupt, or a defect.
    raised: Mutex<Option<PyErr>>,
}

impl Asker {
    fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ConvLibrary for Asker {
    fn name(&self) -> String {
        let name = Python::attach(|py| self.object.bind(py).call_method0("name")?.extract());
        name.unwrap_or_else(|_| "cuDNN".to_owned())
    }

    fn workspaces(&self, gpu: &Gpu, calls: &[ConvIntegers]) -> Result<Vec<Option<u64>>, String> {
        Python::attach(|py| {
            let answers =
                self.object.bind(py).call_method1("workspaces", (&gpu.name, calls)).and_then(|it| it.extract());
            answers.map_err(|error: PyErr| {
                if error.is_instance_of::<CudnnError>(py) {
                    let message = error.value(py).getattr("message").and_then(|it| it.extract());
                    return message.unwrap_or_else(|_| error.to_string());
                }
                let said = error.to_string();
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                said
            })
        })
    }
}

/// A setting, with the cuDNN that may be asked on its account.
pub(crate) struct Question {
    setting: Setting,
    asker: Option<Arc<Asker>>,
}

impl Question {
    /// Puts into `setting` who says the workspaces of convolutions; the choice is that of `gpumem.cudnn.library`, which is
    /// told the versions of the stack if one was given.
    pub(crate) fn new(
        py: Python<'_>,
        mut setting: Setting,
        conv_workspaces: &str,
        is_stack_given: bool,
    ) -> PyResult<Self> {
        static LIBRARY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let choose = LIBRARY.import(py, "gpumem.cudnn", "library")?;
        let numbers = |version: Version| (version.major, version.minor);
        let stack = is_stack_given.then(|| (numbers(setting.stack.torch), setting.stack.cuda.map(numbers)));
        let (object, required, because): (Option<Py<PyAny>>, bool, String) =
            choose.call1((conv_workspaces, stack))?.extract()?;
        let asker = object.map(|object| Arc::new(Asker { object, raised: Mutex::new(None) }));
        setting.conv_workspaces = match &asker {
            Some(asker) => ConvWorkspaces::Library { library: Arc::<Asker>::clone(asker), required },
            None => ConvWorkspaces::Rules { because },
        };
        Ok(Self { setting, asker })
    }

    /// What the core answers, computed without the interpreter's lock.
    pub(crate) fn answer<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Setting) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let answer = py.detach(|| ask(&self.setting));
        match self.asker.as_ref().and_then(|asker| asker.raised()) {
            Some(error) => Err(error),
            None => answer.map_err(to_python),
        }
    }
}

/// What the core answers to many settings at once.
pub(crate) fn answer_all<T: Send>(
    py: Python<'_>,
    questions: &[Question],
    ask: impl FnOnce(&[Setting]) -> T + Send,
) -> PyResult<T> {
    let settings: Vec<Setting> = questions.iter().map(|question| question.setting.clone()).collect();
    let answers = py.detach(|| ask(&settings));
    match questions.iter().find_map(|question| question.asker.as_ref()?.raised()) {
        Some(error) => Err(error),
        None => Ok(answers),
    }
}
