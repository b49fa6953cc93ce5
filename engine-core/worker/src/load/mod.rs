//! An engine under load: instances side by side, requests that arrive by themselves, the highest rate that keeps an
//! objective, hours of it.
//!
//! | module | holds |
//! |---|---|
//! | [`arrivals`] | when requests arrive |
//! | [`rig`] | instances in threads of their own that serve them |
//! | `search` | the highest rate that keeps an objective |
//! | `soak` | a long run in slices, and what became of it |
//!
//! Arrivals do not wait for the engine (an *open loop*): a request whose turn comes late has waited since it was to
//! arrive. Without a rate each instance takes the next request at once (a *closed loop*), which is what an engine can do
//! at most.

pub mod arrivals;
pub mod rig;
pub mod search;
pub mod soak;

pub use rig::{Instance, Rig, with_rig};
pub use search::search;
pub use soak::soak;
