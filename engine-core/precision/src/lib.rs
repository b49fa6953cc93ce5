//! Precision as a stage: a model in, a model of other number types out, and what became of every layer.
//!
//! | module | holds |
//! |---|---|
//! | `prepare` | from a model to the prepared one and its report |
//! | `draft` | options, what losses are measured on, the report on its way |
//! | `samples` | rows of data, fitted to inputs; labels |
//! | `run` | whoever runs models, and what it lends of a run |
//! | `truth` | what a model says of samples, and how near another is to that |
//! | `net`, `opset` | the working copy of a model, raised to the operators that are put in |
//! | `layers` | convolutions and products with stored weights |
//! | `observe`, `ranges` | what values were seen, histograms of them, and four ways to cut those |
//! | `fold`, `equalize` | what makes a model easier to quantise and computes the same |
//! | `int8`, `place`, `quantize` | int8: where, and with which scales |
//! | `attention` | attention whose products may be made of integers |
//! | `blocks` | weights alone, in groups |
//! | `typed` | fp16 and bf16 with islands |
//! | `budget` | which layers return so that no more is lost than allowed |
//! | `report` | what became of every layer, and why; where the bytes are |
//! | [`cache`] | TensorRT's calibration cache as text |
//! | `error` | why nothing was prepared; findings |
//!
//! Invariant: a model that nothing was lowered in computes the same numbers. What is measured is the model that is written,
//! run as a file, never a stand-in for it.

mod attention;
mod blocks;
mod budget;
pub mod cache;
mod draft;
mod equalize;
mod error;
mod fold;
mod int8;
mod layers;
mod net;
mod observe;
mod opset;
mod place;
mod prepare;
mod quantize;
mod ranges;
mod report;
mod run;
mod samples;
mod truth;
mod typed;

pub use draft::{Options, Prepared};
pub use error::{DataError, Finding, PrecisionError};
pub use planforge_types::preparation::{Budget, Kind, Method, Target};
pub use prepare::prepare;
pub use report::{Coverage, Document, LayerReport, Measured, Preparation};
pub use run::{Reference, Runner, See, Seen, Session};
pub use samples::{FEW_SAMPLES, Samples, joined, ports, work};
