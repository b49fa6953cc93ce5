//! Projects confine: what a token of one project reaches of another, over every route and every method there is.

#[path = "../served/mod.rs"]
mod served;
#[path = "../it/support/mod.rs"]
mod support;

mod farm;
mod matrix_grpc;
mod matrix_http;
mod shares;
mod uploads;
mod world;
