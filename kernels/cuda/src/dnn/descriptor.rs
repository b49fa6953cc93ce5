//! The library's objects, owned, and its statuses with their last words.

use crate::{
    calls::dnn as calls,
    device::{DeviceError, Stream},
    libraries::{Dnn, Missing},
};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnStatus_t as Status,
};
use std::{
    ffi::{CStr, c_char, c_void},
    fmt, ptr,
    rc::Rc,
};

/// Longest last words that are asked for.
const MESSAGE_BYTES: usize = 1024;
/// Longest text that is read back.
const TEXT_MAX_BYTES: usize = 4 << 20;

/// Why cuDNN would not.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DnnError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No engine of this version can run the pattern on this device.
    #[error("cuDNN cannot {what}: not supported: {reason}")]
    Unsupported { what: &'static str, reason: String },
    #[error("cuDNN cannot {what}: {reason}")]
    Library { what: &'static str, reason: String },
}

pub(super) type Result<T> = std::result::Result<T, DnnError>;

/// Turns a status into a result that carries the library's own explanation.
pub(super) fn check(what: &'static str, status: Status) -> Result<()> {
    if status == Status::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; MESSAGE_BYTES];
    // SAFETY: the library writes at most the length it is told, with a zero at the end.
    let said = unsafe {
        calls::cudnnGetLastErrorString(text.as_mut_ptr(), MESSAGE_BYTES);
        text[MESSAGE_BYTES - 1] = 0;
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    };
    let reason = format!("{status:?} {}", said.trim());
    // All "not supported" statuses lie in the 3000s.
    Err(if (3000..4000).contains(&(status as u32)) {
        DnnError::Unsupported { what, reason }
    } else {
        DnnError::Library { what, reason }
    })
}

/// The library for the device whose context is current.
#[derive(Clone)]
pub struct Handle(Rc<HandleInner>);

struct HandleInner(sys::cudnnHandle_t);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cudnn::Handle")
    }
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        // SAFETY: made by `cudnnCreate`, destroyed once.
        unsafe { calls::cudnnDestroy(self.0) };
    }
}

impl Handle {
    /// Of the device that `Gpu::open` made current on this thread.
    pub fn new() -> Result<Self> {
        Dnn::get()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes the handle.
        check("start", unsafe { calls::cudnnCreate(&mut handle) })?;
        Ok(Self(Rc::new(HandleInner(handle))))
    }

    pub(super) fn raw(&self) -> sys::cudnnHandle_t {
        self.0.0
    }

    /// What runs next is queued on `stream`.
    pub(super) fn use_stream(&self, stream: &Stream) -> Result<()> {
        // SAFETY: handle and stream are alive.
        check("use a stream", unsafe { calls::cudnnSetStream(self.raw(), stream.raw().cast()) })
    }
}

/// One of the library's objects, shared by those that refer to it.
#[derive(Clone)]
pub(super) struct Descriptor(Rc<Inner>);

struct Inner {
    raw: sys::cudnnBackendDescriptor_t,
    /// The library does not count references: what this one refers to must outlive it.
    parts: std::cell::RefCell<Vec<Descriptor>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made by `cudnnBackendCreateDescriptor`, destroyed once.
        unsafe { calls::cudnnBackendDestroyDescriptor(self.raw) };
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:p})", self.0.raw)
    }
}

/// Values that attributes are made of.
pub(super) trait Plain: Copy {}
impl Plain for i64 {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for bool {}
impl Plain for u64 {}
impl Plain for sys::cudnnHandle_t {}

impl Descriptor {
    pub fn new(kind: Kind) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the library writes the object.
        check("make a descriptor", unsafe { calls::cudnnBackendCreateDescriptor(kind, &mut raw) })?;
        Ok(Self(Rc::new(Inner { raw, parts: Default::default() })))
    }

    pub fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0.raw
    }

    pub fn set<T: Plain>(&self, name: Name, kind: Type, values: &[T]) -> Result<()> {
        // SAFETY: the library copies `len` plain values of the attribute's type.
        check("set an attribute", unsafe {
            calls::cudnnBackendSetAttribute(self.raw(), name, kind, values.len() as i64, values.as_ptr().cast())
        })
    }

    pub fn set_i64(&self, name: Name, values: &[i64]) -> Result<()> {
        self.set(name, Type::CUDNN_TYPE_INT64, values)
    }

    /// Characters, with the zero that the library's readers look for.
    pub fn set_text(&self, name: Name, text: &str) -> Result<()> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        // SAFETY: the library copies `len` characters; a zero after the last is there although it is not counted.
        check("set an attribute", unsafe {
            let values = bytes.as_ptr().cast();
            calls::cudnnBackendSetAttribute(self.raw(), name, Type::CUDNN_TYPE_CHAR, text.len() as i64, values)
        })
    }

    pub fn set_bool(&self, name: Name, value: bool) -> Result<()> {
        self.set(name, Type::CUDNN_TYPE_BOOLEAN, &[value])
    }

    /// Addresses on the device.
    pub fn set_addresses(&self, name: Name, values: &[u64]) -> Result<()> {
        self.set(name, Type::CUDNN_TYPE_VOID_PTR, values)
    }

    /// Refers to other objects, which live as long as this one.
    pub fn set_parts(&self, name: Name, parts: &[&Descriptor]) -> Result<()> {
        let raw: Vec<sys::cudnnBackendDescriptor_t> = parts.iter().map(|part| part.raw()).collect();
        // SAFETY: the library copies the pointers; the objects are held below.
        check("set an attribute", unsafe {
            let values: *const c_void = raw.as_ptr().cast();
            calls::cudnnBackendSetAttribute(
                self.raw(),
                name,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                raw.len() as i64,
                values,
            )
        })?;
        self.0.parts.borrow_mut().extend(parts.iter().map(|part| (*part).clone()));
        Ok(())
    }

    pub fn finalize(&self, what: &'static str) -> Result<()> {
        // SAFETY: the object is alive.
        check(what, unsafe { calls::cudnnBackendFinalize(self.raw()) })
    }

    /// Up to `most` values.
    pub fn get<T: Plain + Default>(&self, name: Name, kind: Type, most: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); most];
        let mut count = 0;
        // SAFETY: the library writes at most `most` plain values of the attribute's type.
        check("read an attribute", unsafe {
            let room = values.as_mut_ptr().cast();
            calls::cudnnBackendGetAttribute(self.raw(), name, kind, most as i64, &mut count, room)
        })?;
        values.truncate(usize::try_from(count).unwrap_or(0));
        Ok(values)
    }

    /// Characters, without the zeros at their end.
    pub fn get_text(&self, name: Name) -> Result<String> {
        let mut length = 0;
        // SAFETY: asked for no elements, the library only writes the count.
        check("measure a text", unsafe {
            let kind = Type::CUDNN_TYPE_CHAR;
            calls::cudnnBackendGetAttribute(self.raw(), name, kind, 0, &mut length, ptr::null_mut())
        })?;
        let mut text = vec![0u8; usize::try_from(length)?.min(TEXT_MAX_BYTES)];
        // SAFETY: the library writes at most as many characters as there is room for.
        check("read a text", unsafe {
            let (kind, room) = (Type::CUDNN_TYPE_CHAR, text.as_mut_ptr().cast());
            calls::cudnnBackendGetAttribute(self.raw(), name, kind, text.len() as i64, &mut length, room)
        })?;
        text.truncate(usize::try_from(length)?);
        while text.last() == Some(&0) {
            text.pop();
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Fills objects of `kind` with what the attribute lists.
    pub fn get_parts(&self, name: Name, kind: Kind, most: usize) -> Result<Vec<Descriptor>> {
        let parts = (0..most).map(|_| Descriptor::new(kind)).collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<sys::cudnnBackendDescriptor_t> = parts.iter().map(Descriptor::raw).collect();
        let mut count = 0;
        // SAFETY: the library fills the objects whose pointers it is given.
        check("read an attribute", unsafe {
            let kind = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
            calls::cudnnBackendGetAttribute(self.raw(), name, kind, most as i64, &mut count, raw.as_mut_ptr().cast())
        })?;
        let count = usize::try_from(count).unwrap_or(0).min(most);
        // What was filled refers back to this object.
        for part in &parts[..count] {
            part.0.parts.borrow_mut().push(self.clone());
        }
        Ok(parts.into_iter().take(count).collect())
    }
}
