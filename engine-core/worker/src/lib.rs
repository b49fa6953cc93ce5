//! One job from order to report, for every backend: compile, verify, measure, write down.
//!
//! | module | holds |
//! |---|---|
//! | [`job`] | one order from beginning to end; several builds; what is measured besides |
//! | [`load`] | an engine under load: rates, objectives, soaks |
//! | [`measure`] | the benchmark as an experiment with a record |
//! | [`preparation`] | models of other number types, made on data |
//! | [`verify`] | are a plan's outputs right? |
//!
//! Must not know: networks, databases, which backends there are.

pub mod job;
pub mod load;
pub mod measure;
pub mod preparation;
pub mod verify;
