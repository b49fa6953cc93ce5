//! Charts, once for whoever shows any: an SVG that stands in a page by itself, with a text alternative that says its
//! numbers.
//!
//! | module | holds |
//! |---|---|
//! | [`distribution`] | the histogram of one set of samples with its quantiles; several sets as cumulative shares |
//! | [`bars`] | horizontal bars, one a part |
//! | [`lines`] | what grows with one number, with the knee |
//! | [`history`] | one figure over time, within its noise band |
//! | [`heat`] | a matrix with its numbers |
//! | [`roofline`] | rates over operational intensity, below measured ceilings |
//! | [`spark`] | one line of a terminal |
//! | `unit`, `scale`, `svg`, `plot` | what they are drawn with |
//!
//! An SVG has classes and no `style` attribute, so that a page whose policy allows no inline style shows it; the page
//! brings [`STYLE`] along once. Colours are variables there, for light, dark, print and forced colours. Nothing is told by
//! colour alone: series differ in marker, dash and pattern too, and figures stand beside what they belong to.
//!
//! Every chart says what its numbers rest on ([`Basis`]).

pub mod bars;
pub mod distribution;
pub mod heat;
pub mod history;
pub mod lines;
mod plot;
pub mod roofline;
mod scale;
pub mod spark;
mod svg;
mod unit;

pub use bars::{Bar, Bars};
pub use distribution::{Distribution, Quantile, Shares};
pub use heat::{Cell, Heat};
pub use history::{History, Moment};
pub use lines::{Line, Lines, Mark, Point};
pub use plot::{Axis, Basis, Caption, SERIES, shortened};
pub use roofline::{Ceiling, RooflineChart, Spot};
pub use svg::escaped;
pub use unit::Unit;

/// The style of all charts; a page has it once.
pub const STYLE: &str = include_str!("charts.css");

#[cfg(test)]
mod style_tests;
#[cfg(test)]
mod tests;
