//! One job from order to report, in a process of its own; what is said there and back is in [`planforge_types::order`].

mod baselines;
mod batches;
mod ceilings;
mod document;
mod extra;
mod given;
mod loss;
mod memory;
mod outlet;
mod prepare;
mod run;
mod selection;

pub use ceilings::CeilingStore;
pub use run::{RunEnd, run};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod variant_tests;
