//! Recurrent networks. cuDNN sizes them for a live handle only, so two of the four sizes are guesses.
//!
//! Exact: the weights, whose layout (per layer and direction the input weights, then the recurrent ones, the biases of
//! all after them) gives what PyTorch checks it for. Guessed, from what the passes must keep, as the estimator guesses:
//! the workspace holds the gates of one layer, the reserve what each layer's backward reads.

use super::CUDNN;
use super::tensor::{TENSORS, Tensor};
use crate::arguments::{In, Out};
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};
use crate::counts::note_guess;

/// A network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Rnn {
    cell: i32,
    bias: i32,
    bidirectional: bool,
    data_type: i32,
    input: u64,
    hidden: u64,
    projection: u64,
    layers: u64,
}

/// `cudnnRNNMode_t`.
const LSTM: i32 = 2;
const GRU: i32 = 3;
/// `CUDNN_RNN_NO_BIAS`, `CUDNN_RNN_DOUBLE_BIAS`.
const NO_BIAS: i32 = 0;
const DOUBLE_BIAS: i32 = 2;
/// `CUDNN_FWD_MODE_TRAINING`.
const TRAINING: i32 = 1;

static NETWORKS: Registry<Rnn> = Registry::new();
/// Time steps times samples of each data descriptor, padding left out.
static DATA: Registry<u64> = Registry::new();

/// Where a matrix or vector lies in the weights, in elements, and its rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    offset: u64,
    rows: u64,
    columns: u64,
}

impl Rnn {
    const fn gates(&self) -> u64 {
        match self.cell {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    /// Numbers per hidden unit and step that backward needs: gates, cell and hidden state (LSTM); gates, the hidden
    /// part of the candidate and the hidden state (GRU); twice the hidden state.
    const fn reserved(&self) -> u64 {
        match self.cell {
            LSTM => 6,
            GRU => 5,
            _ => 2,
        }
    }

    const fn directions(&self) -> u64 {
        if self.bidirectional { 2 } else { 1 }
    }

    const fn output(&self) -> u64 {
        if self.projection == 0 { self.hidden } else { self.projection }
    }

    /// `cudnnDataType_t`: double, half and bfloat16, otherwise 4 bytes.
    const fn item_bytes(&self) -> u64 {
        match self.data_type {
            1 => 8,
            2 | 9 => 2,
            _ => 4,
        }
    }

    const fn bias_vectors(&self) -> u64 {
        match self.bias {
            NO_BIAS => 0,
            DOUBLE_BIAS => 2,
            _ => 1,
        }
    }

    const fn input_of(&self, layer: u64) -> u64 {
        if layer == 0 { self.input } else { self.output() * self.directions() }
    }

    /// Elements of the matrices of one layer and direction.
    const fn matrix_elements(&self, layer: u64) -> u64 {
        let gates = self.gates() * self.hidden * (self.input_of(layer) + self.output());
        gates + self.projection * self.hidden
    }

    const fn bias_elements(&self) -> u64 {
        self.bias_vectors() * self.gates() * self.hidden
    }

    /// Elements before the matrices of pseudo-layer `index` (layers times directions).
    fn elements_before(&self, index: u64) -> u64 {
        // All layers but the first are alike.
        let first = index.min(self.directions());
        first * self.matrix_elements(0) + (index - first) * self.matrix_elements(1)
    }

    fn weight_elements(&self) -> u64 {
        let layers = self.layers * self.directions();
        self.elements_before(layers) + layers * self.bias_elements()
    }

    /// Matrix and bias number `id` of pseudo-layer `index`; a bias that is not there has no elements.
    fn parts(&self, index: u64, id: u64) -> Result<(Part, Part), Failure> {
        let (gates, pseudo_layers) = (self.gates(), self.layers * self.directions());
        let has_projection = u64::from(self.projection != 0);
        if index >= pseudo_layers || id >= 2 * gates + has_projection {
            return Err(Failure::InvalidValue);
        }
        let start = self.elements_before(index);
        let columns = self.input_of(index / self.directions());
        let recurrent = start + gates * self.hidden * columns;
        let matrix = if id < gates {
            Part { offset: start + id * self.hidden * columns, rows: self.hidden, columns }
        } else if id < 2 * gates {
            let offset = recurrent + (id - gates) * self.hidden * self.output();
            Part { offset, rows: self.hidden, columns: self.output() }
        } else {
            let offset = recurrent + gates * self.hidden * self.output();
            Part { offset, rows: self.projection, columns: self.hidden }
        };
        let biases = self.elements_before(pseudo_layers) + index * self.bias_elements();
        let has_bias = id < gates * self.bias_vectors();
        let bias = Part {
            offset: biases + if has_bias { id * self.hidden } else { 0 },
            rows: if has_bias { self.hidden } else { 0 },
            columns: 1,
        };
        Ok((matrix, bias))
    }

    const fn workspace_bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.gates() * self.hidden * self.directions() * self.item_bytes())
    }

    const fn reserve_bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.reserved() * self.hidden * self.directions() * self.layers * self.item_bytes())
    }

    /// Whether all of its sizes are far from overflowing.
    fn is_possible(&self) -> bool {
        let all = [self.input, self.hidden, self.projection, self.layers].map(|size| u128::from(size.max(1)));
        // No weights are larger than the widest layer's, in both directions, four gates of it, in all layers.
        all.iter().product::<u128>().saturating_mul(all[1]) < 1 << 56
    }
}

fn size(value: i32) -> Result<u64, Failure> {
    u64::try_from(value).map_err(|_| Failure::InvalidValue)
}

/// Describe a part of the weights in `tensor`, if the caller brings one, and say where it lies.
fn describe(tensor: Handle, address: Out<u64>, part: Part, rnn: &Rnn, weights: u64) -> Result<(), Failure> {
    if part.rows == 0 {
        address.set_if_given(0);
        return Ok(());
    }
    let int = |value: u64| i32::try_from(value).map_err(|_| Failure::InvalidValue);
    let sizes = vec![1, int(part.rows)?, int(part.columns)?];
    let strides = vec![int(part.rows * part.columns)?, int(part.columns)?, 1];
    if tensor != 0 {
        TENSORS.replace(tensor, Tensor { data_type: rnn.data_type, format: 0, sizes, strides })?;
    }
    address.set_if_given(weights.wrapping_add(part.offset * rnn.item_bytes()));
    Ok(())
}

entry_points! { CUDNN;

fn cudnnCreateRNNDescriptor(rnn: Out<Handle>) {
    rnn.set(NETWORKS.add(Rnn::default()))
}

fn cudnnDestroyRNNDescriptor(rnn: Handle) {
    NETWORKS.remove(rnn).map(|_| ())
}

fn cudnnCreateRNNDataDescriptor(data: Out<Handle>) {
    data.set(DATA.add(0))
}

fn cudnnDestroyRNNDataDescriptor(data: Handle) {
    DATA.remove(data).map(|_| ())
}

fn cudnnSetRNNDescriptor_v8(
    rnn: Handle, _algorithm: i32, cell: i32, bias: i32, direction: i32, _input_mode: i32, data_type: i32,
    _precision: i32, _math: i32, input: i32, hidden: i32, projection: i32, layers: i32, _dropout: Handle, _flags: u32,
) {
    let (input, hidden, projection, layers) = (size(input)?, size(hidden)?, size(projection)?, size(layers)?);
    // A projection to the hidden size is none.
    let projection = if projection == hidden { 0 } else { projection };
    let described = Rnn { cell, bias, bidirectional: direction == 1, data_type, input, hidden, projection, layers };
    if !described.is_possible() {
        return Err(Failure::InvalidValue);
    }
    NETWORKS.replace(rnn, described)
}

fn cudnnSetRNNDataDescriptor(
    data: Handle, _data_type: i32, _layout: i32, _longest: i32, samples: i32, _width: i32, lengths: In<i32>,
    _padding: usize,
) {
    let lengths = lengths.get_all(samples)?;
    DATA.replace(data, lengths.into_iter().map(|length| u64::try_from(length).unwrap_or(0)).sum())
}

fn cudnnGetRNNWeightSpaceSize(_handle: Handle, rnn: Handle, bytes: Out<u64>) {
    let rnn = NETWORKS.get(rnn)?;
    bytes.set(rnn.weight_elements() * rnn.item_bytes())
}

fn cudnnGetRNNTempSpaceSizes(
    _handle: Handle, rnn: Handle, mode: i32, data: Handle, workspace_bytes: Out<u64>, reserve_bytes: Out<u64>,
) {
    note_guess("cudnnGetRNNTempSpaceSizes");
    let (rnn, rows) = (NETWORKS.get(rnn)?, DATA.get(data)?);
    workspace_bytes.set_if_given(rnn.workspace_bytes(rows));
    reserve_bytes.set_if_given(if mode == TRAINING { rnn.reserve_bytes(rows) } else { 0 });
    Ok(())
}

fn cudnnGetRNNWeightParams(
    _handle: Handle, rnn: Handle, layer: i32, _weight_bytes: usize, weights: u64, id: i32, matrix: Handle,
    matrix_address: Out<u64>, bias: Handle, bias_address: Out<u64>,
) {
    let rnn = NETWORKS.get(rnn)?;
    let (matrix_part, bias_part) = rnn.parts(size(layer)?, size(id)?)?;
    describe(matrix, matrix_address, matrix_part, &rnn, weights)?;
    describe(bias, bias_address, bias_part, &rnn, weights)
}

}

#[cfg(test)]
mod tests {
    use super::*;

    fn lstm(projection: u64, bidirectional: bool) -> Rnn {
        Rnn { cell: LSTM, bias: DOUBLE_BIAS, bidirectional, data_type: 0, input: 5, hidden: 7, projection, layers: 2 }
    }

    /// `sum(p.numel() for p in torch.nn.LSTM(5, 7, 2, ...).parameters())`.
    #[test]
    fn weights_have_as_many_elements_as_pytorchs_parameters() {
        assert_eq!(lstm(0, false).weight_elements(), 840);
        assert_eq!(lstm(0, true).weight_elements(), 2072);
        assert_eq!(lstm(3, false).weight_elements(), 546);
    }

    #[test]
    fn parts_fill_the_weights_without_gap_or_overlap() {
        for rnn in [lstm(0, false), lstm(0, true), lstm(3, true), Rnn { cell: GRU, ..lstm(0, true) }] {
            let mut parts = Vec::new();
            for layer in 0..rnn.layers * rnn.directions() {
                for id in 0..2 * rnn.gates() + u64::from(rnn.projection != 0) {
                    let (matrix, bias) = rnn.parts(layer, id).unwrap();
                    parts.extend([matrix, bias].into_iter().filter(|part| part.rows != 0));
                }
                assert!(rnn.parts(layer, 2 * rnn.gates() + 1).is_err());
            }
            parts.sort_by_key(|part| part.offset);
            let end = parts.iter().fold(0, |at, part| {
                assert_eq!(part.offset, at, "{rnn:?}");
                at + part.rows * part.columns
            });
            assert_eq!(end, rnn.weight_elements(), "{rnn:?}");
        }
    }
}
