//! What reports say beyond their figures: what bounds an engine, and what is worth trying.
//!
//! | module | holds |
//! |---|---|
//! | [`bound`] | the bottleneck of an engine and of each layer, from measured ceilings |
//! | [`rule`] | what a rule says: evidence, threshold, advice |
//! | `precision` | int8 coverage, reformat layers, plans larger than their precision, gains below the usual, fp16, tensor cores |
//! | `shape` | dynamic shapes, batches, streams |
//! | `host` | transfers, launches, workspace |
//! | `build` | plans from elsewhere, compatibility levels, upgrades, builds and measurements that differ, reference kernels |
//!
//! A rule looks at figures alone: so reports of older versions, and of other tools, get the same advice. It says the
//! number that it found and the one from which it speaks; which of the numbers are estimates is said too.

pub mod bound;
mod build;
mod host;
mod precision;
pub mod rule;
mod shape;

pub use rule::{Advice, Evidence};

use planforge_report::Report;

/// Everything that is worth saying of `report`, the gravest first. `others` are reports that it can be held
/// against: of the same model in another precision, with other shapes, of an older toolchain; itself may be among them.
pub fn advise(report: &Report, others: &[Report]) -> Vec<Advice> {
    let case = rule::Case::new(report, others);
    let mut found: Vec<Advice> = [precision::RULES, shape::RULES, host::RULES, build::RULES]
        .concat()
        .iter()
        .filter_map(|rule| rule(&case))
        .collect();
    found.sort_by_key(|advice| std::cmp::Reverse(advice.severity));
    found
}

#[cfg(test)]
mod cases;
