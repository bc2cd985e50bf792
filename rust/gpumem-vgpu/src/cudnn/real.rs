//! The real cuDNN, asked without a device: since version 9.8 its heuristics and plans answer from a description.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use super::device_properties;
use crate::entry::{Failure, Outcome};
use crate::platform::{platform, say};

/// A descriptor of the real library.
pub(super) type Descriptor = *mut c_void;

type Create = unsafe extern "C" fn(i32, *mut Descriptor) -> i32;
type Destroy = unsafe extern "C" fn(Descriptor) -> i32;
type Set = unsafe extern "C" fn(Descriptor, i32, i32, i64, *const c_void) -> i32;
type Get = unsafe extern "C" fn(Descriptor, i32, i32, i64, *mut i64, *mut c_void) -> i32;

/// Descriptor kinds of `cudnn_graph.h`.
pub(super) mod kind {
    pub(crate) const CONVOLUTION: i32 = 1;
    pub(crate) const ENGINE: i32 = 2;
    pub(crate) const ENGINE_CONFIGURATION: i32 = 3;
    pub(crate) const ENGINE_HEURISTIC: i32 = 4;
    pub(crate) const EXECUTION_PLAN: i32 = 5;
    pub(crate) const OPERATION_GRAPH: i32 = 15;
    pub(crate) const VARIANT_PACK: i32 = 16;
    pub(crate) const TENSOR: i32 = 17;
    pub(crate) const DEVICE_PROPERTIES: i32 = 38;
}

/// Attribute types of `cudnn_graph.h`.
pub(super) mod attribute_type {
    pub(crate) const HANDLE: i32 = 0;
    pub(crate) const DATA_TYPE: i32 = 1;
    pub(crate) const INT64: i32 = 3;
    pub(crate) const FLOAT: i32 = 4;
    pub(crate) const CONVOLUTION_MODE: i32 = 7;
    pub(crate) const HEURISTIC_MODE: i32 = 8;
    pub(crate) const NUMERICAL_NOTE: i32 = 11;
    pub(crate) const BACKEND_DESCRIPTOR: i32 = 15;
    pub(crate) const BEHAVIOR_NOTE: i32 = 19;
    pub(crate) const CHAR: i32 = 24;
}

/// `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
const JSON_REPRESENTATION: i32 = 2702;
const NAME: &CStr = c"libcudnn.so.9";

/// The functions of the real library, and the description of the card.
pub(super) struct Cudnn {
    create: Create,
    destroy: Destroy,
    finalize: Destroy,
    set: Set,
    get: Get,
    card: usize,
}

static REAL: OnceLock<Option<Cudnn>> = OnceLock::new();

/// Whether the real cuDNN answers; none before the first question.
pub(crate) fn asked() -> Option<bool> {
    REAL.get().map(Option::is_some)
}

/// The real cuDNN, if it is loaded, new enough and wanted.
pub(super) fn cudnn() -> Option<&'static Cudnn> {
    REAL.get_or_init(|| {
        let platform = platform().ok()?;
        if !platform.asks_real_cudnn() {
            return None;
        }
        let real = Cudnn::open(&device_properties::json(&platform.config));
        if real.is_none() {
            say("this cuDNN does not answer without a device (it has to be 9.8 or later): workspaces of convolutions are \
                 taken from GPUMEM_VGPU_CUDNN_STUB_WORKSPACE_BYTES");
        }
        real
    })
    .as_ref()
}

impl Cudnn {
    /// The real cuDNN with this description of a card, if it is loaded and new enough.
    pub(super) fn open(card: &str) -> Option<Self> {
        // SAFETY: a C string; PyTorch has loaded the library, whose functions have the types of `cudnn_graph.h`.
        let mut real = unsafe {
            let library = libc::dlopen(NAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            let symbol = |name: &CStr| {
                let found = libc::dlsym(library, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            Self {
                create: std::mem::transmute::<*mut c_void, Create>(symbol(c"cudnnBackendCreateDescriptor")?),
                destroy: std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cudnnBackendDestroyDescriptor")?),
                finalize: std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cudnnBackendFinalize")?),
                set: std::mem::transmute::<*mut c_void, Set>(symbol(c"cudnnBackendSetAttribute")?),
                get: std::mem::transmute::<*mut c_void, Get>(symbol(c"cudnnBackendGetAttribute")?),
                card: 0,
            }
        };
        let described = real.create(kind::DEVICE_PROPERTIES).ok()?;
        let length = i64::try_from(card.len()).ok()?;
        real.set(described, JSON_REPRESENTATION, attribute_type::CHAR, length, card.as_ptr().cast()).ok()?;
        real.finalize(described).ok()?;
        real.card = described as usize;
        Some(real)
    }

    /// A new descriptor.
    pub(super) fn create(&self, kind: i32) -> Result<Descriptor, Failure> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the place for the answer is live.
        status(unsafe { (self.create)(kind, &raw mut made) }).map(|()| made)
    }

    /// Destroy a descriptor.
    pub(super) fn destroy(&self, descriptor: Descriptor) -> Outcome {
        // SAFETY: the program got the descriptor from `create` and gives it up.
        status(unsafe { (self.destroy)(descriptor) })
    }

    /// Finalize a descriptor.
    pub(super) fn finalize(&self, descriptor: Descriptor) -> Outcome {
        // SAFETY: the program got the descriptor from `create`.
        status(unsafe { (self.finalize)(descriptor) })
    }

    /// Set an attribute.
    pub(super) fn set(&self, descriptor: Descriptor, name: i32, of: i32, count: i64, values: *const c_void) -> Outcome {
        // SAFETY: the arguments are those of the program's own call, or the card's description.
        status(unsafe { (self.set)(descriptor, name, of, count, values) })
    }

    /// Set an attribute to the description of the card.
    pub(super) fn set_card(&self, descriptor: Descriptor, name: i32) -> Outcome {
        let card = self.card;
        self.set(descriptor, name, attribute_type::BACKEND_DESCRIPTOR, 1, (&raw const card).cast())
    }

    /// Get an attribute.
    pub(super) fn get(
        &self,
        descriptor: Descriptor,
        name: i32,
        of: i32,
        wanted: i64,
        count: *mut i64,
        values: *mut c_void,
    ) -> Outcome {
        // SAFETY: the arguments are those of the program's own call.
        status(unsafe { (self.get)(descriptor, name, of, wanted, count, values) })
    }
}

const fn status(status: i32) -> Outcome {
    if status == 0 { Ok(()) } else { Err(Failure::Library(status)) }
}
