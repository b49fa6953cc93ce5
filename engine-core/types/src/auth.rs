//! Who calls, and what they may do.

use crate::Digest;
use std::{fmt, str::FromStr};

/// What a token allows. Each role also allows what the roles before it do, except that `agent` submits nothing and reads
/// only what it was leased, and `enroll` is good for one thing only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Look at jobs, engines, reports; fetch.
    Read,
    /// Submit and cancel jobs of the token's project.
    Submit,
    /// Join as an agent: take leases, read what they name, upload plans and reports.
    Agent,
    /// Have one agent's key certified, once, and nothing else.
    Enroll,
    /// Everything, tokens included, in every project; of a token that belongs to one project: that project's tokens, jobs
    /// and limits.
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
    /// Id of its token; empty: none, as for the owner.
    pub token: String,
    /// Where it calls from, for the audit log: an address, or `unix`; empty: unknown.
    pub from: String,
}

impl Actor {
    /// Somebody of that name who shows no token.
    pub fn named(name: impl Into<String>, role: Role, project: Option<String>) -> Self {
        Self { name: name.into(), role, project, token: String::new(), from: String::new() }
    }

    /// The owner of this machine's own coordinator.
    pub fn local() -> Self {
        Self { from: "unix".into(), ..Self::named("local", Role::Admin, None) }
    }

    /// Whether it administers the whole farm, not one project alone.
    pub fn is_farm_admin(&self) -> bool {
        self.role == Role::Admin && self.project.is_none()
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
