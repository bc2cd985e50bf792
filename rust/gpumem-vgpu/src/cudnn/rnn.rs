//! Recurrent networks. cuDNN sizes them for a live handle only, so two of the four sizes are guesses.
//!
//! Exact: the weights, whose layout (per layer and direction the input weights, then the recurrent ones, the biases of
//! all after them) gives what PyTorch checks it for. Guessed, as the estimator guesses (`extraction/ops/recurrent_cudnn.py`):
//! workspace and reserve, in the form of three readings of cuDNN 7 that were published (pytorch#2895, a P100;
//! deepspeech.pytorch#172). Whether later versions keep to them is not known.

use super::CUDNN;
use super::tensor::{TENSORS, Tensor};
use crate::arguments::{In, Out};
use crate::counts::note_guess;
use crate::entry::{Failure, entry_points};
use crate::handles::{Handle, Registry};

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
static DATA: Registry<Data> = Registry::new();

/// What a data descriptor says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Data {
    samples: u64,
    /// Time steps times samples, padding left out.
    rows: u64,
}

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

    /// Numbers per hidden unit, step and layer that backward needs, outputs left out.
    const fn reserved(&self) -> u64 {
        match self.cell {
            LSTM => 5,
            GRU => 6,
            _ => 1,
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

    /// The matrices once more, and what is at work for one step; both directions' results if there are two.
    fn workspace_bytes(&self, data: Data) -> u64 {
        let width = self.hidden * self.directions();
        let step = data.samples.saturating_mul(width * self.layers * (3 * self.gates() - 1));
        let both = if self.bidirectional { data.rows.saturating_mul(2 * width) } else { 0 };
        let matrices = self.elements_before(self.layers * self.directions());
        matrices.saturating_add(step).saturating_add(both).saturating_mul(self.item_bytes())
    }

    /// What each layer keeps for its backward, and the outputs of all layers but the last, whose output is the program's.
    const fn reserve_bytes(&self, data: Data) -> u64 {
        let per_row = self.reserved() * self.layers + self.layers.saturating_sub(1);
        data.rows.saturating_mul(per_row * self.hidden * self.directions() * self.item_bytes())
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
    data.set(DATA.add(Data::default()))
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
    let rows = lengths.iter().map(|&length| u64::try_from(length).unwrap_or(0)).sum();
    DATA.replace(data, Data { samples: size(samples)?, rows })
}

fn cudnnGetRNNWeightSpaceSize(_handle: Handle, rnn: Handle, bytes: Out<u64>) {
    let rnn = NETWORKS.get(rnn)?;
    bytes.set(rnn.weight_elements() * rnn.item_bytes())
}

fn cudnnGetRNNTempSpaceSizes(
    _handle: Handle, rnn: Handle, mode: i32, data: Handle, workspace_bytes: Out<u64>, reserve_bytes: Out<u64>,
) {
    note_guess("cudnnGetRNNTempSpaceSizes");
    let (rnn, data) = (NETWORKS.get(rnn)?, DATA.get(data)?);
    workspace_bytes.set_if_given(rnn.workspace_bytes(data));
    reserve_bytes.set_if_given(if mode == TRAINING { rnn.reserve_bytes(data) } else { 0 });
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

    /// pytorch#2895: four layers of 320, 123 inputs, 100 samples of 250 steps (the sizes follow from the parameters and
    /// from the reserves, which have no other integer factors); deepspeech.pytorch#172: `[326, 64, 672]` and its next.
    #[test]
    fn sizes_are_those_that_were_read_from_cudnn_7() {
        let data = Data { samples: 100, rows: 25_000 };
        let network = Rnn { bidirectional: false, input: 123, hidden: 320, layers: 4, ..lstm(0, false) };
        assert_eq!((network.workspace_bytes(data), network.reserve_bytes(data)), (17_730_560, 736_000_000));
        let network = Rnn { cell: GRU, ..network };
        assert_eq!((network.workspace_bytes(data), network.reserve_bytes(data)), (13_169_920, 864_000_000));
        let data = Data { samples: 64, rows: 326 * 64 };
        for (input, workspace) in [(672, 313_344_000_u64), (800, 315_801_600)] {
            let network = Rnn { bidirectional: true, input, hidden: 800, layers: 1, ..network };
            assert_eq!(network.reserve_bytes(data), 801_177_600);
            // Of two directions one reading is not enough to tell what is at work for one step.
            assert!(network.workspace_bytes(data).abs_diff(workspace) < workspace / 20);
        }
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
