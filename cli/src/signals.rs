//! Being asked to end.

use tokio::signal::unix::{SignalKind, signal};

/// Completes when the user or the system asks this process to end.
pub async fn interrupted() {
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(stream) => stream,
        Err(_) => return std::future::pending().await,
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => if result.is_err() { std::future::pending::<()>().await },
        _ = terminate.recv() => {}
    }
}
