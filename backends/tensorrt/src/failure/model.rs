//! Failures that the model or the spec brings with it.

use super::{Ended, FailureKind, Found, Messages, between, tensor_name};
use crate::log::Message;

/// The tensor that a message about shapes is about.
fn tensor(message: &Message) -> Option<String> {
    let text = &message.text;
    let after =
        |before: &str, end: &str| between(text, before, end).filter(|_| text.contains(before)).and_then(tensor_name);
    after("input tensor with name \"", "\"")
        .or_else(|| after("bindings[", "]"))
        .or_else(|| after("missing values for input ", " "))
        .or_else(|| after("setting input shape for ", " "))
        .or_else(|| after("for tensor ", " "))
        .or_else(|| after("for input ", " "))
        .or_else(|| after("input tensor ", " "))
        .or_else(|| {
            let (name, _) = text
                .split_once(": dynamic input is missing")
                .or_else(|| text.split_once(": number of dimensions is "))?;
            tensor_name(name.rsplit(['(', ' ', ']']).next()?)
        })
}

pub(super) fn negative_dimension(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "negative dimension",
        "dimensions are negative",
        "dimension is negative",
        "negative size",
        "negative extent",
        "negative length",
        "dims.d[i] >= 0",
        "never exceeds -1",
        "return x >= 0",
        "must be non-negative",
        "cannot be negative",
        "dimension with value less than",
        "volume of dims is negative",
        "invalid dimension -",
        "value of -1 for dimension",
    ])?;
    Some(Found::new(FailureKind::NegativeDimension { tensor: tensor(message) }, &message.text))
}

pub(super) fn invalid_profile(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "optimization profiles must satisfy",
        "optimization profile is invalid",
        "optimization profile is not valid",
        "invalid optimization profile",
        "invalid profile",
        "profile is invalid",
        "is not a valid optimization profile",
        "is not a valid profile",
        "calibration profile is invalid",
        "no optimization profile has been defined",
        "optimization profile is missing values for input",
        "missing dimensions in profile",
        "does not match network definition",
        "but profile",
        "error in set dimensions to",
        "error in set shape values",
        "set optimization profile failed",
        "ioptimizationprofile::set",
        "ioptimizationprofile::isvalid",
        "addoptimizationprofile",
        "min <= opt",
        "min<=opt",
        "kmin <= kopt",
        "profilemindims",
        "dimensions for profile",
        "profile does not match",
        "values for profile",
    ])?;
    // What a run gives that the profile has no room for is a shape, not the profile.
    let said = message.text.to_ascii_lowercase();
    if said.contains("supplied binding dimension") || said.contains("setinputshape") {
        return None;
    }
    Some(Found::new(FailureKind::InvalidProfile { tensor: tensor(message) }, &message.text))
}

pub(super) fn shape(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "static model does not take explicit shapes",
        "cannot find input tensor with name",
        "invalid tensor names found in --shapes",
        "invalid tensor names found in --loadinputs",
        "min ~ max range",
        "does not satisfy any optimization profile",
        "satisfyprofile",
        "violate shape constraints",
        "shape missing",
        "network has dynamic or shape inputs",
        "invalid dimensions for",
        "out of range of the profile",
        "setinputshape",
        "static dimension mismatch",
        "could not set dimensions",
        "shape error",
        "reshape would change volume",
        "reshaping failed",
        "reshape dimensions",
        "incompatible dimensions",
        "incompatible broadcast",
        "dimensions mismatch",
        "dimension mismatch",
        "slice is out of bounds",
        "volume mismatch",
        "condition 'elementwise_shapes_match",
        "error in shape computation",
        "shape tensor",
        "shapes are not broadcastable",
    ])?;
    Some(Found::new(FailureKind::Shape { tensor: tensor(message) }, &message.text))
}

/// Its own words for what stopped it, whatever the builder makes of that.
pub(super) fn myelin_exception(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&["myelincheckexception", "myelin exception", "no myelin error exists"])?;
    Some(Found::new(FailureKind::Myelin, &message.text))
}

pub(super) fn myelin(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "error code 1: myelin",
        "myelin error",
        "myelin (",
        "myelin compil",
        "myelingraphcompile",
        "myelinbuilder",
        "::compilegraph",
        "compile resulted in null program",
    ])?;
    Some(Found::new(FailureKind::Myelin, &message.text))
}

pub(super) fn calibration(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "calibration failure",
        "calibration cache",
        "calibration table",
        "calibration data",
        "calibration file",
        "calibrator is null",
        "no calibrator",
        "calibrator",
        "int8 calibration",
        "missing dynamic range",
        "no scale information",
    ])?;
    Some(Found::new(FailureKind::Calibration, &message.text))
}

/// `Could not find any implementation for node NAME`. Memory is to blame when tactics were left out for want of it.
pub(super) fn no_implementation(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&["could not find any implementation for node"])?;
    let at = message.text.to_ascii_lowercase().find("implementation for node")? + "implementation for node".len();
    let rest = message.text.get(at..)?.trim_start().lines().next().unwrap_or_default();
    // The sentence may go on after the name, or a bracket of the error code may close it.
    let name = rest.split_once(" due to ").or(rest.split_once(", try ")).map_or(rest, |(name, _)| name);
    let name = name.trim_end().strip_suffix(')').filter(|name| unbalanced(rest) || name.ends_with('}')).unwrap_or(name);
    let name = name.trim_end().trim_end_matches('.').to_owned();
    let said = message.text.to_ascii_lowercase();
    let memory = said.contains("workspace")
        || said.contains("memory")
        || messages.warning(WANT_OF_MEMORY).is_some()
        || messages.error(WANT_OF_MEMORY).is_some();
    Some(Found::new(FailureKind::NoImplementation { node: name, memory }, &message.text))
}

/// More brackets are closed than opened: the last one belongs to the sentence.
fn unbalanced(text: &str) -> bool {
    text.matches(')').count() > text.matches('(').count()
}

/// What is said when tactics are left out for want of memory.
pub(super) const WANT_OF_MEMORY: &[&str] = &[
    "insufficient memory",
    "insufficient workspace",
    "sufficient workspace",
    "outofmemory",
    "out of memory",
    "could not be allocated",
    "memory is insufficient",
];
