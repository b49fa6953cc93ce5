//! Which trace something belongs to, as W3C's `traceparent` writes it.
//!
//! A job carries one from its submission to its worker, so that lines and spans of all that have a hand in it can be put
//! together. It decides nothing.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const TRACE_BYTES: usize = 16;
const SPAN_BYTES: usize = 8;

/// The one version of the format that is written; later ones begin alike.
const VERSION: &str = "00";
const SAMPLED: u8 = 1;

/// A trace, and a place in it under which something may be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceContext {
    /// Not all zeros.
    pub trace: [u8; TRACE_BYTES],
    /// Not all zeros.
    pub span: [u8; SPAN_BYTES],
    /// Whoever began the trace wants it recorded.
    pub sampled: bool,
}

/// A text that is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no traceparent as W3C's Trace Context has it")]
pub struct NotATraceparent;

impl TraceContext {
    /// The trace's id as lines and pages show it: 32 hex digits.
    pub fn id(&self) -> String {
        hex::encode(self.trace)
    }

    /// A place below this one. The same name gives the same place, so that it need not be remembered.
    pub fn below(&self, name: &str) -> Self {
        let digest = Digest::of(format!("{self}/{name}").as_bytes());
        let mut span = [0; SPAN_BYTES];
        span.copy_from_slice(&digest.as_raw()[..SPAN_BYTES]);
        // A digest that begins with zeros alone is none that anybody will see.
        span[SPAN_BYTES - 1] |= u8::from(span == [0; SPAN_BYTES]);
        Self { span, ..*self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.sampled { SAMPLED } else { 0 };
        write!(f, "{VERSION}-{}-{}-{flags:02x}", hex::encode(self.trace), hex::encode(self.span))
    }
}

fn id<const N: usize>(text: &str) -> Result<[u8; N], NotATraceparent> {
    let mut bytes = [0; N];
    let is_lower = !text.contains(|c: char| c.is_ascii_uppercase());
    match hex::decode_to_slice(text, &mut bytes) {
        Ok(()) if is_lower && bytes != [0; N] => Ok(bytes),
        _ => Err(NotATraceparent),
    }
}

impl FromStr for TraceContext {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let mut parts = text.trim().split('-');
        let [Some(version), Some(trace), Some(span), Some(flags)] = std::array::from_fn(|_| parts.next()) else {
            return Err(NotATraceparent);
        };
        let byte = |text: &str| {
            let mut byte = [0];
            hex::decode_to_slice(text, &mut byte).map(|()| byte[0]).map_err(|_| NotATraceparent)
        };
        // Later versions may have more parts; this one has not, and the last number is no version.
        if byte(version)? == 0xff || (version == VERSION && parts.next().is_some()) {
            return Err(NotATraceparent);
        }
        Ok(Self { trace: id(trace)?, span: id(span)?, sampled: byte(flags)? & SAMPLED != 0 })
    }
}

impl TryFrom<String> for TraceContext {
    type Error = NotATraceparent;

    fn try_from(text: String) -> Result<Self, NotATraceparent> {
        text.parse()
    }
}

impl From<TraceContext> for String {
    fn from(context: TraceContext) -> Self {
        context.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let context: TraceContext = GIVEN.parse().unwrap();
        assert_eq!((context.to_string().as_str(), context.sampled), (GIVEN, true));
        assert_eq!(context.id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let unsampled: TraceContext = GIVEN.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.sampled && unsampled.trace == context.trace);
        assert_eq!(serde_json::to_string(&context).unwrap(), format!("\"{GIVEN}\""));
        assert_eq!(serde_json::from_str::<TraceContext>(&format!("\"{GIVEN}\"")).unwrap(), context);
        // A later version has the same beginning.
        assert_eq!(format!("cc{}-what-will-be", &GIVEN[2..]).parse(), Ok(context));
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        let zeros = |text: &str| "0".repeat(text.len());
        let (trace, span) = (&GIVEN[3..35], &GIVEN[36..52]);
        for bad in [
            "",
            "00",
            trace,
            &GIVEN[..GIVEN.len() - 1],
            &GIVEN.to_uppercase(),
            &GIVEN.replace(trace, &zeros(trace)),
            &GIVEN.replace(span, &zeros(span)),
            &GIVEN.replace(trace, &trace[1..]),
            &format!("{GIVEN}-more"),
            &format!("ff{}", &GIVEN[2..]),
            &GIVEN.replace('f', "g"),
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(NotATraceparent), "{bad}");
        }
    }

    #[test]
    fn places_below_are_told_apart_by_name_and_by_what_they_are_below() {
        let context: TraceContext = GIVEN.parse().unwrap();
        let lease = context.below("lease 1");
        assert_eq!((lease, lease.trace), (context.below("lease 1"), context.trace));
        assert!(lease.span != context.span && lease.span != context.below("lease 2").span);
        assert_ne!(lease.below("lease 1").span, lease.span);
    }
}
