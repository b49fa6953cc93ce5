//! The plan file: a true header, and behind it what the stand-in needs to run the model again.

use super::{
    model::{Edge, Layer},
    options::Range,
    version::Version,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, path::Path};

/// First bytes of a plan from 8.6 on.
const OUTER: &[u8; 4] = b"ftrt";
/// First bytes of a plan up to 8.5, and of the inner archive afterwards.
const INNER: &[u8; 4] = b"ptrt";
/// Where the inner archive begins from 8.6 on.
const INNER_AT: usize = 56;
/// Where the stand-in's own part begins in the inner archive.
const OWN_AT: usize = 16;
/// Marks the stand-in's own part.
const OWN: &[u8; 8] = b"STANDIN1";

/// What a plan of the stand-in holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub version: Version,
    pub compute_capability: (u32, u32),
    pub device: String,
    pub graph: String,
    pub inputs: Vec<Binding>,
    pub outputs: Vec<Binding>,
    pub layers: Vec<Layer>,
    pub profiles: Vec<BTreeMap<String, Range>>,
    pub detailed: bool,
    pub precision: String,
    pub version_compatible: bool,
    /// `none`, `ampere+` or `sameComputeCapability`.
    pub hardware_compatibility: String,
    /// Differs between two builds of one model, as tactic choice does.
    pub build_seed: u64,
    /// The ONNX file.
    #[serde(skip)]
    pub model: Vec<u8>,
}

/// A tensor at the engine's edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    #[serde(flatten)]
    pub edge: Edge,
    /// As it lies in memory, which may differ from the model's declaration.
    pub kind: String,
}

/// Why a file is no plan that this stand-in wrote.
#[derive(Debug)]
pub enum Unreadable {
    File(io::Error),
    Magic,
    /// Shorter or longer than its header says, or damaged.
    Truncated,
}

impl Plan {
    /// The bytes of the plan file.
    pub fn encode(&self) -> Vec<u8> {
        let facts = serde_json::to_vec(self).expect("a plan has only JSON types");
        let mut inner = INNER.to_vec();
        let old = self.version < Version::new(8, 6, 0);
        if old {
            inner.extend(self.version.serialization().to_le_bytes());
            inner.extend([0; 8]);
        } else {
            inner.extend([0; 4]);
            inner.extend(self.version.serialization().to_le_bytes());
            inner.extend([0; 4]);
        }
        inner.extend(OWN);
        inner.extend((facts.len() as u64).to_le_bytes());
        inner.extend(facts);
        inner.extend(&self.model);
        if old {
            return inner;
        }
        let mut file = OUTER.to_vec();
        file.extend(0u32.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend([0; 4]);
        file.extend(((INNER_AT + inner.len()) as u64).to_le_bytes());
        file.extend(self.version.0.map(|part| (part % 256) as u8));
        file.extend(b"rtrtNGNE");
        file.extend([0; 4]);
        file.extend((INNER_AT as u64).to_le_bytes());
        file.extend((inner.len() as u64).to_le_bytes());
        file.extend(inner);
        file
    }

    pub fn read(path: &Path) -> Result<Self, Unreadable> {
        Self::decode(&fs::read(path).map_err(Unreadable::File)?)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let inner = match bytes.get(..4) {
            Some(magic) if magic == OUTER => {
                let total = bytes.get(16..24).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
                if total != Some(bytes.len() as u64) {
                    return Err(Unreadable::Truncated);
                }
                bytes.get(INNER_AT..).ok_or(Unreadable::Truncated)?
            }
            Some(magic) if magic == INNER => bytes,
            _ => return Err(Unreadable::Magic),
        };
        let own = inner.get(OWN_AT..).filter(|own| own.starts_with(OWN)).ok_or(Unreadable::Truncated)?;
        let size =
            own.get(8..16).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).ok_or(Unreadable::Truncated)?;
        let end = usize::try_from(size).ok().and_then(|size| size.checked_add(16)).ok_or(Unreadable::Truncated)?;
        let facts = own.get(16..end).ok_or(Unreadable::Truncated)?;
        let mut plan: Self = serde_json::from_slice(facts).map_err(|_| Unreadable::Truncated)?;
        plan.model = own[end..].to_vec();
        Ok(plan)
    }
}
