//! How cells look: a table for people, a shape for `--json`, and the exit code that they come to.

use super::{Row, Survey};
use crate::{failure::Failure, tables};
use planforge_fleet::{CellId, Lock, Locked, State, gate::Judged};
use serde::Serialize;

/// A cell as it is shown.
#[derive(Debug, Serialize)]
pub struct CellView {
    #[serde(flatten)]
    pub id: CellId,
    #[serde(flatten)]
    pub state: State,
    /// The engine that is locked for it.
    pub engine: Option<Locked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Judged>,
}

impl Survey {
    /// Every cell, those of the lock that are declared no more among them.
    pub fn views(&self, lock: &Lock) -> Vec<CellView> {
        let view = |row: &Row| CellView {
            id: row.cell.id.clone(),
            state: row.state.clone(),
            engine: row.locked.clone(),
            gate: row.gate.clone(),
        };
        let undeclared = self.undeclared.iter().map(|id| CellView {
            id: id.clone(),
            state: State::Stale("planforge.toml declares it no more".into()),
            engine: lock.cells.get(id).cloned(),
            gate: None,
        });
        let mut views: Vec<CellView> = self.rows.iter().map(view).chain(undeclared).collect();
        views.sort_by(|a, b| a.id.cmp(&b.id));
        views
    }
}

/// One row a cell.
pub fn table(cells: &[CellView]) -> String {
    let mut rows = tables::table(&["model", "sku", "spec", "state", "toolchain", "median", "why"]);
    for cell in cells {
        let engine = cell.engine.as_ref();
        let toolchain = engine.map_or_else(|| "-".to_owned(), |engine| engine.toolchain.to_string());
        let median =
            engine.and_then(|engine| engine.headline.median_ms).map_or_else(|| "-".to_owned(), tables::milliseconds);
        let CellId { model, sku, spec } = &cell.id;
        rows.add_row([model, sku.as_str(), spec, cell.state.name(), &toolchain, &median, cell.state.why()]);
    }
    tables::render(rows, &[5])
}

/// What a command ends with whose cells are in these states, none of which is fine.
pub fn verdict<'a>(red: impl IntoIterator<Item = &'a State>) -> Result<(), Failure> {
    let (mut gates, mut others) = (false, false);
    for state in red {
        match state {
            State::GateFailed(_) => gates = true,
            _ => others = true,
        }
    }
    match (others, gates) {
        (true, _) => Err(Failure::problems_found()),
        (false, true) => Err(Failure::gate()),
        (false, false) => Ok(()),
    }
}
