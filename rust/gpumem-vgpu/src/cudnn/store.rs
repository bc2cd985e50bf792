//! Backend descriptors without a real cuDNN: attributes are kept, and heuristics find one engine.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use super::real::{attribute_type, kind};
use crate::arguments::MOST_ITEMS;
use crate::entry::{Failure, Outcome};
use crate::handles::{Handle, Registry};
use crate::platform::platform;

/// Attribute names of `cudnn_graph.h`.
mod name {
    pub(super) const HEURISTIC_OPERATION_GRAPH: i32 = 201;
    pub(super) const HEURISTIC_RESULTS: i32 = 202;
    pub(super) const CONFIGURATION_ENGINE: i32 = 300;
    pub(super) const CONFIGURATION_WORKSPACE_SIZE: i32 = 303;
    pub(super) const PLAN_WORKSPACE_SIZE: i32 = 402;
    pub(super) const GRAPH_ENGINE_COUNT: i32 = 802;
    pub(super) const ENGINE_OPERATION_GRAPH: i32 = 1300;
    pub(super) const ENGINE_GLOBAL_INDEX: i32 = 1301;
}

const INT64: i32 = attribute_type::INT64;

/// What an attribute holds.
#[derive(Debug, Clone)]
enum Value {
    Bytes { item: usize, bytes: Vec<u8> },
    Descriptors(Vec<Shared>),
}

#[derive(Debug)]
struct Descriptor {
    kind: i32,
    attributes: BTreeMap<i32, Value>,
}

/// A descriptor lives as long as the program or another descriptor holds it.
type Shared = Arc<Mutex<Descriptor>>;

static DESCRIPTORS: Registry<Shared> = Registry::new();

fn new(kind: i32) -> Shared {
    Arc::new(Mutex::new(Descriptor { kind, attributes: BTreeMap::new() }))
}

fn with<T>(descriptor: &Shared, action: impl FnOnce(&mut Descriptor) -> T) -> T {
    action(&mut descriptor.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Bytes of one value of an attribute type.
const fn item_bytes(of: i32) -> usize {
    match of {
        2 | 24 => 1,                                                                      // boolean, character
        attribute_type::HANDLE | attribute_type::BACKEND_DESCRIPTOR | INT64 | 5 | 6 => 8, // and double, pointer
        26 => 16,                                                                         // fraction
        _ => 4,                                                                           // enumerations, float, int32
    }
}

/// A new descriptor.
pub(super) fn create(of: i32) -> Handle {
    DESCRIPTORS.add(new(of))
}

/// The program gives the descriptor up.
pub(super) fn destroy(descriptor: Handle) -> Outcome {
    DESCRIPTORS.remove(descriptor).map(|_| ())
}

/// Whether it is one of ours.
pub(super) fn knows(descriptor: Handle) -> Outcome {
    if DESCRIPTORS.knows(descriptor) { Ok(()) } else { Err(Failure::InvalidValue) }
}

/// Keep an attribute.
pub(super) fn set(descriptor: Handle, name: i32, of: i32, count: i64, values: *const c_void) -> Outcome {
    let descriptor = DESCRIPTORS.get(descriptor)?;
    let count = usize::try_from(count).ok().filter(|&count| count <= MOST_ITEMS).ok_or(Failure::InvalidValue)?;
    let item = item_bytes(of);
    let mut bytes = vec![0_u8; count * item];
    if !bytes.is_empty() {
        if values.is_null() {
            return Err(Failure::InvalidValue);
        }
        // SAFETY: the program says that `count` values of this type lie there.
        unsafe { values.cast::<u8>().copy_to(bytes.as_mut_ptr(), bytes.len()) };
    }
    let value = if of == attribute_type::BACKEND_DESCRIPTOR {
        Value::Descriptors(handles(&bytes).map(|handle| DESCRIPTORS.get(handle)).collect::<Result<_, _>>()?)
    } else {
        Value::Bytes { item, bytes }
    };
    with(&descriptor, |descriptor| descriptor.attributes.insert(name, value));
    Ok(())
}

/// Answer with an attribute; what was never set has no values.
pub(super) fn get(descriptor: Handle, name: i32, wanted: i64, count: *mut i64, values: *mut c_void) -> Outcome {
    let descriptor = DESCRIPTORS.get(descriptor)?;
    let (of_kind, value) =
        with(&descriptor, |it| (it.kind, computed(it, name).or_else(|| it.attributes.get(&name).cloned())));
    let has = match value.as_ref().ok_or(()).map_or(0, |value| match value {
        Value::Bytes { item, bytes } => bytes.len() / item,
        Value::Descriptors(all) => all.len(),
    }) {
        0 if of_kind == kind::ENGINE_HEURISTIC && name == name::HEURISTIC_RESULTS => 1,
        has => has,
    };
    if !count.is_null() {
        // SAFETY: not null, and a place for the number of values by the function's documentation.
        unsafe { count.write_unaligned(i64::try_from(has).unwrap_or(i64::MAX)) };
    }
    let taken = has.min(usize::try_from(wanted).unwrap_or(0));
    if taken == 0 || values.is_null() {
        return Ok(());
    }
    match value {
        Some(Value::Bytes { item, bytes }) => {
            // SAFETY: the program has room for `wanted` values, and no more are written.
            unsafe { values.cast::<u8>().copy_from(bytes.as_ptr(), taken * item) };
            Ok(())
        }
        Some(Value::Descriptors(all)) => {
            // Descriptors are answered by filling in those that the program brings.
            for (index, source) in all.iter().take(taken).enumerate() {
                fill(target_at(values, index), source)?;
            }
            Ok(())
        }
        None => {
            let engine = engine_of(&descriptor);
            let configuration = new(kind::ENGINE_CONFIGURATION);
            with(&configuration, |it| {
                it.attributes.insert(name::CONFIGURATION_ENGINE, Value::Descriptors(vec![engine]))
            });
            fill(target_at(values, 0), &configuration)
        }
    }
}

/// What is not kept but follows from the settings.
fn computed(descriptor: &Descriptor, name: i32) -> Option<Value> {
    let number = match (descriptor.kind, name) {
        (kind::EXECUTION_PLAN, name::PLAN_WORKSPACE_SIZE)
        | (kind::ENGINE_CONFIGURATION, name::CONFIGURATION_WORKSPACE_SIZE) => {
            i64::try_from(platform().ok()?.config.cudnn_stub_workspace_bytes).unwrap_or(i64::MAX)
        }
        (kind::OPERATION_GRAPH, name::GRAPH_ENGINE_COUNT) => 1,
        _ => return None,
    };
    Some(int64(number))
}

/// The one engine for the operation graph of a heuristic.
fn engine_of(heuristic: &Shared) -> Shared {
    let graph = with(heuristic, |it| it.attributes.get(&name::HEURISTIC_OPERATION_GRAPH).cloned());
    let engine = new(kind::ENGINE);
    with(&engine, |it| {
        it.attributes.extend(graph.map(|graph| (name::ENGINE_OPERATION_GRAPH, graph)));
        it.attributes.insert(name::ENGINE_GLOBAL_INDEX, int64(0));
    });
    engine
}

fn int64(number: i64) -> Value {
    Value::Bytes { item: item_bytes(INT64), bytes: number.to_ne_bytes().to_vec() }
}

fn handles(bytes: &[u8]) -> impl Iterator<Item = Handle> + '_ {
    bytes.chunks_exact(size_of::<Handle>()).map(|chunk| {
        let mut handle = [0; size_of::<Handle>()];
        handle.copy_from_slice(chunk);
        Handle::from_ne_bytes(handle)
    })
}

fn target_at(values: *mut c_void, index: usize) -> Handle {
    // SAFETY: the program's array of descriptors, which has at least as many as it wants filled in.
    unsafe { ptr::read_unaligned(values.cast::<Handle>().add(index)) }
}

/// Copy the attributes of `source` to the descriptor that the program holds as `target`.
fn fill(target: Handle, source: &Shared) -> Outcome {
    let target = DESCRIPTORS.get(target)?;
    if Arc::ptr_eq(&target, source) {
        return Ok(());
    }
    let attributes = with(source, |it| it.attributes.clone());
    with(&target, |it| it.attributes.extend(attributes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(descriptor: Handle, name: i32) -> (i64, i64) {
        let (mut count, mut value) = (-1_i64, -1_i64);
        assert_eq!(get(descriptor, name, 1, &raw mut count, (&raw mut value).cast()), Ok(()));
        (count, value)
    }

    fn put(descriptor: Handle, name: i32, of: i32, value: i64) -> Outcome {
        set(descriptor, name, of, 1, (&raw const value).cast())
    }

    #[test]
    fn a_heuristic_finds_one_engine_with_its_graph() {
        let (graph, heuristic) = (create(kind::OPERATION_GRAPH), create(kind::ENGINE_HEURISTIC));
        put(graph, 900, INT64, 42).unwrap();
        let as_i64 = |handle: Handle| i64::try_from(handle).unwrap();
        put(heuristic, name::HEURISTIC_OPERATION_GRAPH, attribute_type::BACKEND_DESCRIPTOR, as_i64(graph)).unwrap();
        destroy(graph).unwrap();
        assert_eq!(read(heuristic, 12345), (0, -1));
        let (configuration, engine, copy) = (create(3), create(2), create(15));
        let fetch = |from: Handle, name: i32, into: Handle| {
            let (mut count, mut into) = (0_i64, into);
            get(from, name, 1, &raw mut count, (&raw mut into).cast()).unwrap();
            assert_eq!(count, 1);
        };
        fetch(heuristic, name::HEURISTIC_RESULTS, configuration);
        fetch(configuration, name::CONFIGURATION_ENGINE, engine);
        fetch(engine, name::ENGINE_OPERATION_GRAPH, copy);
        assert_eq!((read(engine, name::ENGINE_GLOBAL_INDEX), read(copy, 900)), ((1, 0), (1, 42)));
        assert_eq!(read(configuration, name::CONFIGURATION_WORKSPACE_SIZE), (1, 0));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert_eq!(put(1, 900, INT64, 1), Err(Failure::InvalidValue));
        let descriptor = create(17);
        for count in [-1, i64::MAX] {
            assert_eq!(set(descriptor, 900, INT64, count, (&raw const count).cast()), Err(Failure::InvalidValue));
        }
        assert_eq!(set(descriptor, 900, INT64, 1, ptr::null()), Err(Failure::InvalidValue));
        assert_eq!(put(descriptor, 900, attribute_type::BACKEND_DESCRIPTOR, 1), Err(Failure::InvalidValue));
        assert_eq!((destroy(descriptor), destroy(descriptor)), (Ok(()), Err(Failure::InvalidValue)));
    }
}
