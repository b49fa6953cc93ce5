//! The device that a plan is made for: the one whose context is current, or one that is elsewhere, of which the library
//! is told what it would ask a driver for.

use super::descriptor::{Descriptor, Handle, Result};
use crate::libraries::Dnn;
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
};

/// Where a pattern's plans are to run.
#[derive(Clone, Debug)]
pub enum Site {
    Here(Handle),
    /// Plans come as text, for a handle there; nothing runs here.
    Elsewhere(Properties),
}

impl From<&Handle> for Site {
    fn from(handle: &Handle) -> Self {
        Self::Here(handle.clone())
    }
}

/// What the library has to know of a device that is elsewhere.
#[derive(Clone, Debug)]
pub struct Properties(Descriptor);

impl Properties {
    /// From the library's own text of a device's properties, as [`Properties::text_here`] gives it.
    pub fn from_text(text: &str) -> Result<Self> {
        Dnn::get()?;
        let made = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        made.set_text(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, text)?;
        made.finalize("describe a device")?;
        Ok(Self(made))
    }

    /// The library's text of the device that `handle` is of.
    pub fn text_here(handle: &Handle) -> Result<String> {
        let made = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        made.set(Name::CUDNN_ATTR_DEVICEPROP_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
        made.finalize("describe a device")?;
        made.get_text(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}
