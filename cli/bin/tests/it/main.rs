//! The real binary as people and scripts meet it: help, errors, exit codes, output.

mod compile;
mod credentials;
mod errors;
mod farm;
mod help;
mod kernels;
mod lists;
mod manners;
mod many_jobs;
mod owner;
mod prepare;
mod reports;
mod support;
mod survival;
mod tidy;
