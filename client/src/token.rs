//! What proves who calls.

use http::HeaderValue;
use planforge_proto::{ApiError, ErrorCode};
use std::fmt;
use tonic::metadata::{Ascii, MetadataValue};

/// A secret that proves who calls. Its debug form hides it.
#[derive(Clone)]
pub struct Token(MetadataValue<Ascii>);

impl Token {
    /// Wraps a token's text.
    ///
    /// # Errors
    ///
    /// `Unauthenticated` when the text has a character that no header can hold.
    pub fn new(secret: &str) -> Result<Self, ApiError> {
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", secret.trim()).parse().map_err(|_| {
            ApiError::new(ErrorCode::Unauthenticated, "the token has a character that cannot be sent")
                .with_hint("pass the token exactly as `planforge token create` printed it")
        })?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of an `authorization` entry in a call's metadata.
    pub(crate) fn metadata(&self) -> MetadataValue<Ascii> {
        self.0.clone()
    }

    /// The value of an `authorization` header.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut value = HeaderValue::from_bytes(self.0.as_bytes()).expect("made of a checked string");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}
