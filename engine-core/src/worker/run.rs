//! One job from order to report, inside the worker process.

use super::{FailureClass, WorkEvent, WorkOrder};
use crate::backend::{BackendError, Cancel, Compiler};
use std::io;

/// How a run ended; the last event said the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
    Failed,
}

/// Runs `order` to its end: compile, verify, [`WorkEvent::Built`], wait for the upload, measure, report.
///
/// The last event is [`WorkEvent::Done`] or [`WorkEvent::Failed`]. `wait_continue` returns when the agent has uploaded
/// the plan; an error from it means that the agent is gone. Log lines go to `tracing` with the target `attempt`.
pub fn run(
    order: &WorkOrder,
    compilers: &[Box<dyn Compiler>],
    events: &mut (dyn FnMut(WorkEvent) + Send),
    wait_continue: &mut dyn FnMut() -> io::Result<()>,
    cancel: &Cancel,
) -> RunEnd {
    let _ = (wait_continue, cancel);
    let backend = &order.toolchain.backend;
    let error = match compilers.iter().find(|compiler| compiler.backend() == backend) {
        Some(_) => BackendError::new(FailureClass::Infrastructure, "the worker's pipeline is not complete yet"),
        None => BackendError::new(FailureClass::Infrastructure, format!("this agent has no backend '{backend}'")),
    };
    events(WorkEvent::Failed { class: error.class, message: error.message, hint: error.hint });
    RunEnd::Failed
}
