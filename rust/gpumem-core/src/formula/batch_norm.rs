//! `PyTorch`'s own channels-last batch norm: partial results of the blocks that share a channel.
//!
//! Measured on the virtual GPU (torch 2.14.1, 12 shapes, fp32 and bf16, forward and backward): every size equal.

use super::checked::{SizeOverflow, product};
use super::{Arguments, FormulaError, Stages, Step};
use crate::target::Target;

const OP: &str = "native_batch_norm";
const MAX_THREADS: u64 = 512;
/// Channels of a block's row of threads.
const ROW_THREADS: u64 = 32;
/// Rows a thread handles before more threads are used.
const ROWS_PER_THREAD: u64 = 16;
const MAX_BLOCKS_PER_CHANNEL: u64 = 128;
/// With fewer blocks sharing a channel one block does it all.
const MIN_BLOCKS_PER_CHANNEL: u64 = 8;
const SEMAPHORE_BYTES: u64 = 4;

/// Partial results and semaphores, both zero when no channel is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNormStaging {
    /// Partial results, requested first.
    pub partials_bytes: u64,
    /// Semaphores, requested second and freed first.
    pub semaphore_bytes: u64,
}

/// Staging of one launch over `rows` of `channels`; `values_per_channel` numbers of `acc_itemsize` bytes are left by each
/// block (4 by the statistics, 2 by the backward).
///
/// # Errors
/// [`SizeOverflow`].
pub fn channels_last_staging(
    rows: u64,
    channels: u64,
    values_per_channel: u64,
    acc_itemsize: u64,
) -> Result<BatchNormStaging, SizeOverflow> {
    let mut width = last_power_of_two(channels).min(ROW_THREADS);
    let height = last_power_of_two(rows.div_ceil(ROWS_PER_THREAD)).min(MAX_THREADS / width);
    if width * height != MAX_THREADS {
        width = last_power_of_two(channels).min(MAX_THREADS / height);
    }
    let per_channel = rows.div_ceil(height * ROWS_PER_THREAD).min(MAX_BLOCKS_PER_CHANNEL);
    if per_channel < MIN_BLOCKS_PER_CHANNEL {
        return Ok(BatchNormStaging { partials_bytes: 0, semaphore_bytes: 0 });
    }
    Ok(BatchNormStaging {
        partials_bytes: product(OP, &[acc_itemsize, values_per_channel, channels, per_channel])?,
        semaphore_bytes: product(OP, &[SEMAPHORE_BYTES, channels.div_ceil(width)])?,
    })
}

/// `batch_norm_channels_last [rows, channels, values_per_channel, acc_itemsize]`. Stages: request both; free both.
///
/// # Errors
/// [`FormulaError`].
pub fn batch_norm_channels_last(arguments: &mut Arguments<'_>, _target: &Target) -> Result<Stages, FormulaError> {
    let (rows, channels) = (arguments.size()?, arguments.size()?);
    let (values_per_channel, acc_itemsize) = (arguments.size()?, arguments.size()?);
    let staging = channels_last_staging(rows, channels, values_per_channel, acc_itemsize)?;
    Ok(vec![
        vec![
            Step::Alloc { slot: 0, bytes: staging.partials_bytes },
            Step::Alloc { slot: 1, bytes: staging.semaphore_bytes },
        ],
        vec![Step::Free { slot: 1 }, Step::Free { slot: 0 }],
    ])
}

/// The largest power of two not above `n`; 1 for 0.
const fn last_power_of_two(n: u64) -> u64 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_shapes() {
        // torch.ops.aten.native_batch_norm(_backward) of [rows, channels] on the virtual GPU, cuDNN off.
        for (rows, channels, statistics, backward, semaphores) in [
            (1000, 64, 0, 0, 0),
            (2000, 64, 8_192, 4_096, 8),
            (100_000, 64, 131_072, 65_536, 8),
            (100_000, 3, 1_200, 600, 8),
            (100_000, 1000, 2_048_000, 1_024_000, 128),
            (3000, 2048, 393_216, 196_608, 256),
            (25_088, 256, 401_408, 200_704, 32),
            (2048, 17, 0, 0, 0),
            (5000, 512, 163_840, 81_920, 64),
        ] {
            for (values, partials_bytes) in [(4, statistics), (2, backward)] {
                let expected = BatchNormStaging { partials_bytes, semaphore_bytes: semaphores };
                assert_eq!(
                    channels_last_staging(rows, channels, values, 4),
                    Ok(expected),
                    "{rows} {channels} {values}"
                );
            }
        }
    }
}
