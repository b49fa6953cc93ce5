//! The other end of a connection.

/// How a request reached us; decides whether it may come without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The Unix socket, by a process of the data folder's owner.
    Unix,
    /// A port. Whatever its address, anybody may stand behind it: every user of this machine, every page in a browser.
    Port,
}

/// The address at the other end of a connection to a port.
#[derive(Clone, Copy, Debug)]
pub struct Origin(pub std::net::IpAddr);

/// What is known of the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub via: Via,
    pub encrypted: bool,
    /// It showed a client certificate that our authorities signed.
    pub certified: bool,
}
