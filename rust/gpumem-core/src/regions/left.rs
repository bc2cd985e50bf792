//! What regions leave behind between their forward and backward passes, as a sum over regions.
//!
//! A storage that several regions hold lives as long as one of them holds it, which is no sum. Each is given to one
//! region: what is held in every plan that has it, and what the requesting region itself holds, to that region; the rest to
//! the first that holds it in any variant. A storage that another one holds on to is left out, so that the sum is never more
//! than what is there.

use crate::regions::prepared::{Deed, Prepared};
use crate::regions::trial::block_bytes;

/// Nobody's.
const NOBODY: usize = usize::MAX;

/// Keys of the last step.
struct Keys {
    bytes: Vec<u64>,
    /// Place of the region whose forward pass requests it.
    place: Vec<usize>,
}

/// Per variant and place in `order`, the bytes that a region leaves behind: what is still held when the backward pass of
/// the region behind it begins.
pub(super) fn left_bytes(prepared: &Prepared<'_>, order: &[usize]) -> Vec<Vec<u64>> {
    let keys = keys(prepared, order);
    let behind: Vec<u32> = (0..order.len()).map(|place| engine_begins(prepared, order.get(place + 1))).collect();
    let holders = &prepared.space.holders;
    let variants = prepared.acts.len();
    let mut left = vec![vec![0; order.len()]; variants];
    let mut owner = vec![NOBODY; keys.bytes.len()];
    // Sure to be there when the region behind begins its backward pass.
    let is_sure = |key: usize, place: usize, variant: usize| {
        holders.is_sure_at(key, behind[place], &prepared.space.variants[variant])
    };
    for (key, &place) in keys.place.iter().enumerate().filter(|&(_, &place)| place != NOBODY) {
        for (variant, left) in left.iter_mut().enumerate() {
            if is_sure(key, place, variant) {
                left[place] += keys.bytes[key];
            }
        }
    }
    for own in [true, false] {
        for (place, &region) in order.iter().enumerate() {
            for variant in 0..variants {
                for &(key, end) in holders.of(region, variant) {
                    let key = key as usize;
                    let is_left = end.run() >= behind[place] && !is_sure(key, place, variant);
                    if is_left && owner[key] == NOBODY && (!own || keys.place[key] == place) {
                        owner[key] = place;
                    }
                }
            }
        }
    }
    for (place, &region) in order.iter().enumerate() {
        for (variant, left) in left.iter_mut().enumerate() {
            for &(key, end) in holders.of(region, variant) {
                let key = key as usize;
                if owner[key] == place && end.run() >= behind[place] && !is_sure(key, place, variant) {
                    left[place] += keys.bytes[key];
                }
            }
        }
    }
    left
}

/// First run of the autograd engine in the last step that belongs to `region`, or to anyone.
fn engine_begins(prepared: &Prepared<'_>, region: Option<&usize>) -> u32 {
    let mut runs = (0_u32..).zip(&prepared.runs).skip(prepared.last_step());
    let found = runs.find(|(_, run)| run.in_engine() && region.is_none_or(|&region| run.region() == Some(region)));
    found.map_or(u32::MAX, |(number, _)| number)
}

fn keys(prepared: &Prepared<'_>, order: &[usize]) -> Keys {
    let mut keys = Keys { bytes: vec![0; prepared.keys], place: vec![NOBODY; prepared.keys] };
    let runs = prepared.runs.iter().enumerate().skip(prepared.last_step());
    // What the engine requests, gradients that one region's backward pass hands to the next, is no longer there then.
    for (number, run) in runs.filter(|(_, run)| !run.in_engine()) {
        let place = run.region().and_then(|region| order.iter().position(|&other| other == region));
        for act in prepared.acts[0][number].iter().filter(|act| act.deed == Deed::Alloc) {
            if let Some(bytes) = keys.bytes.get_mut(act.place as usize) {
                *bytes = block_bytes(act.bytes);
                keys.place[act.place as usize] = place.unwrap_or(NOBODY);
            }
        }
    }
    keys
}
