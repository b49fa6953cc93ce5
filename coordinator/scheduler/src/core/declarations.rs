//! Which engines a project says should exist. The core has no part in it: it holds what the store keeps.

use planforge_types::{BuildSpec, Digest, Sku};
use serde::{Deserialize, Serialize};

/// What one repository of a project declares, as its last sync said it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclarationRecord {
    pub project: String,
    /// Of the repository.
    pub name: String,
    /// Who said it last.
    pub actor: String,
    pub declared_ms: u64,
    pub specs: Vec<DeclaredSpec>,
    pub cells: Vec<DeclaredCell>,
}

impl DeclarationRecord {
    /// What there is one declaration of.
    pub fn id(&self) -> DeclarationId {
        DeclarationId { project: self.project.clone(), name: self.name.clone() }
    }
}

/// What there is one declaration of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclarationId {
    pub project: String,
    pub name: String,
}

/// A spec by its name in the declaration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclaredSpec {
    pub name: String,
    pub spec: BuildSpec,
    /// The range that its engines' toolchain has to be in.
    pub toolchain: String,
}

/// An engine that should exist.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclaredCell {
    /// Name in the declaration.
    pub model: String,
    pub digest: Digest,
    pub sku: Sku,
    /// The word of the declaration that means this device kind: the kind itself, or a class.
    pub target: String,
    /// Name of one of the specs.
    pub spec: String,
    /// The engine that was locked for it; `None`: there was none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Digest>,
}
