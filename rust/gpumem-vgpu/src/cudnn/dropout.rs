//! Dropout's random states.

use super::CUDNN;
use crate::arguments::Out;
use crate::counts::note_guess;
use crate::entry::entry_points;

/// A guess: cuDNN sizes the states by the threads of the card, and says the size to a live handle only.
const STATES_BYTES: usize = 1 << 20;

entry_points! { CUDNN;

fn cudnnDropoutGetStatesSize(_handle: usize, bytes: Out<usize>) {
    note_guess("cudnnDropoutGetStatesSize");
    bytes.set(STATES_BYTES)
}

}
