//! The real binary as people and scripts meet it: help, errors, exit codes, output.

mod errors;
mod farm;
mod help;
mod owner;
mod support;
