//! What projects say should exist, and what they want kept, as tables.

use super::{duration, render, short, table};
use planforge_proto::v1;

/// One row a pin.
pub fn pins(pins: &[v1::Pin], now_ms: u64) -> String {
    let mut rows = table(&["model", "sku", "plan", "project", "owner", "lasts", "reason"]);
    for pin in pins {
        let reason = if pin.reason.is_empty() { "-" } else { &pin.reason };
        rows.add_row([
            pin.model_name.clone(),
            pin.sku.clone(),
            short(&pin.plan_digest).to_owned(),
            pin.project.clone(),
            pin.owner.clone(),
            duration(pin.expires_ms.saturating_sub(now_ms)),
            reason.to_owned(),
        ]);
    }
    render(rows, &[5])
}

/// One row a repository.
pub fn repositories(declarations: &[v1::Declaration], now_ms: u64) -> String {
    let mut rows = table(&["repository", "project", "models", "engines", "not built", "by", "age"]);
    for declaration in declarations {
        let cells = &declaration.cells;
        let models: std::collections::BTreeSet<&str> = cells.iter().map(|cell| cell.model.as_str()).collect();
        let open = cells.iter().filter(|cell| cell.plan_digest.is_empty()).count();
        rows.add_row([
            declaration.name.clone(),
            declaration.project.clone(),
            models.len().to_string(),
            cells.len().to_string(),
            open.to_string(),
            declaration.actor.clone(),
            duration(now_ms.saturating_sub(declaration.declared_ms)),
        ]);
    }
    render(rows, &[2, 3, 4, 6])
}

/// One row a cell.
pub fn cells(declarations: &[v1::Declaration]) -> String {
    let mut rows = table(&["model", "digest", "sku", "target", "spec", "toolchain", "plan"]);
    for declaration in declarations {
        for cell in &declaration.cells {
            let toolchain = declaration.specs.iter().find(|spec| spec.name == cell.spec);
            let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
            rows.add_row([
                cell.model.clone(),
                short(&cell.model_digest).to_owned(),
                cell.sku.clone(),
                cell.target.clone(),
                cell.spec.clone(),
                or(toolchain.map(|spec| spec.toolchain.as_str()).unwrap_or_default(), "any"),
                or(short(&cell.plan_digest), "-"),
            ]);
        }
    }
    render(rows, &[])
}
