//! Why a store in a cloud does not do what it is asked, in words, and what to do about it.

use planforge_proto::ErrorCode;
use std::{error::Error, fmt};

/// What is wrong with a store in a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It does not know the keys, or they do not fit each other.
    WrongKeys,
    /// Nobody gave keys, and no service of this machine has any.
    NoKeys {
        detail: String,
    },
    /// The clocks differ by more than it accepts.
    Clock,
    /// The keys are good and may not do that.
    NoRights,
    NoBucket,
    /// The bucket lies in another region.
    OtherRegion {
        detail: String,
    },
    /// It wants fewer requests.
    Throttled,
    /// It does not answer, or breaks off.
    Away {
        detail: String,
    },
    /// What was begun there is not known there any more.
    Forgotten,
    Failed {
        detail: String,
    },
}

/// Words of a store that are shown.
const DETAIL_MAX_CHARS: usize = 300;

impl Trouble {
    /// What a client's error stands for.
    pub(crate) fn of(error: &object_store::Error) -> Self {
        let words = causes(error);
        let detail = || words.chars().take(DETAIL_MAX_CHARS).collect::<String>();
        match code(&words) {
            Some("InvalidAccessKeyId" | "NotSignedUp" | "SignatureDoesNotMatch" | "InvalidToken" | "ExpiredToken") => {
                Self::WrongKeys
            }
            Some("RequestTimeTooSkewed") => Self::Clock,
            Some("NoSuchBucket") => Self::NoBucket,
            Some("NoSuchUpload") => Self::Forgotten,
            Some("AccessDenied" | "AllAccessDisabled" | "AccountProblem") => Self::NoRights,
            Some("SlowDown" | "ServiceUnavailable" | "TooManyRequests" | "RequestLimitExceeded") => Self::Throttled,
            Some("AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException") => {
                Self::OtherRegion { detail: detail() }
            }
            _ => match error {
                object_store::Error::PermissionDenied { .. } => Self::NoRights,
                object_store::Error::Unauthenticated { .. } => Self::WrongKeys,
                _ if words.contains("redirect without LOCATION") => Self::OtherRegion { detail: detail() },
                // The address of the service that gives keys to machines of a cloud.
                _ if words.contains("169.254.") => Self::NoKeys { detail: detail() },
                _ if words.contains("503 Service Unavailable") || words.contains("429 Too Many") => Self::Throttled,
                _ if words.contains("HTTP error") || words.contains("500 Internal") || words.contains("502 Bad") => {
                    Self::Away { detail: detail() }
                }
                _ => Self::Failed { detail: detail() },
            },
        }
    }

    /// Whether the same may work a moment later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Throttled | Self::Away { .. } | Self::Clock)
    }

    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            // A clock that was set wrong is set right again by whoever keeps the time.
            Self::Throttled | Self::Away { .. } | Self::Clock => ErrorCode::Unavailable,
            Self::Forgotten => ErrorCode::NotFound,
            _ => ErrorCode::Internal,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::WrongKeys => {
                "have the coordinator given the right keys: --blobs-keys FILE, or AWS_ACCESS_KEY_ID and so on"
            }
            Self::NoKeys { .. } => "give the coordinator keys: --blobs-keys FILE, or AWS_ACCESS_KEY_ID and so on",
            Self::Clock => "set the clock of the coordinator's machine, by NTP",
            Self::NoRights => {
                "let the keys list the bucket, and read, write and delete objects and uploads below the prefix \
                 (docs/operations.md has the policy)"
            }
            Self::NoBucket => "make the bucket, or name the one that is there",
            Self::OtherRegion { .. } => "name the bucket's region: --blobs-region REGION",
            Self::Throttled => "try again in a moment; the store asks for fewer requests",
            Self::Away { .. } => "see that the store runs and can be reached (--blobs-endpoint); then try again",
            Self::Forgotten => "begin a new upload",
            Self::Failed { .. } => "see the coordinator's log and the store",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongKeys => f.write_str("it does not accept the keys"),
            Self::NoKeys { detail } => write!(f, "there are no keys for it ({detail})"),
            Self::Clock => f.write_str("its clock and that of this machine differ by too much"),
            Self::NoRights => f.write_str("the keys may not do that"),
            Self::NoBucket => f.write_str("there is no such bucket"),
            Self::OtherRegion { detail } => write!(f, "the bucket is of another region ({detail})"),
            Self::Throttled => f.write_str("it takes no more requests for the moment"),
            Self::Away { detail } => write!(f, "it does not answer ({detail})"),
            Self::Forgotten => f.write_str("it does not know the upload any more"),
            Self::Failed { detail } => f.write_str(detail),
        }
    }
}

/// The code of an error that S3 answered with.
fn code(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code)
}

/// An error with everything behind it, each once.
fn causes(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        next = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(body: &str) -> Trouble {
        let source = format!("Server returned non-2xx status code: 400 Bad Request: {body}").into();
        Trouble::of(&object_store::Error::Generic { store: "S3", source })
    }

    #[test]
    fn what_s3_answers_is_told_in_words() {
        for (code, trouble) in [
            ("InvalidAccessKeyId", Trouble::WrongKeys),
            ("SignatureDoesNotMatch", Trouble::WrongKeys),
            ("RequestTimeTooSkewed", Trouble::Clock),
            ("NoSuchBucket", Trouble::NoBucket),
            ("AccessDenied", Trouble::NoRights),
            ("SlowDown", Trouble::Throttled),
        ] {
            assert_eq!(answered(&format!("<Error><Code>{code}</Code></Error>")), trouble);
            assert!(!trouble.hint().is_empty());
        }
        assert!(matches!(answered("<Code>AuthorizationHeaderMalformed</Code>"), Trouble::OtherRegion { .. }));
        assert!(matches!(answered("<Code>Other</Code>"), Trouble::Failed { .. }));
        assert!(matches!(answered("HTTP error: connection refused"), Trouble::Away { .. }));
        // What mends itself is waited for, and costs no attempt.
        let lasts = |code: &str| answered(&format!("<Code>{code}</Code>")).code() != ErrorCode::Unavailable;
        assert_eq!(["SlowDown", "RequestTimeTooSkewed", "AccessDenied"].map(lasts), [false, false, true]);
    }
}
