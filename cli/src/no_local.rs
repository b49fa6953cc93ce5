//! The small client has no farm of its own: commands go to a coordinator by URL.

use crate::{failure::Failure, settings::AgentBounds};
use planforge_client::{Client, Endpoint};
use planforge_types::Digest;
use std::path::{Path, PathBuf};

/// What a command needs of this machine's own farm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Answers,
    Work,
    Lasting,
}

/// There is none.
#[derive(Debug)]
pub enum Local {}

impl Local {
    pub async fn join(_data: &Path, _need: Need, _bounds: AgentBounds) -> Result<Self, Failure> {
        Err(Failure::usage("this is the small client, which has no farm of its own: name a coordinator with --server")
            .hint("or install planforge whole, which builds on this machine too"))
    }

    pub fn client(&self) -> &Client {
        match *self {}
    }

    pub fn is_lasting(&self) -> bool {
        match *self {}
    }

    pub fn is_guest(&self) -> bool {
        match *self {}
    }

    pub fn stored_blob(&self, _digest: Digest) -> Option<PathBuf> {
        match *self {}
    }

    pub async fn start_work(&mut self) -> Result<bool, Failure> {
        match *self {}
    }

    pub async fn leave(self) {
        match self {}
    }

    pub async fn close(self, _printer: &crate::printer::Printer) {
        match self {}
    }
}

/// The way in of a coordinator's owner, by the socket in its data folder; the small client takes tokens alone.
#[derive(Debug)]
pub struct OwnersWay {
    pub endpoint: Endpoint,
}

impl OwnersWay {
    pub fn find(_endpoint: &Endpoint) -> Result<Option<Self>, Failure> {
        Ok(None)
    }

    pub async fn check(&self, _endpoint: &Endpoint) -> Result<(), Failure> {
        Ok(())
    }
}

/// Where the whole program keeps what it found out of this machine's devices.
pub fn state_folder(data: &Path) -> PathBuf {
    data.join("agent")
}
