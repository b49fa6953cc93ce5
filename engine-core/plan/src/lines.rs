//! Lines that `inspect` and `explain` share. Each begins with a label of `width` columns.

use super::PassSummary;
use planforge_types::{Port, shown::Lines};
use std::fmt;

/// Columns of a label in `inspect`.
pub const LABEL_WIDTH: usize = 8;

/// One line per input and output.
pub fn ports(f: &mut Lines<'_, '_>, width: usize, inputs: &[Port], outputs: &[Port]) -> fmt::Result {
    for (label, ports) in [("input", inputs), ("output", outputs)] {
        for port in ports {
            writeln!(f, "{label:<width$}{} {} [{}]", port.name, port.element, port.sizes())?;
        }
    }
    Ok(())
}

/// One line per pass that changed something.
pub fn passes(f: &mut Lines<'_, '_>, width: usize, passes: &[PassSummary]) -> fmt::Result {
    for summary in passes.iter().filter(|summary| !summary.changes.is_empty()) {
        pass(f, width, &summary.pass, summary.changes.len(), (summary.nodes_before, summary.nodes_after))?;
    }
    Ok(())
}

/// What one pass did, and the nodes before and after it.
pub fn pass(
    f: &mut Lines<'_, '_>,
    width: usize,
    name: &str,
    changes: usize,
    (before, after): (u64, u64),
) -> fmt::Result {
    writeln!(f, "{:<width$}{name}: {changes} changes, {before} -> {after} nodes", "pass")
}
