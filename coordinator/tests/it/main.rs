//! The farm's tests: behaviour, store conformance, a model of the core, and the seeded simulation.

mod agent_tokens;
mod agent_words;
mod attacks;
mod audit;
mod builds;
mod core_model;
mod damaged;
mod declarations;
mod declared_store;
mod elsewhere;
mod farm;
mod faults;
mod holders;
mod inputs;
mod kept_store;
mod leftovers;
mod many_jobs;
mod needs;
mod pins;
mod power_cut;
mod refresh;
mod simulation;
mod store;
mod support;
mod tokens;
mod tuning;
