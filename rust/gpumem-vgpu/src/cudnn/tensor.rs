//! Tensor and filter descriptors: what is set is what is got.

use super::CUDNN;
use crate::arguments::{In, Out};
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};

/// `CUDNN_DIM_MAX`.
const MAX_DIMENSIONS: usize = 8;

/// A tensor or filter descriptor.
#[derive(Debug, Clone, Default)]
pub(super) struct Tensor {
    /// `cudnnDataType_t`.
    pub(super) data_type: i32,
    /// `cudnnTensorFormat_t`, of filters.
    pub(super) format: i32,
    /// Sizes.
    pub(super) sizes: Vec<i32>,
    /// Strides, of tensors.
    pub(super) strides: Vec<i32>,
}

/// All tensor and filter descriptors.
pub(super) static TENSORS: Registry<Tensor> = Registry::new();

fn checked(count: i32) -> Result<usize, Failure> {
    usize::try_from(count).ok().filter(|count| *count <= MAX_DIMENSIONS).ok_or(Failure::InvalidValue)
}

/// As many values as were asked for, and as there are.
fn first<T>(values: &[T], wanted: i32) -> &[T] {
    values.get(..usize::try_from(wanted).unwrap_or(0)).unwrap_or(values)
}

entry_points! { CUDNN;

fn cudnnCreateTensorDescriptor(tensor: Out<Handle>) {
    tensor.set(TENSORS.add(Tensor::default()))
}

fn cudnnDestroyTensorDescriptor(tensor: Handle) {
    TENSORS.remove(tensor).map(|_| ())
}

fn cudnnCreateFilterDescriptor(filter: Out<Handle>) {
    filter.set(TENSORS.add(Tensor::default()))
}

fn cudnnDestroyFilterDescriptor(filter: Handle) {
    TENSORS.remove(filter).map(|_| ())
}

fn cudnnSetTensorNdDescriptor(tensor: Handle, data_type: i32, count: i32, sizes: In<i32>, strides: In<i32>) {
    let count = checked(count)?;
    let (sizes, strides) = (sizes.get_all(count)?, strides.get_all(count)?);
    TENSORS.replace(tensor, Tensor { data_type, format: 0, sizes, strides })
}

fn cudnnGetTensorNdDescriptor(
    tensor: Handle,
    wanted: i32,
    data_type: Out<i32>,
    count: Out<i32>,
    sizes: Out<i32>,
    strides: Out<i32>,
) {
    let tensor = TENSORS.get(tensor)?;
    data_type.set(tensor.data_type)?;
    count.set(i32::try_from(tensor.sizes.len()).map_err(|_| Failure::InvalidValue)?)?;
    sizes.set_all(first(&tensor.sizes, wanted))?;
    strides.set_all(first(&tensor.strides, wanted))
}

fn cudnnSetFilterNdDescriptor(filter: Handle, data_type: i32, format: i32, count: i32, sizes: In<i32>) {
    let sizes = sizes.get_all(checked(count)?)?;
    TENSORS.replace(filter, Tensor { data_type, format, sizes, strides: Vec::new() })
}

fn cudnnGetFilterNdDescriptor(
    filter: Handle,
    wanted: i32,
    data_type: Out<i32>,
    format: Out<i32>,
    count: Out<i32>,
    sizes: Out<i32>,
) {
    let filter = TENSORS.get(filter)?;
    data_type.set(filter.data_type)?;
    format.set(filter.format)?;
    count.set(i32::try_from(filter.sizes.len()).map_err(|_| Failure::InvalidValue)?)?;
    sizes.set_all(first(&filter.sizes, wanted))
}

}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_values_than_wanted_or_there() {
        assert_eq!(first(&[1, 2, 3], 2), [1, 2]);
        assert_eq!(first(&[1, 2, 3], 5), [1, 2, 3]);
        assert_eq!(first(&[1, 2, 3], -1), [0; 0]);
        assert_eq!(
            (checked(8), checked(9), checked(-1)),
            (Ok(8), Err(Failure::InvalidValue), Err(Failure::InvalidValue))
        );
    }
}
