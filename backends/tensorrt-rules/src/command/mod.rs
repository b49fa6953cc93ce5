//! From a build spec to the exact command lines of one version.
//!
//! | builder | process |
//! |---|---|
//! | [`build`] | compiles a model to a plan and runs nothing |
//! | [`benchmark`] | times a loaded plan at one point of one profile |
//! | [`profile`] | per-layer times and layer information of a loaded plan |
//! | [`outputs`] | one execution on given inputs, its outputs exported |
//!
//! Every option is `--name=value` in one argument or a bare `--name`: the parser knows no other form. No value can
//! become an option of its own, because no argument is ever taken apart again; what the parser itself takes apart
//! (names, lists) is refused when it holds a separator.

mod build;
mod line;
mod measure;
mod precision;
mod shapes;

pub use build::{BuildFiles, build};
pub use line::CommandLine;
pub use measure::{Benchmark, Mode, Outputs, Profile, Run, benchmark, outputs, profile};
pub use shapes::{Point, Shapes, distinct_points, varying};
