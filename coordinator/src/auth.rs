//! Who calls, and what they may do.

use planforge_types::Digest;
use std::{fmt, str::FromStr};

/// What a token allows. Each role also allows what the roles before it do, except that `agent` submits nothing and
/// `enroll` is good for one thing only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Look at jobs, engines, reports; fetch.
    Read,
    /// Submit and cancel jobs of the token's project.
    Submit,
    /// Join as an agent: take leases, upload plans and reports.
    Agent,
    /// Have one agent's key certified, once, and nothing else.
    Enroll,
    /// Everything, tokens included, in every project.
    Admin,
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "read" => Ok(Self::Read),
            "submit" => Ok(Self::Submit),
            "agent" => Ok(Self::Agent),
            "enroll" => Ok(Self::Enroll),
            "admin" => Ok(Self::Admin),
            _ => Err(format!("'{text}' is not a role; roles are read, submit, agent, enroll, admin")),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Agent => "agent",
            Self::Enroll => "enroll",
            Self::Admin => "admin",
        })
    }
}

/// The caller of one request; its name stands on every event it causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Token name, or `local` for the owner of the data folder.
    pub name: String,
    pub role: Role,
    /// The only project it may touch; `None`: every project.
    pub project: Option<String>,
}

impl Actor {
    /// The owner of this machine's own coordinator.
    pub fn local() -> Self {
        Self { name: "local".into(), role: Role::Admin, project: None }
    }
}

/// What showed who a caller is. A browser's log-in rests on one, and is worth nothing once that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Credentials of a process on the Unix socket: the owner of the data folder.
    Owner,
    /// The token whose secret has this hash.
    Token(Digest),
}
