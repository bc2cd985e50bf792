//! Backend descriptors (`cudnn_graph.h`): all but execution goes to the real cuDNN, which is given the description of the
//! card where it would have been given a handle. Without a real cuDNN, `store` keeps them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::real::{Descriptor, attribute_type, cudnn, kind};
use super::{CUDNN, planning, store};
use crate::arguments::{MOST_ITEMS, Out};
use crate::counts::count_launch;
use crate::entry::{Failure, Outcome, entry_points};
use crate::handles::Registry;
use crate::platform::{Trace, say, trace_level};

/// `CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE`.
const PLAN_WORKSPACE_SIZE: i32 = 402;

/// Real descriptors of the program, as addresses; with the attribute that takes the description of the card, if one does.
static LIVE: Mutex<BTreeMap<usize, Option<i32>>> = Mutex::new(BTreeMap::new());
/// Variant packs hold addresses of device memory, for an execution that does not happen.
static VARIANT_PACKS: Registry<()> = Registry::new();

fn live() -> MutexGuard<'static, BTreeMap<usize, Option<i32>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attribute of `descriptor` for the card.
///
/// # Errors
/// [`Failure::InvalidValue`] if the program has no such descriptor: cuDNN would follow the address.
fn known(descriptor: usize) -> Result<Option<i32>, Failure> {
    live().get(&descriptor).copied().ok_or(Failure::InvalidValue)
}

/// Whether cuDNN may read or write `count` values of a type at `values`.
fn checked(of: i32, count: i64, values: *const c_void) -> Outcome {
    let count = usize::try_from(count).ok().filter(|&count| count <= MOST_ITEMS).ok_or(Failure::InvalidValue)?;
    if of != attribute_type::BACKEND_DESCRIPTOR || values.is_null() {
        return Ok(());
    }
    // SAFETY: the program says that `count` descriptors lie there.
    let descriptors = (0..count).map(|index| unsafe { values.cast::<usize>().add(index).read_unaligned() });
    descriptors.map(known).collect::<Result<Vec<_>, _>>().map(|_| ())
}

/// The `..._DEVICEPROP` attribute of a kind of descriptor.
const fn card_attribute(of: i32) -> Option<i32> {
    match of {
        kind::ENGINE_HEURISTIC => Some(204),
        kind::EXECUTION_PLAN => Some(407),
        kind::ENGINE => Some(1307),
        _ => None,
    }
}

entry_points! { CUDNN;

fn cudnnBackendCreateDescriptor(of: i32, descriptor: Out<usize>) {
    if !descriptor.is_given() {
        return Err(Failure::InvalidValue);
    }
    let Some(real) = cudnn() else { return descriptor.set(store::create(of)) };
    if of == kind::VARIANT_PACK {
        return descriptor.set(VARIANT_PACKS.add(()));
    }
    let made = real.create(of)? as usize;
    live().insert(made, card_attribute(of));
    descriptor.set(made)
}

fn cudnnBackendDestroyDescriptor(descriptor: usize) {
    let Some(real) = cudnn() else { return store::destroy(descriptor) };
    if VARIANT_PACKS.remove(descriptor).is_ok() {
        return Ok(());
    }
    live().remove(&descriptor).ok_or(Failure::InvalidValue)?;
    planning::forget(descriptor);
    real.destroy(descriptor as Descriptor)
}

fn cudnnBackendFinalize(descriptor: usize) {
    let Some(real) = cudnn() else { return store::knows(descriptor) };
    if VARIANT_PACKS.knows(descriptor) {
        return Ok(());
    }
    let attribute = known(descriptor)?;
    if let Some(attribute) = attribute {
        // A descriptor that refuses it fails in finalization, with cuDNN's own reason.
        let _ = real.set_card(descriptor as Descriptor, attribute);
    }
    if attribute == card_attribute(kind::EXECUTION_PLAN) {
        if planning::is_superfluous(real, descriptor) {
            return Err(Failure::Library(CUDNN.not_supported));
        }
        return real.finalize(descriptor as Descriptor).inspect(|()| planning::planned());
    }
    if attribute == card_attribute(kind::ENGINE_HEURISTIC) {
        planning::begin();
    }
    real.finalize(descriptor as Descriptor)
}

fn cudnnBackendExecute(_handle: usize, _plan: usize, _variant_pack: usize) {
    count_launch();
    Ok(())
}

fn cudnnBackendSetAttribute(descriptor: usize, name: i32, of: i32, count: i64, values: *const c_void) {
    let Some(real) = cudnn() else { return store::set(descriptor, name, of, count, values) };
    // Handles are ours and stand for no device; the card's description takes their place.
    if of == attribute_type::HANDLE || VARIANT_PACKS.knows(descriptor) {
        return Ok(());
    }
    known(descriptor)?;
    checked(of, count, values)?;
    if name == planning::PLAN_CONFIGURATION && of == attribute_type::BACKEND_DESCRIPTOR {
        planning::note_configuration(descriptor, values);
    }
    real.set(descriptor as Descriptor, name, of, count, values)
}

fn cudnnBackendGetAttribute(
    descriptor: usize,
    name: i32,
    of: i32,
    wanted: i64,
    count: *mut i64,
    values: *mut c_void,
) {
    let Some(real) = cudnn() else { return store::get(descriptor, name, wanted, count, values) };
    known(descriptor)?;
    checked(of, wanted, values)?;
    real.get(descriptor as Descriptor, name, of, wanted, count, values)?;
    if trace_level() == Trace::Calls && name == PLAN_WORKSPACE_SIZE && !values.is_null() {
        // SAFETY: the real library has just written this attribute, an `int64_t`.
        say(&format!("cudnn plan workspace {}", unsafe { values.cast::<i64>().read_unaligned() }));
    }
    Ok(())
}

}
