//! What an engine is and how one is made.
//!
//! | module | holds |
//! |---|---|
//! | [`identity`] | digests, SKUs, toolchains, build specs and the engine key made of them |
//! | [`backend`] | the two traits every backend implements: `Compiler` and `Meter` |
//! | [`ir`] | the graph every native backend compiles |
//! | [`worker`] | what an agent tells a worker process and hears from it |
//!
//! Invariant: nothing here opens a network connection or a database.

pub mod backend;
pub mod identity;
pub mod ir;
pub mod worker;
