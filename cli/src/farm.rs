//! The coordinator that a command talks to: one by URL, or this machine's own.

pub use crate::local::Need;
use crate::{
    context::Context,
    credentials::{self, token},
    failure::Failure,
    local::{Local, OwnersWay},
    printer::Printer,
    settings::Settings,
};
use planforge_client::{BlobError, Blobs, Client, Endpoint, FarmService, Token};
use planforge_proto::{ErrorCode, v1};
use planforge_types::Digest;
use std::path::PathBuf;

/// How often another process may take this machine's farm over, or end it, while one command waits.
pub const MAX_TAKEOVERS: u32 = 20;

/// Where commands go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A coordinator by URL.
    Server(Endpoint),
    /// The farm of this machine, in this data folder.
    ThisMachine(PathBuf),
}

impl Place {
    /// Decides by the settings.
    pub fn choose(settings: &Settings) -> Result<Self, Failure> {
        match credentials::endpoint(settings)? {
            Some(endpoint) => Ok(Self::Server(endpoint)),
            None => Ok(Self::ThisMachine(settings.data_folder()?)),
        }
    }
}

/// A way to a coordinator that has answered once.
#[derive(Debug)]
pub struct Farm {
    client: Client,
    local: Option<Local>,
    /// Held while the client uses it.
    _way: Option<OwnersWay>,
}

impl Farm {
    /// Finds the coordinator and connects to it; becomes it where this machine has none.
    pub async fn open(context: &Context<'_>, need: Need) -> Result<Self, Failure> {
        match Place::choose(&context.settings)? {
            Place::Server(endpoint) => {
                let (client, way) = connect(endpoint, token(&context.settings)?).await?;
                Ok(Self { client, local: None, _way: way })
            }
            Place::ThisMachine(data) => {
                let local = Local::join(&data, need, context.settings.agent_bounds()?).await?;
                Ok(Self { client: local.client().clone(), local: Some(local), _way: None })
            }
        }
    }

    /// Opens the farm, asks it, and closes it again whatever came of that.
    ///
    /// Another command's farm on this machine ends with that command, perhaps before it answers: then the next host is
    /// asked, which may be this process.
    pub async fn with<T>(
        context: &Context<'_>,
        need: Need,
        mut ask: impl AsyncFnMut(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut takeovers = 0;
        loop {
            let farm = Self::open(context, need).await?;
            let answer = ask(&farm).await;
            let is_cut = farm.is_guest() && answer.as_ref().is_err_and(Failure::is_unavailable);
            farm.close(context.printer).await;
            takeovers += 1;
            if !is_cut || takeovers > MAX_TAKEOVERS {
                return answer;
            }
            tracing::debug!("the farm's host ended before it answered: asking the next one");
        }
    }

    /// Requests, jobs, engines, reports, tokens.
    pub fn rpc(&self) -> FarmService {
        self.client.farm()
    }

    pub fn blobs(&self) -> &Blobs {
        self.client.blobs()
    }

    /// The error behind a failed call, naming the coordinator where it went away.
    pub fn error(&self, status: tonic::Status) -> Failure {
        self.client.error(status).into()
    }

    /// Whether this is this machine's own farm.
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Whether another command on this machine runs the coordinator, and ends it when done.
    fn is_guest(&self) -> bool {
        self.local.as_ref().is_some_and(Local::is_guest)
    }

    /// Whether whoever runs the coordinator brings it back when it goes away: then waiting for it is of use.
    pub fn comes_back(&self) -> bool {
        self.local.as_ref().is_none_or(Local::is_lasting)
    }

    /// Whether this is a farm that commands run among themselves, whose agent comes and goes with their builds: one that
    /// `planforge up` keeps listens on a port.
    pub async fn is_embedded(&self) -> Result<bool, Failure> {
        Ok(self.is_local() && self.page().await?.is_empty())
    }

    /// The URL of the coordinator's page; empty where it has none, or is too old to say.
    pub async fn page(&self) -> Result<String, Failure> {
        let info = self.rpc().get_server_info(v1::GetServerInfoRequest {}).await;
        Ok(info.map_err(|e| self.error(e))?.into_inner().url)
    }

    /// Where the farm on this machine keeps a blob that it has: bytes that were verified before they became visible.
    pub fn stored_blob(&self, digest: Digest) -> Option<PathBuf> {
        self.local.as_ref()?.stored_blob(digest)
    }

    /// Has an agent at work in this machine's own farm; whether that is news.
    pub async fn start_work(&mut self) -> Result<bool, Failure> {
        match &mut self.local {
            Some(local) => local.start_work().await,
            None => Ok(false),
        }
    }

    /// Ends this command's part without waiting for what others want.
    pub async fn leave(self) {
        if let Some(local) = self.local {
            local.leave().await;
        }
    }

    /// Ends this command's part in the farm; a host first finishes what others wait for.
    pub async fn close(self, printer: &Printer) {
        if let Some(local) = self.local {
            local.close(printer).await;
        }
    }
}

/// Connects to a coordinator by URL; without a token, on the owner's way where there is one.
pub async fn connect(endpoint: Endpoint, token: Option<Token>) -> Result<(Client, Option<OwnersWay>), Failure> {
    if token.is_none()
        && let Some(way) = OwnersWay::find(&endpoint)?
    {
        way.check(&endpoint).await?;
        return Ok((Client::connect(way.endpoint.clone(), None).await?, Some(way)));
    }
    Ok((Client::connect(endpoint, token).await?, None))
}

impl From<BlobError> for Failure {
    fn from(error: BlobError) -> Self {
        let message = error.to_string();
        match error {
            BlobError::Unreachable(inner) => inner.into(),
            BlobError::NotFound { .. } => Self::new(ErrorCode::NotFound, message),
            BlobError::NoRoom { hint, .. } => Self::new(ErrorCode::ResourceExhausted, message).hint(hint),
            BlobError::Refused { status, hint, .. } => {
                let code = match status.as_u16() {
                    400 => ErrorCode::InvalidArgument,
                    // A limit of this caller's or its project's.
                    413 => ErrorCode::ResourceExhausted,
                    401 => ErrorCode::Unauthenticated,
                    403 => ErrorCode::PermissionDenied,
                    409 => ErrorCode::Conflict,
                    410 => ErrorCode::Gone,
                    502..=504 => ErrorCode::Unavailable,
                    _ => ErrorCode::Internal,
                };
                Self::new(code, message).hint(hint)
            }
            BlobError::Cut { .. } => Self::new(ErrorCode::Unavailable, message),
            BlobError::Disk { action, path, source } => Self::io(action, &path, &source),
            BlobError::WrongDigest { .. }
            | BlobError::UploadMismatch { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Protocol { .. } => Self::new(ErrorCode::Internal, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Key, Layer};

    fn settings(texts: &[(Key, &str)]) -> Settings {
        let flags = texts.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        Settings::layered(flags, Layer::new(), Layer::new(), Layer::new())
    }

    #[test]
    fn a_server_setting_decides_where_commands_go() {
        let here = Place::choose(&settings(&[(Key::Data, "/d")])).unwrap();
        assert_eq!(here, Place::ThisMachine("/d".into()));
        let there = Place::choose(&settings(&[(Key::Data, "/d"), (Key::Server, "http://127.0.0.1:7000")])).unwrap();
        assert_eq!(there, Place::Server(Endpoint::Http { host: "127.0.0.1".into(), port: 7000 }));
    }

    #[test]
    fn plain_http_beyond_this_machine_must_be_asked_for() {
        let refused = Place::choose(&settings(&[(Key::Server, "http://farm:7000")])).unwrap_err();
        assert_eq!(refused.exit_code, 2);
        let allowed = settings(&[(Key::Server, "http://farm:7000"), (Key::Insecure, "true")]);
        assert!(matches!(Place::choose(&allowed), Ok(Place::Server(_))));
    }
}
