//! DLPack's structures, as far as they are used here, and memory that another library allocates.
//!
//! As of DLPack 1.3, the header `dlpack.h`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use pyo3::prelude::*;

/// `kDLCPU`.
pub(super) const CPU: i32 = 1;

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub(super) data: *mut c_void,
    pub(super) device_type: i32,
    pub(super) device_id: i32,
    pub(super) ndim: i32,
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
    pub(super) shape: *const i64,
    pub(super) strides: *const i64,
    pub(super) byte_offset: u64,
}

impl Tensor {
    pub(super) const NONE: Self = Self {
        data: ptr::null_mut(),
        device_type: 0,
        device_id: 0,
        ndim: 0,
        code: 0,
        bits: 0,
        lanes: 0,
        shape: ptr::null(),
        strides: ptr::null(),
        byte_offset: 0,
    };
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Managed {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: Tensor,
}

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);
type Allocate =
    unsafe extern "C" fn(*mut Tensor, *mut *mut Managed, *mut c_void, SetError) -> c_int;
type IntoObject = unsafe extern "C" fn(*mut Managed, *mut *mut c_void) -> c_int;

/// `DLPackExchangeAPI`: the functions by which a library describes and makes its arrays.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: Option<Allocate>,
    from_object: *const c_void,
    into_object: Option<IntoObject>,
    pub(super) describe: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    stream: *const c_void,
}

// SAFETY: pointers to functions and to tables that stay as they are while the process runs.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Memory that a library has allocated for an array of its own.
pub(super) struct Fresh {
    managed: *mut Managed,
    into_object: IntoObject,
}

impl Fresh {
    /// Ask for a packed vector on the CPU, of the type of `like`. Its entries are not initialised.
    /// `None` where there is none to be had, or none with memory of its own.
    pub(super) fn vector(table: &Table, like: &Tensor, entries: i64) -> Option<Self> {
        /// Whoever is asked instead will say what is wrong.
        unsafe extern "C" fn ignore(_: *mut c_void, _: *const c_char, _: *const c_char) {}

        let (allocate, into_object) = (table.allocate?, table.into_object?);
        let mut prototype = Tensor {
            device_type: CPU,
            ndim: 1,
            code: like.code,
            bits: like.bits,
            lanes: 1,
            shape: &raw const entries,
            ..Tensor::NONE
        };
        let mut managed = ptr::null_mut();
        // SAFETY: reads type, device and one length from the prototype, which outlive the call, and
        // writes a pointer, which stays null on failure.
        let status =
            unsafe { allocate(&raw mut prototype, &raw mut managed, ptr::null_mut(), ignore) };
        if status != 0 || managed.is_null() {
            return None;
        }
        let fresh = Self { managed, into_object };
        // SAFETY: allocated, and described by whoever did it.
        let found = unsafe { (*managed).tensor };
        // In some of its modes Torch wraps what it allocates, and shows no memory.
        let usual = found.device_type == CPU && found.ndim == 1 && !found.shape.is_null();
        // SAFETY: there is one length.
        let whole = usual && unsafe { *found.shape } == entries;
        (whole && !found.data.is_null()).then_some(fresh)
    }

    /// Where its entries are.
    pub(super) fn first(&self) -> *mut c_void {
        // SAFETY: allocated and not given away yet.
        let tensor = unsafe { &(*self.managed).tensor };
        tensor.data.wrapping_byte_add(usize::try_from(tensor.byte_offset).unwrap_or(0))
    }

    /// Give it to its library, as an array.
    pub(super) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let mut object = ptr::null_mut();
        let (managed, into_object) = (self.managed, self.into_object);
        std::mem::forget(self);
        // SAFETY: the function takes over what was allocated, and writes a new reference, or sets an
        // exception and answers something else than 0.
        unsafe {
            if into_object(managed, &raw mut object) != 0 {
                return Err(PyErr::fetch(py));
            }
            Bound::from_owned_ptr_or_err(py, object.cast())
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: it was not given away: this is the only owner.
        unsafe {
            if let Some(deleter) = (*self.managed).deleter {
                deleter(self.managed);
            }
        }
    }
}
