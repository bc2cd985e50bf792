//! The environment variables that say which device to be.

use gpumem_core::target::{Gpu, Stack, context_bytes};

use crate::address_space::Order;

/// More than any machine holds; a larger number is a slip.
pub(crate) const MAX_DEVICES: usize = 16;
/// CUDA 13.0, as `cudaRuntimeGetVersion` writes it.
const DEFAULT_CUDA_VERSION: i32 = 13_000;

/// How much of the calls is written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trace {
    /// Nothing.
    Silent,
    /// Calls that fail.
    Failures,
    /// All calls.
    Calls,
}

/// Who answers cuDNN's questions about convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cudnn {
    /// The real cuDNN, told about the profile's card; the stub where it is older than 9.8 or missing.
    Real,
    /// One algorithm with [`Config::cudnn_stub_workspace_bytes`].
    Stub,
}

/// The device to be.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The card. `GPUMEM_VGPU_GPU`, a name of gpumem's table; default `rtx3090`.
    pub(crate) gpu: &'static Gpu,
    /// How many there are. `GPUMEM_VGPU_DEVICES`; default 1.
    pub(crate) devices: usize,
    /// Memory of each. `GPUMEM_VGPU_TOTAL_BYTES`; default the card's.
    pub(crate) total_bytes: u64,
    /// What the CUDA context takes of it. `GPUMEM_VGPU_CONTEXT_BYTES`; default the core's likely value for the card.
    pub(crate) context_bytes: u64,
    /// Where segments lie. `GPUMEM_VGPU_ADDRESSES`: `up` (default), `down`, `random` or `random` and a seed.
    pub(crate) order: Order,
    /// `GPUMEM_VGPU_TRACE`: 0 (default), 1 for failing calls, 2 for all.
    pub(crate) trace: Trace,
    /// `GPUMEM_VGPU_CUDNN`: `real` (default) or `stub`.
    pub(crate) cudnn: Cudnn,
    /// Workspace of the stub's algorithms. `GPUMEM_VGPU_CUDNN_STUB_WORKSPACE_BYTES`; default 0.
    pub(crate) cudnn_stub_workspace_bytes: u64,
    /// What the runtime and the driver call themselves. `GPUMEM_VGPU_CUDA_VERSION`, such as 12080; default 13000.
    pub(crate) cuda_version: i32,
}

impl Config {
    /// Read the configuration; `lookup` gives the value of an environment variable.
    ///
    /// # Errors
    /// A text that names the variable and what is wrong with it.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let bytes = |name: &str| -> Result<Option<u64>, String> {
            let Some(text) = lookup(name) else { return Ok(None) };
            text.parse().map(Some).map_err(|_| format!("{name}={text}: not a number of bytes"))
        };
        let gpu_name = lookup("GPUMEM_VGPU_GPU").unwrap_or_else(|| "rtx3090".to_owned());
        let gpu = Gpu::by_name(&gpu_name).map_err(|error| format!("GPUMEM_VGPU_GPU: {error}"))?;
        let context = match bytes("GPUMEM_VGPU_CONTEXT_BYTES")? {
            Some(given) => given,
            None => context_bytes(gpu, &Stack::MEASURED).bytes.likely_bytes,
        };
        Ok(Self {
            gpu,
            devices: choice(&lookup, "GPUMEM_VGPU_DEVICES", 1, |text| {
                text.parse().ok().filter(|count| (1..=MAX_DEVICES).contains(count))
            })?,
            total_bytes: bytes("GPUMEM_VGPU_TOTAL_BYTES")?.unwrap_or(gpu.total_bytes),
            context_bytes: context,
            order: choice(&lookup, "GPUMEM_VGPU_ADDRESSES", Order::BottomUp, |text| match text {
                "up" => Some(Order::BottomUp),
                "down" => Some(Order::TopDown),
                "random" => Some(Order::Random(0)),
                _ => text.strip_prefix("random")?.parse().ok().map(Order::Random),
            })?,
            trace: choice(&lookup, "GPUMEM_VGPU_TRACE", Trace::Silent, |text| match text {
                "0" => Some(Trace::Silent),
                "1" => Some(Trace::Failures),
                "2" => Some(Trace::Calls),
                _ => None,
            })?,
            cudnn: choice(&lookup, "GPUMEM_VGPU_CUDNN", Cudnn::Real, |text| match text {
                "real" => Some(Cudnn::Real),
                "stub" => Some(Cudnn::Stub),
                _ => None,
            })?,
            cudnn_stub_workspace_bytes: bytes("GPUMEM_VGPU_CUDNN_STUB_WORKSPACE_BYTES")?.unwrap_or(0),
            cuda_version: choice(&lookup, "GPUMEM_VGPU_CUDA_VERSION", DEFAULT_CUDA_VERSION, |text| {
                text.parse().ok().filter(|version| (11_000..=20_000).contains(version))
            })?,
        })
    }
}

fn choice<T>(
    lookup: impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, String> {
    let Some(text) = lookup(name) else { return Ok(default) };
    parse(&text).ok_or_else(|| format!("{name}={text}: not understood"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn defaults_are_one_rtx_3090() {
        let config = read(&[]).unwrap();
        assert_eq!((config.gpu.name.as_str(), config.devices), ("rtx3090", 1));
        assert_eq!(config.total_bytes, config.gpu.total_bytes);
        assert!((200 << 20..2_u64 << 30).contains(&config.context_bytes));
        assert_eq!((config.order, config.trace, config.cudnn), (Order::BottomUp, Trace::Silent, Cudnn::Real));
    }

    #[test]
    fn every_variable_is_read() {
        let config = read(&[
            ("GPUMEM_VGPU_GPU", "NVIDIA A100-SXM4-80GB"),
            ("GPUMEM_VGPU_DEVICES", "4"),
            ("GPUMEM_VGPU_TOTAL_BYTES", "24000000000"),
            ("GPUMEM_VGPU_CONTEXT_BYTES", "0"),
            ("GPUMEM_VGPU_ADDRESSES", "random17"),
            ("GPUMEM_VGPU_TRACE", "2"),
            ("GPUMEM_VGPU_CUDNN", "stub"),
            ("GPUMEM_VGPU_CUDNN_STUB_WORKSPACE_BYTES", "512"),
            ("GPUMEM_VGPU_CUDA_VERSION", "12080"),
        ])
        .unwrap();
        assert_eq!((config.gpu.name.as_str(), config.devices), ("a100-80gb", 4));
        assert_eq!((config.total_bytes, config.context_bytes), (24_000_000_000, 0));
        assert_eq!((config.order, config.trace, config.cudnn), (Order::Random(17), Trace::Calls, Cudnn::Stub));
        assert_eq!((config.cudnn_stub_workspace_bytes, config.cuda_version), (512, 12_080));
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        for (name, value) in [
            ("GPUMEM_VGPU_GPU", "gaudi"),
            ("GPUMEM_VGPU_DEVICES", "0"),
            ("GPUMEM_VGPU_DEVICES", "17"),
            ("GPUMEM_VGPU_TOTAL_BYTES", "24GB"),
            ("GPUMEM_VGPU_ADDRESSES", "sideways"),
            ("GPUMEM_VGPU_TRACE", "3"),
            ("GPUMEM_VGPU_CUDNN", "maybe"),
            ("GPUMEM_VGPU_CUDA_VERSION", "13"),
        ] {
            assert!(read(&[(name, value)]).unwrap_err().contains(name), "{name}={value}");
        }
    }
}
