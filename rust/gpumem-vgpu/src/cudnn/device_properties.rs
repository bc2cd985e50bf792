//! The description of a card that cuDNN (9.8 and later) takes instead of a card: the JSON of
//! `CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR`. The keys are those that cuDNN itself asks for in its error messages.

use std::fmt::Write as _;

use crate::config::Config;

/// The description of the configured card, as JSON.
pub(super) fn json(config: &Config) -> String {
    let gpu = config.gpu;
    let numbers = [
        ("deviceVer", u64::from(gpu.capability.major * 100 + gpu.capability.minor * 10)),
        ("driverVer", u64::try_from(config.cuda_version).unwrap_or(0)),
        ("cudaDeviceId", 0),
        ("regsPerBlock", 65_536),
        ("multiProcessorCount", gpu.sm_count.into()),
        ("smCountOrigin", 0),
        ("warpSize", 32),
        ("maxSharedMemoryPerBlock", 49_152),
        ("maxSharedMemoryPerBlockOptin", gpu.shared_memory_per_block_optin_bytes),
        ("reservedSharedMemoryPerBlock", 1024),
        ("maxRegistersPerSM", 65_536),
        ("maxCtasPerSM", gpu.max_blocks_per_sm.into()),
        ("maxThreadsPerBlock", 1024),
        ("maxThreadsPerSM", gpu.max_threads_per_sm.into()),
        ("pciDeviceId", 0),
        ("isTccDriver", 0),
        ("supportCoopLaunch", 1),
        ("smClockRateKHz", gpu.launch.sm_clock_khz.into()),
        ("memClockRateKHz", gpu.launch.memory_clock_khz.into()),
        ("l2CacheSize", gpu.launch.l2_bytes),
        ("totalGlobalMem", config.total_bytes),
    ];
    let mut text = String::from(r#"{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64]"#);
    for (key, value) in numbers {
        // Writing to a string does not fail.
        let _ = write!(text, r#","{key}":{value}"#);
    }
    let _ = write!(text, r#","deviceName":"{}"}}"#, gpu.torch_name);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_in_the_text() {
        let text = json(&Config::read(|_| None).unwrap());
        for part in
            [r#""deviceVer":860,"#, r#""multiProcessorCount":82,"#, r#""deviceName":"NVIDIA GeForce RTX 3090"}"#]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.matches('{').count(), 1);
    }
}
