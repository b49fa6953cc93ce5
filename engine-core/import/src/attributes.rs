//! Attributes of one node, each read by name and type, and all of them read.

use super::error::Refusal;
use crate::scope::Bound;
use planforge_onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, attribute_proto::AttributeType};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Attributes by name, with which of them were read.
#[derive(Debug)]
pub struct Attributes<'a> {
    by_name: BTreeMap<&'a str, &'a AttributeProto>,
    read: RefCell<Vec<&'a str>>,
}

fn wrong(name: &str, reason: impl Into<String>) -> Refusal {
    Refusal::Attribute { name: name.into(), reason: reason.into() }
}

impl<'a> Attributes<'a> {
    /// `bound` are the attributes of the function around the node.
    pub fn of(node: &'a NodeProto, bound: Option<&'a Bound<'a>>) -> Result<Self, Refusal> {
        let mut by_name = BTreeMap::new();
        for attribute in &node.attribute {
            let name = attribute.name.as_str();
            let mut attribute = attribute;
            if !attribute.ref_attr_name.is_empty() {
                let bound =
                    bound.ok_or_else(|| wrong(name, "refers to the attribute of a function, outside of one"))?;
                let what = || wrong(name, format!("refers to {}, which its function lacks", attribute.ref_attr_name));
                match bound.get(attribute.ref_attr_name.as_str()).ok_or_else(what)? {
                    Some(given) => attribute = given,
                    // The caller leaves it out, and so does this node.
                    None => continue,
                }
            }
            if by_name.insert(name, attribute).is_some() {
                return Err(wrong(&attribute.name, "is given twice"));
            }
        }
        Ok(Self { by_name, read: RefCell::new(Vec::new()) })
    }

    fn get(&self, name: &'static str, kind: AttributeType) -> Result<Option<&'a AttributeProto>, Refusal> {
        let Some(attribute) = self.by_name.get(name) else { return Ok(None) };
        self.read.borrow_mut().push(name);
        match attribute.r#type == kind as i32 {
            true => Ok(Some(attribute)),
            false => {
                let given = AttributeType::try_from(attribute.r#type)
                    .map_or_else(|_| attribute.r#type.to_string(), |kind| kind.as_str_name().to_owned());
                Err(wrong(name, format!("has the type {given}, not {}", kind.as_str_name())))
            }
        }
    }

    /// The attribute whatever its type.
    pub fn any(&self, name: &'a str) -> Option<&'a AttributeProto> {
        self.read.borrow_mut().push(name);
        self.by_name.get(name).copied()
    }

    /// A subgraph, which must be there.
    pub fn graph(&self, name: &'static str) -> Result<&'a GraphProto, Refusal> {
        let attribute = self.get(name, AttributeType::Graph)?.ok_or_else(|| wrong(name, "is missing"))?;
        attribute.g.as_deref().ok_or_else(|| wrong(name, "is missing"))
    }

    /// Texts; `None` when they are not given.
    pub fn texts(&self, name: &'static str) -> Result<Option<Vec<&'a str>>, Refusal> {
        let Some(attribute) = self.get(name, AttributeType::Strings)? else { return Ok(None) };
        let texts = attribute.strings.iter().map(|text| std::str::from_utf8(text));
        Ok(Some(texts.collect::<Result<_, _>>().map_err(|_| wrong(name, "is not valid UTF-8"))?))
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn int(&self, name: &'static str) -> Result<Option<i64>, Refusal> {
        Ok(self.get(name, AttributeType::Int)?.map(|attribute| attribute.i))
    }

    pub fn int_or(&self, name: &'static str, default: i64) -> Result<i64, Refusal> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    pub fn required_int(&self, name: &'static str) -> Result<i64, Refusal> {
        self.int(name)?.ok_or_else(|| wrong(name, "is missing"))
    }

    /// 0 or 1.
    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool, Refusal> {
        match self.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(wrong(name, format!("is {other}, not 0 or 1"))),
        }
    }

    pub fn float_or(&self, name: &'static str, default: f32) -> Result<f32, Refusal> {
        Ok(self.get(name, AttributeType::Float)?.map_or(default, |attribute| attribute.f))
    }

    pub fn float(&self, name: &'static str) -> Result<Option<f32>, Refusal> {
        Ok(self.get(name, AttributeType::Float)?.map(|attribute| attribute.f))
    }

    pub fn ints(&self, name: &'static str) -> Result<Option<&'a [i64]>, Refusal> {
        Ok(self.get(name, AttributeType::Ints)?.map(|attribute| attribute.ints.as_slice()))
    }

    pub fn floats(&self, name: &'static str) -> Result<Option<&'a [f32]>, Refusal> {
        Ok(self.get(name, AttributeType::Floats)?.map(|attribute| attribute.floats.as_slice()))
    }

    pub fn tensor(&self, name: &'static str) -> Result<Option<&'a TensorProto>, Refusal> {
        Ok(self.get(name, AttributeType::Tensor)?.and_then(|attribute| attribute.t.as_deref()))
    }

    pub fn text_or(&self, name: &'static str, default: &'static str) -> Result<&'a str, Refusal> {
        match self.get(name, AttributeType::String)? {
            None => Ok(default),
            Some(attribute) => std::str::from_utf8(&attribute.s).map_err(|_| wrong(name, "is not valid UTF-8")),
        }
    }

    /// Only `allowed` keeps its meaning here.
    pub fn must_be(&self, name: &'static str, allowed: i64) -> Result<(), Refusal> {
        match self.int(name)? {
            Some(value) if value != allowed => Err(wrong(name, format!("is {value}; only {allowed} is supported"))),
            _ => Ok(()),
        }
    }

    /// Reads an attribute that does not change what inference computes.
    pub fn without_effect(&self, name: &'static str) {
        self.read.borrow_mut().push(name);
    }

    /// Names of attributes nothing has read.
    pub fn unread(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        self.by_name.keys().filter(|name| !read.contains(name)).copied().collect()
    }
}
