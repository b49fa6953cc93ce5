//! Why a coordinator cannot be reached, in words, with what to do about it.

use crate::Endpoint;
use planforge_proto::{ApiError, ErrorCode};

/// The innermost causes of `error`, joined, without repeating what an outer layer already said.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !texts.iter().any(|t| t.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

/// The system's own error somewhere under `error`.
fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(mut io) = error.downcast_ref::<std::io::Error>() {
            // One that wraps another names that one's source as its own, and hides its kind.
            while let Some(inner) = io.get_ref().and_then(|inner| inner.downcast_ref::<std::io::Error>()) {
                io = inner;
            }
            return Some(io);
        }
        next = error.source();
    }
    None
}

/// An `Unavailable` that names the coordinator, the cause, and what to do about that cause.
pub(crate) fn unreachable(endpoint: &Endpoint, error: &(dyn std::error::Error + 'static)) -> ApiError {
    let io = io_cause(error);
    let cause = io.map_or_else(|| causes(error), |io| io.to_string());
    let mut message = format!("cannot reach the coordinator at {endpoint}: {cause}");
    let hint = match (endpoint, io.map(std::io::Error::kind)) {
        (Endpoint::Unix(path), Some(std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)) => {
            message = format!("cannot reach the coordinator at {endpoint}: nothing listens there");
            format!("start one whose data folder is {}", path.parent().unwrap_or(path).display())
        }
        (_, Some(std::io::ErrorKind::ConnectionRefused)) => {
            "start it with `planforge coordinator` or `planforge up`, or check host and port".to_owned()
        }
        (Endpoint::Https { ca_file, .. }, Some(std::io::ErrorKind::InvalidData)) => match ca_file {
            Some(path) => format!(
                "check that {} signed the coordinator's certificate and that it names this host",
                path.display()
            ),
            None => "name the CA file that signed the coordinator's certificate".to_owned(),
        },
        _ => "check the address, the network and that the coordinator runs".to_owned(),
    };
    ApiError::new(ErrorCode::Unavailable, message).with_hint(hint)
}
