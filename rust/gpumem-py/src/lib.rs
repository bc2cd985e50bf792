//! The Python border: convert arguments, call one core function, convert the result.

mod cudnn;
mod errors;
mod gpus;
mod grid;
mod regions;
mod replay;
mod report;
mod setting;
mod spec;

use pyo3::prelude::*;

/// gpumem's compiled core.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::gpus::{GpuProfile, find_gpu, gpus};
    #[pymodule_export]
    use crate::regions::RegionSpace;
    #[pymodule_export]
    use crate::replay::replay_history;
    #[pymodule_export]
    use crate::report::{Quantity, Report};
    #[pymodule_export]
    use crate::setting::parse_alloc_conf;
    #[pymodule_export]
    use crate::spec::ModelSpec;
}
