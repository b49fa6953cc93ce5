//! Opening a coordinator on a data folder, and ending it.
//!
//! ```text
//! DATA/coordinator.lock   locked while a coordinator runs here; holds its pid
//! DATA/coordinator.sock   its Unix socket, when asked for
//! DATA/admin.token        the first administrator's token (0600)
//! DATA/agent-ca.key       the authority over agents' certificates, where there is one (0600)
//! DATA/farm.db            SQLite, where the farm's store is not PostgreSQL
//! DATA/farm.name          which farm this folder is of, where its store is PostgreSQL; beside the blobs likewise
//! DATA/blobs/             models, plans, cards, reports, logs, where they do not lie in a cloud; how far they were looked
//!                         through
//! DATA/logs/              logs of attempts that run
//! DATA/tidied             when what nobody needs any more was last taken away
//! ```

use super::{
    Listener, RefreshSchedule, ServerLimits,
    blobs::Place,
    forward::{Address, Forward, Trust},
    is_loopback,
    refresh::Refresher,
    serve, standby,
    tidy::Tidy,
};
use crate::{
    app::Options,
    auth::{Actor, Proof},
    blobs::{BlobError, Blobs, CloudBlobsOptions, LocalBlobsOptions, ScrubOptions, blob_path},
    certificates::{Authority, AuthorityError, CERTIFICATE_LIFE},
    farm::{self, Farm, FarmConfig, LoginLink, SystemClock},
    store::{Leadership, PostgresConfig, PostgresStore, SqliteStore},
    tls::{Tls, TlsError, TlsFiles},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{Digest, durable};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, UnixListener},
    sync::{Notify, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Longest path a Unix socket may have on Linux, its closing zero left out.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// How often uploads that nobody continues are looked for.
const COLLECT_INTERVAL: Duration = Duration::from_secs(60);
pub(super) const BLOBS: &str = "blobs";
pub(super) const DATABASE: &str = "farm.db";
/// In a folder: the name of the farm that it is of.
pub(super) const FARM_NAME: &str = "farm.name";
/// How often a coordinator that stands by looks whether it may lead.
const STANDBY_LOOKS: Duration = Duration::from_millis(250);
const ADMIN_TOKEN_FILE: &str = "admin.token";

/// How agents are certified by this coordinator's own authority.
#[derive(Clone, Debug)]
pub struct AgentCertificates {
    /// Agents without a certificate are refused.
    pub required: bool,
    /// How long one holds.
    pub life: Duration,
}

impl Default for AgentCertificates {
    fn default() -> Self {
        Self { required: false, life: CERTIFICATE_LIFE }
    }
}

/// What a coordinator needs to know before it starts.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Everything durable lies here; created when missing.
    pub data_dir: PathBuf,
    /// The farm's store, instead of a database in the data folder. Its address and farm are filled in here.
    pub postgres: Option<PostgresConfig>,
    /// Where blobs lie, if not in the data folder: coordinators of one farm share a folder.
    pub blobs_dir: Option<PathBuf>,
    /// The cloud in which they lie instead of a folder.
    pub cloud: Option<CloudBlobsOptions>,
    /// Where the farm's other coordinators reach this one while it leads; empty: at its public URL, or the address that it
    /// listens on.
    pub advertise: String,
    /// PEM file with the authorities that other coordinators' certificates come from; `None`: the system's.
    pub peers_ca: Option<PathBuf>,
    /// Asks a coordinator that stands by to read its certificates again.
    pub reread: Option<Arc<Notify>>,
    /// Told while another coordinator leads, and who.
    pub standing_by: Option<watch::Sender<String>>,
    /// Begin an empty farm where blobs lie whose database is gone.
    pub new_farm: bool,
    /// TCP address; port 0 lets the system choose. `None`: only the Unix socket.
    pub listen: Option<SocketAddr>,
    /// Unix socket, reachable by this user only.
    pub unix_socket: Option<PathBuf>,
    pub tls: Option<TlsFiles>,
    /// Certify agents here.
    pub agent_certificates: Option<AgentCertificates>,
    /// Listen on other addresses than loopback without TLS.
    pub insecure_http: bool,
    /// How others reach this coordinator, as shown in commands on the page; empty: as the browser did.
    pub public_url: String,
    pub farm: FarmConfig,
    pub blobs: LocalBlobsOptions,
    /// Look stored blobs through in the background; `None`: only when somebody asks for it.
    pub scrub: Option<ScrubOptions>,
    /// Look for stale engines and build them again; `None`: only when somebody asks for it.
    pub refresh: Option<RefreshSchedule>,
    pub limits: ServerLimits,
}

impl CoordinatorConfig {
    /// Defaults on `data_dir`: no address yet, no TLS.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            postgres: None,
            blobs_dir: None,
            cloud: None,
            advertise: String::new(),
            peers_ca: None,
            reread: None,
            standing_by: None,
            new_farm: false,
            listen: None,
            unix_socket: None,
            tls: None,
            agent_certificates: None,
            insecure_http: false,
            public_url: String::new(),
            farm: FarmConfig::default(),
            blobs: LocalBlobsOptions::default(),
            scrub: None,
            refresh: None,
            limits: ServerLimits::default(),
        }
    }
}

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("another coordinator (pid {pid}) runs on the data folder {}", data_dir.display())]
    Locked {
        data_dir: PathBuf,
        /// `unknown` when it could not be read.
        pid: String,
    },

    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: String,
        #[source]
        source: io::Error,
    },

    #[error("refusing to listen on {address}, which other machines can reach, without TLS")]
    PlainHttp { address: SocketAddr },

    #[error("the coordinator has nowhere to listen: neither an address nor a Unix socket was given")]
    NoListener,

    #[error("the path of the Unix socket {} is {bytes} bytes long; {MAX_SOCKET_PATH_BYTES} are possible", path.display())]
    SocketPathTooLong { path: PathBuf, bytes: usize },

    #[error(transparent)]
    Tls(#[from] TlsError),

    #[error(transparent)]
    Authority(#[from] AuthorityError),

    #[error("agents show certificates over TLS only, and this coordinator has none")]
    CertificatesWithoutTls,

    #[error(transparent)]
    Blobs(#[from] BlobError),

    #[error("the folder {} is of the farm {found}, and {} of {known}", folder.display(), other.display())]
    TwoFarms { folder: PathBuf, found: String, other: PathBuf, known: String },

    #[error("{0}")]
    Peers(String),

    #[error("there is no farm in {}", folder.display())]
    NoFarm { folder: PathBuf },

    #[error("the folder {} is not empty", folder.display())]
    NotEmpty { folder: PathBuf },

    #[error("the database {database} is a farm's already")]
    DatabaseInUse { database: String },

    #[error("the folder {} is of a farm whose store is PostgreSQL", folder.display())]
    StoreElsewhere { folder: PathBuf },

    #[error("the database {} is gone, and blobs of its farm are still there", path.display())]
    DatabaseGone { path: PathBuf },

    #[error("the blobs lie in {place} already")]
    SamePlace { place: String },

    #[error("blobs are not moved from one cloud to another, as from {from} to {to}")]
    TwoClouds { from: String, to: String },

    #[error("the blobs of this farm lie in {known}, and {asked} was named")]
    BlobsElsewhere { known: String, asked: String },

    #[error("{0}")]
    Farm(ApiError),
}

impl StartError {
    /// What to do next; may be empty.
    pub fn hint(&self) -> String {
        match self {
            Self::Locked { .. } => "use it (PLANFORGE_SERVER), end it, or choose another data folder".into(),
            Self::PlainHttp { .. } => {
                "give a certificate and key, listen on 127.0.0.1, or ask for plain HTTP explicitly".into()
            }
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                "another program listens there; choose another port".into()
            }
            Self::SocketPathTooLong { .. } => "choose a data folder with a shorter path".into(),
            Self::Tls(TlsError::Mismatch { .. }) => "give the key that this certificate was issued for".into(),
            Self::Tls(TlsError::Exposed(exposed)) | Self::Authority(AuthorityError::Exposed(exposed)) => exposed.hint(),
            Self::CertificatesWithoutTls => "give a certificate and key: --tls-cert FILE --tls-key FILE".into(),
            Self::Tls(_) => "give PEM files that the coordinator may read".into(),
            Self::Farm(error) => error.hint.clone(),
            Self::Blobs(error) => error.hint().to_owned(),
            Self::TwoClouds { .. } => "move them to a folder first, then on".into(),
            Self::BlobsElsewhere { known, .. } => {
                format!("name {known} (--blobs), or move them first: planforge admin blobs PLACE")
            }
            Self::StoreElsewhere { .. } => {
                "name its store (PLANFORGE_STORE, --store-file FILE), reach its coordinator (--server URL), or use another folder".into()
            }
            Self::NoFarm { .. } => "name the folder of a farm: --data DIR".into(),
            Self::NotEmpty { .. } => "name a folder that does not exist yet, or the one of an export that was broken off".into(),
            Self::DatabaseInUse { .. } => "make an empty database or schema for this farm".into(),
            Self::Peers(_) => "see planforge coordinator --help: --advertise, --peers-ca".into(),
            Self::TwoFarms { .. } => "give each farm folders of its own".into(),
            Self::DatabaseGone { .. } => {
                "restore a backup into another folder (planforge admin restore BACKUP --data DIR), \
                 or begin an empty farm here, which knows none of the blobs: planforge up --new"
                    .into()
            }
            _ => String::new(),
        }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// A running coordinator. Dropping it ends the process's part without waiting; [`Coordinator::shutdown`] ends it well.
#[derive(Debug)]
pub struct Coordinator {
    farm: Farm,
    blobs: Blobs,
    tidy: Tidy,
    address: Option<SocketAddr>,
    url: Option<String>,
    /// Where people open the page; empty without a port.
    page_url: String,
    unix_socket: Option<PathBuf>,
    tls: Option<Arc<Tls>>,
    closing: CancellationToken,
    serving: Option<JoinHandle<()>>,
    /// Held until everything else has ended.
    _lock: File,
}

/// Connections that the kernel keeps until they are accepted, where the system allows as many (`net.core.somaxconn`): one
/// that finds no room there is dropped, and tried again a second later.
const BACKLOG: u32 = 4096;

/// As [`TcpListener::bind`], with room for a crowd that comes at once.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Coordinator {
    /// Opens the data folder, its database and blobs, and serves. Only one coordinator runs on a data folder.
    pub async fn start(config: CoordinatorConfig) -> Result<Self, StartError> {
        let mut certified = Vec::new();
        if let Some(files) = &config.tls {
            files.check()?;
            certified = files.hosts()?;
        } else if config.agent_certificates.is_some() {
            return Err(StartError::CertificatesWithoutTls);
        }
        if let Some(address) = config.listen
            && !is_loopback(&address)
            && config.tls.is_none()
            && !config.insecure_http
        {
            return Err(StartError::PlainHttp { address });
        }
        if config.listen.is_none() && config.unix_socket.is_none() {
            return Err(StartError::NoListener);
        }
        let data_dir = &config.data_dir;
        durable::create_private_dir(data_dir).map_err(StartError::io("create the data folder", data_dir))?;
        let lock = lock_data_dir(data_dir)?;
        let allow_readable_key = config.tls.as_ref().is_some_and(|files| files.allow_readable_key);
        let authority = config.agent_certificates.as_ref();
        let authority = authority.map(|how| Authority::open(data_dir, how.life, allow_readable_key)).transpose()?;
        let authority = authority.map(Arc::new);
        let own = authority.as_ref().map(|authority| authority.certificate());
        let tls = config.tls.clone().map(|files| Tls::open(files, own)).transpose()?.map(Arc::new);
        let by_file = config.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let require_agent_certificate = by_file || config.agent_certificates.as_ref().is_some_and(|how| how.required);

        let place = Place::of(&config);
        let log_folder = data_dir.join("logs");
        durable::create_private_dir(&log_folder).map_err(StartError::io("create folder", &log_folder))?;
        let sessions_file = Some(data_dir.join("sessions.json"));
        let farm_config = FarmConfig { log_folder: Some(log_folder), sessions_file, ..config.farm.clone() };
        let bound = || Bound::bind(&config, tls.as_ref(), &certified);
        let (farm, blobs, bound, peers_secret) = match &config.postgres {
            None => {
                let (farm, blobs) = open_here(&config, &place, farm_config).await?;
                write_first_token(&farm, data_dir).await?;
                (farm, blobs, bound()?, None)
            }
            Some(postgres) => {
                let bound = bound()?;
                let (farm, blobs, secret) =
                    lead(&config, postgres, &place, farm_config, &bound, tls.as_deref()).await?;
                write_first_token(&farm, data_dir).await?;
                (farm, blobs, bound, Some(secret))
            }
        };
        let Bound { listeners, address, url } = bound;
        let options = Options {
            form_within: config.limits.first_request_within,
            require_agent_certificate,
            authority,
            public_url: config.public_url,
            own_url: url.clone().unwrap_or_default(),
            session_cookie: Options::session_cookie_on(address.map_or(0, |address| address.port())),
            peers_secret,
        };
        let page_url = options.page_url().to_owned();
        let closing = CancellationToken::new();
        tokio::spawn(collect_uploads(blobs.clone(), closing.clone()));
        let (looked, closed) = (blobs.clone(), closing.clone());
        tokio::spawn(async move { looked.keep_looking(closed).await });
        let tidy = Tidy::new(farm.clone(), data_dir.join("tidied"));
        let (tidying, closed) = (tidy.clone(), closing.clone());
        tokio::spawn(async move { closed.run_until_cancelled(tidying.for_ever()).await });
        if let Some(schedule) = config.refresh {
            let refresher = Refresher { farm: farm.clone(), schedule, mark: data_dir.join("refreshed") };
            let closed = closing.clone();
            tokio::spawn(async move { closed.run_until_cancelled(refresher.for_ever()).await });
        }
        if let Some(options) = config.scrub {
            let (blobs, closing) = (blobs.clone(), closing.clone());
            tokio::spawn(async move { blobs.keep_scrubbing(options, closing).await });
        }
        let serving =
            tokio::spawn(serve(listeners, farm.clone(), blobs.clone(), options, config.limits, closing.clone()));
        let socket = config.unix_socket.as_deref().map(|socket| tracing::field::display(socket.display()));
        tracing::info!(url, socket, data = %data_dir.display(), "coordinator started");
        let unix_socket = config.unix_socket;
        let serving = Some(serving);
        Ok(Self { farm, blobs, tidy, address, url, page_url, unix_socket, tls, closing, serving, _lock: lock })
    }

    pub fn farm(&self) -> &Farm {
        &self.farm
    }

    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// `http://HOST:PORT` or `https://HOST:PORT`; with TLS a host that the certificate is made out to, where it names one.
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// A link that signs one browser in as this data folder's owner, once; `None` without a port.
    pub fn login_link(&self) -> Result<Option<(String, LoginLink)>, ApiError> {
        if self.page_url.is_empty() {
            return Ok(None);
        }
        let link = self.farm.make_login_link(&Actor::local(), Proof::Owner)?;
        Ok(Some((format!("{}{}", self.page_url, link.path), link)))
    }

    /// Reads certificates, keys and authorities again, for connections that come from now on; whether there are any. Files
    /// that cannot be used change nothing.
    pub fn reload_tls(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), |tls| tls.reload().map(|()| true))
    }

    /// Ends once the farm has ended by itself: with PostgreSQL because another coordinator leads.
    pub async fn ended(&self) -> ApiError {
        self.farm.ended().await
    }

    pub fn unix_socket(&self) -> Option<&Path> {
        self.unix_socket.as_deref()
    }

    /// Takes away what nobody needs any more where that was not done lately, for at most so long: for a coordinator that
    /// ends before it would come to it.
    pub async fn tidy_if_due(&self, within: Duration) {
        self.tidy.if_due(within).await;
    }

    /// Ends streams, lets requests in flight finish within the grace, and closes the farm when all is durable.
    pub async fn shutdown(mut self) {
        self.closing.cancel();
        if let Some(serving) = self.serving.take()
            && let Err(error) = serving.await
        {
            tracing::error!(%error, "the server ended badly");
        }
        self.farm.close().await;
        tracing::info!("coordinator stopped");
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.closing.cancel();
        if let Some(path) = &self.unix_socket {
            // A stale socket is replaced at the next start anyway.
            let _ = fs::remove_file(path);
        }
    }
}

/// Host and port by which programs reach the address: a host that the certificate is made out to (`certified`), where there
/// is one, else the address itself. One that stands for every address is none to connect to.
fn reached_as(address: SocketAddr, certified: &[String]) -> String {
    let port = address.port();
    let own = address.ip().to_string();
    let is_own = |host: &&String| **host == own;
    // Of a name and an address, people know the name.
    let is_name = |host: &&String| host.parse::<IpAddr>().is_err() && *host != "localhost";
    let named = || certified.iter().find(is_name).or_else(|| certified.first());
    let host = if address.ip().is_unspecified() { named() } else { certified.iter().find(is_own).or_else(named) };
    match host {
        Some(host) if host.contains(':') => format!("[{host}]:{port}"),
        Some(host) => format!("{host}:{port}"),
        None if address.ip().is_unspecified() => format!("localhost:{port}"),
        None => address.to_string(),
    }
}

async fn collect_uploads(blobs: Blobs, closing: CancellationToken) {
    let mut interval = tokio::time::interval(COLLECT_INTERVAL);
    while closing.run_until_cancelled(interval.tick()).await.is_some() {
        let collected = blobs.collect_stale_uploads().await;
        if collected > 0 {
            tracing::info!(collected, "removed uploads that nobody continued");
        }
    }
}

/// Where a coordinator listens.
struct Bound {
    listeners: Vec<Listener>,
    address: Option<SocketAddr>,
    url: Option<String>,
}

impl Bound {
    fn bind(config: &CoordinatorConfig, tls: Option<&Arc<Tls>>, certified: &[String]) -> Result<Self, StartError> {
        let (mut listeners, mut address) = (Vec::new(), None);
        if let Some(asked) = config.listen {
            let failed = |source| StartError::Listen { address: asked.to_string(), source };
            let listener = listen(asked).map_err(failed)?;
            address = Some(listener.local_addr().map_err(failed)?);
            listeners.push(match tls {
                Some(tls) => Listener::Tls(listener, tls.clone()),
                None => Listener::Tcp(listener),
            });
        }
        if let Some(path) = &config.unix_socket {
            listeners.push(Listener::Unix(bind_private(path)?));
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = address.map(|address| format!("{scheme}://{}", reached_as(address, certified)));
        Ok(Self { listeners, address, url })
    }
}

/// Opens the farm whose database lies in the data folder.
async fn open_here(config: &CoordinatorConfig, place: &Place, farm: FarmConfig) -> Result<(Farm, Blobs), StartError> {
    if config.data_dir.join(FARM_NAME).exists() {
        return Err(StartError::StoreElsewhere { folder: config.data_dir.clone() });
    }
    let database = config.data_dir.join(DATABASE);
    let state = place.look().await?;
    if !config.new_farm && is_gone(&database) && state.has_blobs {
        return Err(StartError::DatabaseGone { path: database });
    }
    let store = Arc::new(SqliteStore::open(&database).await.map_err(StartError::Farm)?);
    let blobs = place.open(store.clone(), None).await?;
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(store, blobs.as_store(), farm, clock).await.map_err(StartError::Farm)?;
    Ok((farm, blobs))
}

/// Opens the farm of a PostgreSQL database once this coordinator leads it, and stands by until then.
async fn lead(
    config: &CoordinatorConfig,
    postgres: &PostgresConfig,
    place: &Place,
    farm: FarmConfig,
    bound: &Bound,
    tls: Option<&Tls>,
) -> Result<(Farm, Blobs, Arc<str>), StartError> {
    let folders: Vec<PathBuf> = [Some(config.data_dir.clone()), place.folder()].into_iter().flatten().collect();
    let state = place.look().await?;
    let known = if config.new_farm { None } else { farm_of(&folders)?.or(state.farm) };
    let has_blobs = state.has_blobs;
    let trust = Trust::open(config.peers_ca.as_deref()).map_err(StartError::Peers)?;
    if !config.advertise.is_empty() {
        Address::read(&config.advertise).map_err(|why| StartError::Peers(format!("--advertise {why}")))?;
    }
    let named = [&config.advertise, &config.public_url].into_iter().find(|url| !url.is_empty());
    let address = named.or(bound.url.as_ref()).map(|url| url.trim_end_matches('/').to_owned()).unwrap_or_default();
    let may_begin = config.new_farm || (known.is_none() && !has_blobs);
    let postgres = PostgresConfig { address, farm: known, may_begin, ..postgres.clone() };
    let store = PostgresStore::open(&postgres).await.map_err(|error| StartError::Farm(error.into()))?;
    for folder in &folders {
        write_farm_name(folder, store.farm())?;
    }
    let store = Arc::new(store);
    let farm =
        FarmConfig { owner: format!("planforge {} (pid {})", env!("CARGO_PKG_VERSION"), std::process::id()), ..farm };
    let none = String::new;
    let unknown = Leadership { epoch: 0, owner: none(), address: none(), holder: none(), is_free: true };
    let (told, leader) = watch::channel(unknown);
    let leading = async {
        loop {
            match store.leadership().await {
                Ok(leadership) if leadership.is_free => {
                    told.send_replace(leadership);
                    // Opened only now: what the former leader left in it is taken over.
                    let blobs = match place.take_over(&store, &farm.owner).await? {
                        Some(blobs) => blobs,
                        None => continue,
                    };
                    let clock = Arc::new(SystemClock::new());
                    match Farm::open(store.clone(), blobs.as_store(), farm.clone(), clock).await {
                        Ok(farm) => return Ok((farm, blobs, Arc::from(store.holder()))),
                        // Another one was faster.
                        Err(error) if error.code == ErrorCode::Unavailable => tracing::info!(%error, "standing by"),
                        Err(error) => return Err(StartError::Farm(error)),
                    }
                }
                Ok(leadership) => {
                    let is_news = *told.borrow() != leadership;
                    if is_news {
                        let own = bound.url.as_deref().unwrap_or_default();
                        let words = format!("{}; listening at {own}", standby::words(&leadership));
                        tracing::info!(leader = leadership.owner, at = leadership.address, "standing by");
                        if let Some(standing_by) = &config.standing_by {
                            standing_by.send_replace(words);
                        }
                        told.send_replace(leadership);
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot see who leads; trying again"),
            }
            tokio::time::sleep(STANDBY_LOOKS).await;
        }
    };
    let rereading = async {
        let Some((reread, tls)) = config.reread.as_deref().zip(tls) else { return std::future::pending().await };
        loop {
            reread.notified().await;
            match tls.reload() {
                Ok(()) => tracing::info!("read certificates and keys again"),
                Err(error) => tracing::warn!(%error, "certificates stay as they are"),
            }
        }
    };
    let forward = Forward::new(leader, trust);
    tokio::select! {
        led = standby::stand_by(&bound.listeners, forward, config.limits.clone(), leading) => led,
        () = rereading => unreachable!("goes on for ever"),
    }
}

/// Notes which farm a folder is of.
pub(super) fn write_farm_name(folder: &Path, farm: &str) -> Result<(), StartError> {
    durable::create_private_dir(folder).map_err(StartError::io("create folder", folder))?;
    let path = folder.join(FARM_NAME);
    durable::write_private(&path, format!("{farm}\n").as_bytes()).map_err(StartError::io("write", &path))
}

/// The farm that folders are of, where one says so; they must agree.
fn farm_of(folders: &[PathBuf]) -> Result<Option<String>, StartError> {
    let mut known: Option<(PathBuf, String)> = None;
    for folder in folders {
        let path = folder.join(FARM_NAME);
        let found = match fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(StartError::io("read", &path)(error)),
        };
        match &known {
            Some((other, known)) if *known != found => {
                let (folder, other, known) = (folder.clone(), other.clone(), known.clone());
                return Err(StartError::TwoFarms { folder, found, other, known });
            }
            _ => known = Some((folder.clone(), found)),
        }
    }
    Ok(known.map(|(_, farm)| farm))
}

/// Whether there is no database. One without a byte is none either: SQLite would take it for a new one.
pub(super) fn is_gone(database: &Path) -> bool {
    match fs::metadata(database) {
        Ok(facts) => facts.len() == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Locks the folder for this process; the lock ends with it, however it ends.
pub(super) fn lock_data_dir(data_dir: &Path) -> Result<File, StartError> {
    let path = data_dir.join("coordinator.lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(StartError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // The holder may be writing it just now; then only its number stays unknown.
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".into() } else { pid.trim().to_owned() };
            return Err(StartError::Locked { data_dir: data_dir.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(StartError::io("lock", &path)(source)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(StartError::io("write", &path))?;
    Ok(file)
}

/// On the first start: a token for whoever may read the data folder. Its file is durable before the farm knows it; a file
/// that a first start left which did not come so far is used, so that no farm has a token that nobody can read.
async fn write_first_token(farm: &Farm, data_dir: &Path) -> Result<(), StartError> {
    let local = Actor::local();
    if !farm.list_tokens(&local).await.map_err(StartError::Farm)?.tokens.is_empty() {
        return Ok(());
    }
    let path = data_dir.join(ADMIN_TOKEN_FILE);
    let left = fs::read_to_string(&path).ok().map(|text| text.trim().to_owned()).filter(|text| farm::is_secret(text));
    let secret = match left {
        Some(secret) => secret,
        None => {
            let secret = farm.fresh_secret();
            durable::write_private(&path, format!("{secret}\n").as_bytes()).map_err(StartError::io("write", &path))?;
            secret
        }
    };
    farm.create_first_token(&local, secret).await.map_err(StartError::Farm)
}

/// Where the first administrator's token of a data folder lies.
pub fn admin_token_file(data_dir: &Path) -> PathBuf {
    data_dir.join(ADMIN_TOKEN_FILE)
}

/// Where the coordinator of a data folder keeps a blob, or would keep it: for its owner's processes on this machine.
pub fn blob_file(data_dir: &Path, digest: Digest) -> PathBuf {
    blob_path(&data_dir.join(BLOBS), digest)
}

/// Binds a socket that only this user may open. It gets its name after its permissions, so there is no moment at which
/// others could connect; a stale one is replaced, which the lock on the data folder makes safe.
fn bind_private(path: &Path) -> Result<UnixListener, StartError> {
    let staged = path.with_added_extension("new");
    let bytes = staged.as_os_str().len();
    if bytes > MAX_SOCKET_PATH_BYTES {
        return Err(StartError::SocketPathTooLong { path: path.to_owned(), bytes });
    }
    let failed = |source| StartError::Listen { address: path.display().to_string(), source };
    if let Some(folder) = path.parent() {
        durable::create_private_dir(folder).map_err(failed)?;
    }
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&staged).map_err(failed)?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&staged, path).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_is_named_by_a_host_that_its_certificate_covers() {
        let reached = |address: &str, certified: &[&str]| {
            let certified: Vec<String> = certified.iter().map(|host| (*host).to_owned()).collect();
            reached_as(address.parse().unwrap(), &certified)
        };
        assert_eq!(reached("0.0.0.0:7400", &["localhost", "farm.example"]), "farm.example:7400");
        assert_eq!(reached("10.0.0.7:7400", &["farm.example", "10.0.0.7"]), "10.0.0.7:7400");
        assert_eq!(reached("10.0.0.8:7400", &["10.0.0.7", "farm.example"]), "farm.example:7400");
        assert_eq!(reached("[::]:7400", &["::1"]), "[::1]:7400");
        assert_eq!(reached("0.0.0.0:7400", &["localhost"]), "localhost:7400");
        assert_eq!(reached("127.0.0.1:7400", &[]), "127.0.0.1:7400");
        assert_eq!(reached("0.0.0.0:7400", &[]), "localhost:7400");
    }
}
