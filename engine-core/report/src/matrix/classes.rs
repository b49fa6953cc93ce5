//! Device kinds that may stand for each other, by what was measured.
//!
//! Two kinds are interchangeable when every plan of either was shown to be valid on the other, for at least
//! [`LEAST_MODELS`] architectures, on at least [`LEAST_BOARDS`] boards of each kind, and no measurement says otherwise.
//! Simulated figures are no evidence. A class is a set of kinds of which every two are.

use super::{Cell, Matrix, State};
use planforge_types::{Digest, Sku};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Architectures that have to agree.
pub const LEAST_MODELS: usize = 3;

/// Boards of each device kind that have to agree.
pub const LEAST_BOARDS: usize = 2;

/// What is known of two device kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairEvidence {
    pub skus: [Sku; 2],
    pub interchangeable: bool,
    /// Architectures whose plans are valid both ways.
    pub models: usize,
    /// Boards of each of the two on which plans of the other were shown to be valid.
    pub boards: [usize; 2],
    /// What speaks against it, or is missing; empty where they are interchangeable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
}

impl PairEvidence {
    /// As people read it.
    pub fn words(&self) -> String {
        let [one, other] = &self.skus;
        match self.interchangeable {
            true => format!(
                "{one} and {other} are interchangeable: valid both ways in {} models, on {} and {} boards",
                self.models, self.boards[0], self.boards[1]
            ),
            false => format!("{one} and {other} are not shown to be interchangeable: {}", self.lacks.join("; ")),
        }
    }
}

/// Every two device kinds, and the sets that follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    pub pairs: Vec<PairEvidence>,
    /// Of two and more device kinds.
    pub classes: Vec<Vec<Sku>>,
}

/// What `matrices`, of any models, say together.
pub fn classes(matrices: &[Matrix]) -> Classes {
    let mut skus: Vec<&Sku> = Vec::new();
    for sku in matrices.iter().flat_map(|matrix| &matrix.skus) {
        if !skus.contains(&sku) {
            skus.push(sku);
        }
    }
    let pairs: Vec<PairEvidence> = (0..skus.len())
        .flat_map(|one| (one + 1..skus.len()).map(move |other| (one, other)))
        .map(|(one, other)| evidence(matrices, skus[one], skus[other]))
        .collect();
    let holds = |a: &Sku, b: &Sku| {
        pairs.iter().any(|pair| pair.interchangeable && pair.skus.contains(a) && pair.skus.contains(b))
    };
    let mut classes: Vec<Vec<Sku>> = Vec::new();
    for sku in skus {
        match classes.iter_mut().find(|class| class.iter().all(|member| holds(member, sku))) {
            Some(class) => class.push(sku.clone()),
            None => classes.push(vec![sku.clone()]),
        }
    }
    classes.retain(|class| class.len() > 1);
    Classes { pairs, classes }
}

pub(super) fn evidence(matrices: &[Matrix], one: &Sku, other: &Sku) -> PairEvidence {
    let mut models: BTreeSet<Digest> = BTreeSet::new();
    let (mut of_one, mut of_other): (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
    let (mut lacks, mut simulated) = (Vec::new(), false);
    for matrix in matrices {
        let (Some(there), Some(back)) = (matrix.cell(one, other), matrix.cell(other, one)) else { continue };
        for cell in [there, back] {
            simulated |= cell.boards.iter().any(|board| board.simulated);
            lacks.extend(objection(matrix, cell));
        }
        if is_valid(there) && is_valid(back) {
            models.insert(matrix.structure_digest.unwrap_or(matrix.model_digest));
            // A cell was measured on boards of its column.
            of_one.extend(back.boards.iter().map(|board| board.board.as_str()));
            of_other.extend(there.boards.iter().map(|board| board.board.as_str()));
        }
    }
    if models.len() < LEAST_MODELS {
        lacks.push(format!("valid both ways in {} of the {LEAST_MODELS} models that it takes", models.len()));
    }
    for (sku, boards) in [(one, &of_one), (other, &of_other)] {
        if boards.len() < LEAST_BOARDS {
            let have = boards.len();
            lacks.push(format!("measured on {have} of the {LEAST_BOARDS} boards of {sku} that it takes"));
        }
    }
    if simulated {
        lacks.push("simulated figures are no evidence".into());
    }
    PairEvidence {
        skus: [one.clone(), other.clone()],
        interchangeable: lacks.is_empty(),
        models: models.len(),
        boards: [of_one.len(), of_other.len()],
        lacks,
    }
}

/// Valid by every board that measured it, and measured in earnest.
fn is_valid(cell: &Cell) -> bool {
    let valid = |board: &super::OnBoard| board.state == State::Valid && !board.simulated;
    cell.state == State::Valid && !cell.boards.is_empty() && cell.boards.iter().all(valid)
}

/// What a cell says against the two being interchangeable.
fn objection(matrix: &Matrix, cell: &Cell) -> Option<String> {
    let against = |state: State| matches!(state, State::Suboptimal | State::Wrong | State::Refused);
    let state = cell.boards.iter().map(|board| board.state).chain([cell.state]).find(|state| against(*state))?;
    Some(format!("the plan of {} for {} is {} on {}", matrix.model, cell.built_for, state.words(), cell.measured_on))
}
