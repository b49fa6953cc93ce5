//! The engine key: the one name under which an engine is looked up.

use super::{BuildSpec, Digest, Sku, Toolchain, preparation::PrepareAsk};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Hashed before the document, so that another layout of the document can never give an old key.
const KEY_DOMAIN: &[u8] = b"planforge-key-v1\n";
/// The same for what a model is prepared into: no such key is ever an engine's.
const PREPARE_DOMAIN: &[u8] = b"planforge-prepare-v1\n";

/// SHA-256 over model digest, SKU, exact toolchain and complete spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EngineKey(Digest);

#[derive(Serialize)]
struct KeyDocument<'a> {
    model: &'a Digest,
    sku: &'a Sku,
    toolchain: &'a Toolchain,
    spec: &'a BuildSpec,
}

#[derive(Serialize)]
struct PrepareDocument<'a> {
    model: &'a Digest,
    preparer: &'a Toolchain,
    ask: &'a PrepareAsk,
}

impl EngineKey {
    /// The name under which a prepared model is found: of the model that it is made from, of what it is to become, and of
    /// what makes it, in its exact version.
    pub fn of_preparation(model: &Digest, preparer: &Toolchain, ask: &PrepareAsk) -> Self {
        let ask = ask.clone().canonical();
        let document = PrepareDocument { model, preparer, ask: &ask };
        let mut bytes = PREPARE_DOMAIN.to_vec();
        serde_json_canonicalizer::to_writer(&document, &mut bytes).expect("a key document has only JSON types");
        Self(Digest::of(&bytes))
    }

    /// The key of an engine. `spec` must be resolved: a CPU spec names its threads.
    pub fn new(model: &Digest, sku: &Sku, toolchain: &Toolchain, spec: &BuildSpec) -> Self {
        let spec = spec.clone().canonical();
        let document = KeyDocument { model, sku, toolchain, spec: &spec };
        let mut bytes = KEY_DOMAIN.to_vec();
        serde_json_canonicalizer::to_writer(&document, &mut bytes).expect("a key document has only JSON types");
        Self(Digest::of(&bytes))
    }

    /// The digest behind the key.
    pub fn digest(&self) -> &Digest {
        &self.0
    }
}

impl fmt::Display for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EngineKey {
    type Err = super::digest::DigestParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
