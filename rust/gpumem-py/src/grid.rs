//! Answers to many what-ifs as columns.

use gpumem_core::error::Error;
use gpumem_core::grid::Figures;
use gpumem_core::report::Quantity;
use gpumem_core::spec::About;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cudnn::Question;
use crate::errors::to_python;
use crate::setting::{Bytes, Context, setting};

/// The arguments that every question takes, as a mapping.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TargetArguments {
    gpu: Option<String>,
    budget: Option<Bytes>,
    stack: Option<String>,
    context: Option<Context>,
    alloc_conf: Option<String>,
    library_workspaces: bool,
    cudnn_benchmark: bool,
    conv_workspaces: String,
}

impl TargetArguments {
    pub(crate) fn question(self, py: Python<'_>, about: &About) -> PyResult<Question> {
        setting(
            py,
            about,
            self.gpu.as_deref(),
            self.budget,
            self.stack.as_deref(),
            self.context,
            self.alloc_conf.as_deref(),
            self.library_workspaces,
            self.cudnn_benchmark,
            &self.conv_workspaces,
        )
    }
}

/// Columns, what fits, and the rows without an answer.
pub(crate) type Columns<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Vec<(usize, Py<PyAny>)>);

/// Low, likely and high end of four peaks.
const COLUMNS: usize = 12;
const NO_BUDGET: u8 = 2;

pub(crate) fn columns(py: Python<'_>, answers: impl Iterator<Item = Result<Figures, Error>>) -> Columns<'_> {
    let mut columns: Vec<Vec<u8>> = vec![Vec::new(); COLUMNS];
    let (mut fits, mut failed) = (Vec::new(), Vec::new());
    for (row, answer) in answers.enumerate() {
        let figures = match answer {
            Ok(figures) => Some(figures),
            Err(error) => {
                failed.push((row, to_python(error).into_value(py).into_any()));
                None
            }
        };
        fits.push(figures.and_then(|figures| figures.fits).map_or(NO_BUDGET, u8::from));
        let peaks = figures.map(|of| [of.requested_peak, of.allocated_peak, of.reserved_peak, of.device_peak]);
        let ends = peaks.map(|peaks| peaks.map(|Quantity { low, likely, high }| [low, likely, high]));
        for (column, value) in columns.iter_mut().zip(ends.unwrap_or_default().as_flattened()) {
            column.extend_from_slice(&value.to_ne_bytes());
        }
    }
    let columns = columns.iter().map(|column| PyBytes::new(py, column)).collect();
    (columns, PyBytes::new(py, &fits), failed)
}
