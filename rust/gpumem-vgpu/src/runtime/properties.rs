//! What a device says of itself. Offsets are those of the public header `driver_types.h` of CUDA 12.8 and 13.0.

use std::fmt::Write as _;

use crate::config::Config;

/// Where the fields of `cudaDeviceProp` lie in one CUDA version.
pub(crate) struct Layout<const BYTES: usize> {
    /// Size of the structure.
    pub(crate) bytes: usize,
    /// Two fields that CUDA 13 removed: `clockRate` and `memoryClockRate`.
    clocks: Option<(usize, usize)>,
    multi_processor_count: usize,
    can_map_host_memory: usize,
    surface_alignment: usize,
    concurrent_kernels: usize,
    pci_bus_id: usize,
    async_engine_count: usize,
    unified_addressing: usize,
    memory_bus_width: usize,
    l2_cache_size: usize,
    max_threads_per_multi_processor: usize,
    /// First of three flags: stream priorities, global and local L1 caching.
    stream_priorities_supported: usize,
    shared_mem_per_multiprocessor: usize,
    regs_per_multiprocessor: usize,
    managed_memory: usize,
    /// First of four flags: concurrent managed access, compute preemption, host pointers, cooperative launch.
    concurrent_managed_access: usize,
    shared_mem_per_block_optin: usize,
    max_blocks_per_multi_processor: usize,
    reserved_shared_mem_per_block: usize,
    host_register_supported: usize,
}

/// CUDA 12.
pub(crate) const CUDA_12: Layout<1032> = Layout {
    bytes: 1032,
    clocks: Some((348, 608)),
    multi_processor_count: 388,
    can_map_host_memory: 400,
    surface_alignment: 568,
    concurrent_kernels: 576,
    pci_bus_id: 584,
    async_engine_count: 600,
    unified_addressing: 604,
    memory_bus_width: 612,
    l2_cache_size: 616,
    max_threads_per_multi_processor: 624,
    stream_priorities_supported: 628,
    shared_mem_per_multiprocessor: 640,
    regs_per_multiprocessor: 648,
    managed_memory: 652,
    concurrent_managed_access: 676,
    shared_mem_per_block_optin: 696,
    max_blocks_per_multi_processor: 712,
    reserved_shared_mem_per_block: 720,
    host_register_supported: 728,
};

/// CUDA 13.
pub(crate) const CUDA_13: Layout<1008> = Layout {
    bytes: 1008,
    clocks: None,
    multi_processor_count: 384,
    can_map_host_memory: 392,
    surface_alignment: 552,
    concurrent_kernels: 560,
    pci_bus_id: 568,
    async_engine_count: 584,
    unified_addressing: 588,
    memory_bus_width: 592,
    l2_cache_size: 596,
    max_threads_per_multi_processor: 604,
    stream_priorities_supported: 608,
    shared_mem_per_multiprocessor: 624,
    regs_per_multiprocessor: 632,
    managed_memory: 636,
    concurrent_managed_access: 656,
    shared_mem_per_block_optin: 672,
    max_blocks_per_multi_processor: 688,
    reserved_shared_mem_per_block: 696,
    host_register_supported: 704,
};

// The same on every card since Volta (CUDA C++ Programming Guide, technical specifications per compute capability).
const SHARED_MEMORY_PER_BLOCK: i32 = 49_152;
const REGISTERS: i32 = 65_536;
const WARP: i32 = 32;
const MAX_THREADS_PER_BLOCK: i32 = 1024;
const MAX_BLOCK_Z: i32 = 64;
const MAX_GRID_YZ: i32 = 65_535;
const CONSTANT_MEMORY: i32 = 65_536;
const TEXTURE_ALIGNMENT: i32 = 512;
const TEXTURE_PITCH_ALIGNMENT: i32 = 32;
const ASYNC_ENGINES: i32 = 2;
const RESERVED_SHARED_MEMORY: i32 = 1024;
/// Largest window of the level-2 access policy as read from an A100; the only use is a device query.
const MAX_ACCESS_POLICY_WINDOW: i32 = 134_213_632;

/// A size of the table as the C field holds it.
fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

impl<const BYTES: usize> Layout<BYTES> {
    /// The structure of device number `index`.
    pub(crate) fn fill(&self, config: &Config, index: usize) -> [u8; BYTES] {
        let (gpu, capability) = (config.gpu, config.gpu.capability);
        let mut all = [0; BYTES];
        let mut bytes = |at: usize, value: &[u8]| {
            if let Some(place) = all.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        let name = gpu.torch_name.as_bytes();
        bytes(0, name.get(..255).unwrap_or(name));
        bytes(256, &uuid(index));
        let mut long = |at: usize, value: u64| bytes(at, &value.to_ne_bytes());
        long(288, config.total_bytes);
        long(296, int_u64(SHARED_MEMORY_PER_BLOCK));
        long(312, int_u64(i32::MAX)); // memPitch
        long(352, int_u64(CONSTANT_MEMORY));
        long(368, int_u64(TEXTURE_ALIGNMENT));
        long(376, int_u64(TEXTURE_PITCH_ALIGNMENT));
        long(self.surface_alignment, int_u64(TEXTURE_ALIGNMENT));
        long(self.shared_mem_per_multiprocessor, gpu.shared_memory_per_sm_bytes);
        long(self.shared_mem_per_block_optin, gpu.shared_memory_per_block_optin_bytes);
        long(self.reserved_shared_mem_per_block, int_u64(RESERVED_SHARED_MEMORY));
        let mut ints = |at: usize, values: &[i32]| {
            for (offset, value) in values.iter().enumerate() {
                bytes(at + 4 * offset, &value.to_ne_bytes());
            }
        };
        ints(304, &[REGISTERS, WARP]);
        ints(320, &[MAX_THREADS_PER_BLOCK, MAX_THREADS_PER_BLOCK, MAX_THREADS_PER_BLOCK, MAX_BLOCK_Z]);
        ints(336, &[i32::MAX, MAX_GRID_YZ, MAX_GRID_YZ]);
        ints(360, &[int(capability.major), int(capability.minor)]);
        ints(self.multi_processor_count, &[int(gpu.sm_count)]);
        ints(self.can_map_host_memory, &[1]);
        ints(self.concurrent_kernels, &[1]);
        ints(self.pci_bus_id, &[int(index) + 1]);
        ints(self.async_engine_count, &[ASYNC_ENGINES]);
        ints(self.unified_addressing, &[1]);
        ints(self.memory_bus_width, &[int(gpu.launch.memory_bus_bits)]);
        ints(self.l2_cache_size, &[int(gpu.launch.l2_bytes)]);
        ints(self.max_threads_per_multi_processor, &[int(gpu.max_threads_per_sm)]);
        ints(self.stream_priorities_supported, &[1, 1, 1]);
        ints(self.regs_per_multiprocessor, &[REGISTERS]);
        ints(self.managed_memory, &[1]);
        ints(self.concurrent_managed_access, &[1, 1, 1, 1]);
        ints(self.max_blocks_per_multi_processor, &[int(gpu.max_blocks_per_sm)]);
        ints(self.host_register_supported, &[1]);
        if let Some((core, memory)) = self.clocks {
            ints(core, &[int(gpu.launch.sm_clock_khz)]);
            ints(memory, &[int(gpu.launch.memory_clock_khz)]);
        }
        all
    }
}

fn int_u64(value: i32) -> u64 {
    value.unsigned_abs().into()
}

fn uuid(index: usize) -> [u8; 16] {
    let mut bytes = *b"gpumem-virtual-0";
    bytes[15] = b'0'.saturating_add(u8::try_from(index).unwrap_or(u8::MAX));
    bytes
}

/// The UUID as NVML writes it.
pub(crate) fn uuid_text(index: usize) -> String {
    let mut text = "GPU".to_owned();
    for (position, byte) in uuid(index).into_iter().enumerate() {
        // Groups of 4, 2, 2, 2 and 6 bytes.
        let dash = if matches!(position, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

/// `0000:01:00.0` for device 0.
pub(crate) fn pci_bus_id(index: usize) -> String {
    format!("0000:{:02x}:00.0", index + 1)
}

/// Value of a `cudaDeviceAttr`, which has the numbers of `CUdevice_attribute`; 0 for what the device does not have.
pub(crate) fn attribute(config: &Config, number: i32) -> i32 {
    let gpu = config.gpu;
    match number {
        1..=3 | 111 => MAX_THREADS_PER_BLOCK, // 111: reserved shared memory per block, by chance the same number
        4 => MAX_BLOCK_Z,
        5 | 11 => i32::MAX, // grid x, memory pitch
        6 | 7 => MAX_GRID_YZ,
        8 => SHARED_MEMORY_PER_BLOCK,
        9 => CONSTANT_MEMORY,
        10 => WARP,
        12 | 82 => REGISTERS,
        13 => int(gpu.launch.sm_clock_khz),
        14 | 30 => TEXTURE_ALIGNMENT, // and surfaces
        // Overlap of copies, mapping of host memory, concurrent kernels, unified addressing, stream priorities, L1
        // caching, managed memory, preemption, host pointers, cooperative launch, host registration, virtual memory
        // management; and 33, the number of the PCI bus. Not 115, memory pools: how they grow is not documented, so that backend cannot be imitated.
        15 | 19 | 31 | 33 | 41 | 78..=80 | 83 | 89..=91 | 95 | 99 | 102 => 1,
        16 => int(gpu.sm_count),
        36 => int(gpu.launch.memory_clock_khz),
        37 => int(gpu.launch.memory_bus_bits),
        38 => int(gpu.launch.l2_bytes),
        39 => int(gpu.max_threads_per_sm),
        40 | 87 => ASYNC_ENGINES, // 87: ratio of single to double precision, not used by PyTorch
        51 => TEXTURE_PITCH_ALIGNMENT,
        75 => int(gpu.capability.major),
        76 => int(gpu.capability.minor),
        81 => int(gpu.shared_memory_per_sm_bytes),
        97 => int(gpu.shared_memory_per_block_optin_bytes),
        106 => int(gpu.max_blocks_per_sm),
        108 => int(gpu.launch.l2_bytes / 4 * 3), // persisting level-2 lines
        109 => MAX_ACCESS_POLICY_WINDOW,
        120 => i32::from(gpu.capability.major >= 9), // clusters
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int_at(all: &[u8], at: usize) -> i32 {
        i32::from_ne_bytes(all[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn both_layouts_hold_the_profile() {
        let config = Config::read(|name| (name == "GPUMEM_VGPU_GPU").then(|| "rtx4090".to_owned())).unwrap();
        let (old, new) = (CUDA_12.fill(&config, 1), CUDA_13.fill(&config, 1));
        assert_eq!((old.len(), new.len()), (CUDA_12.bytes, CUDA_13.bytes));
        for (all, sms, bus_id, l2) in [(&old[..], 388, 584, 616), (&new[..], 384, 568, 596)] {
            assert!(all.starts_with(b"NVIDIA GeForce RTX 4090\0"));
            assert_eq!(u64::from_ne_bytes(all[288..296].try_into().unwrap()), config.total_bytes);
            assert_eq!((int_at(all, 360), int_at(all, 364)), (8, 9));
            assert_eq!((int_at(all, sms), int_at(all, bus_id), int_at(all, l2)), (128, 2, 72 << 20));
        }
    }

    #[test]
    fn attributes_agree_with_the_properties() {
        let config = Config::read(|_| None).unwrap();
        assert_eq!((attribute(&config, 16), attribute(&config, 75), attribute(&config, 76)), (82, 8, 6));
        assert_eq!((attribute(&config, 97), attribute(&config, 115), attribute(&config, -1)), (101_376, 0, 0));
    }
}
