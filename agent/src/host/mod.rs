//! What an agent needs of its host.
//!
//! | module | holds |
//! |---|---|
//! | `abilities` | what a toolchain can do at all on a device, for requests to be refused early |
//! | [`baselines`] | programs of this host that measure by another runtime |
//! | [`devices`] | the devices and what is known of them, behind a trait so that tests bring scripted ones |
//! | [`lock`] | one job per device, guarded for the whole host |
//! | [`owner`] | which process has a file's lock, by the kernel's word |
//! | [`proc`] | processes and how ours are found and ended |
//! | [`room`] | a bound for what could be got again: models, timing caches |
//! | [`state`] | the agent's own folder: identity, results not yet acknowledged, caches, scratch |

mod abilities;
pub mod baselines;
pub mod devices;
pub mod lock;
pub mod owner;
pub mod proc;
pub mod room;
pub mod state;
