//! `planforge coordinator`: the queue, store and page of a farm whose agents run elsewhere.

use crate::{
    ages,
    cloud::{self, CloudArgs},
    context::Context,
    credentials,
    failure::Failure,
    local::{DataFolder, Record, copies},
    settings::Key,
    signals::Asked,
};
use planforge_coordinator::{
    blobs::{CloudBlobsOptions, ScrubOptions},
    farm::FarmConfig,
    server::{
        self, AgentCertificates, BlobsPlace, CERTIFICATE_LIFE, Coordinator, CoordinatorConfig, RefreshSchedule,
        StartError,
    },
    store::PostgresConfig,
    tls::TlsFiles,
};
use planforge_types::{Digest, open_files};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

/// How long another process may keep the data folder: commands that look something up do for a moment.
const OTHERS_END_LIMIT: Duration = Duration::from_secs(5);
const DAY_S: u64 = 24 * 60 * 60;
const TRY_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub listen: ListenArgs,
}

/// Flags of everything that listens.
#[derive(Debug, clap::Args)]
pub struct ListenArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// PEM file with the certificate, followed by its intermediates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file with the authorities that agents' certificates must come from (mutual TLS)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub agent_ca: Option<PathBuf>,
    /// Certify agents here: offer it, or require it, so that agents' tokens alone let nobody in
    #[arg(long, value_name = "HOW", requires = "tls_cert")]
    pub agent_certificates: Option<Certificates>,
    /// How long an agent's certificate holds; it renews it after two thirds
    #[arg(long, value_name = "S", default_value_t = CERTIFICATE_LIFE.as_secs(), hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(10..=31_536_000))]
    pub agent_certificate_life_s: u64,
    /// PostgreSQL database of the farm, instead of one in its folder: postgres://USER@HOST/DATABASE. A password does not
    /// belong here, where every user of this machine can read it [env: PLANFORGE_STORE]
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub store: Option<String>,
    /// File that holds that URL, with its password
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with = "store")]
    pub store_file: Option<PathBuf>,
    /// Where the blobs lie, if not in the folder of the farm: another folder, or s3://BUCKET/PREFIX; coordinators of one
    /// farm share it
    #[arg(long, value_name = "DIR|URL", hide_short_help = true)]
    pub blobs: Option<String>,
    #[command(flatten)]
    pub cloud: CloudArgs,
    /// Let clients read blobs from the store itself, and write large ones to it, by addresses that hold for so long
    #[arg(long, value_name = "S", hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub blobs_direct: Option<u64>,
    /// Where the farm's other coordinators reach this one while it leads: http://HOST:PORT or https://HOST:PORT, and no load
    /// balancer's; without it, its --public-url, or the address that it listens on
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub advertise: String,
    /// PEM file with the authorities that the other coordinators' certificates come from, if not the system's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub peers_ca: Option<PathBuf>,
    /// Begin an empty farm where blobs lie whose database is gone
    #[arg(long, hide_short_help = true)]
    pub new: bool,
    /// MiB in a second that the look for damage among stored blobs reads, at most; 0: only when asked for
    #[arg(long, value_name = "MIB", default_value_t = ScrubOptions::default().bytes_per_s >> 20, hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub scrub_rate: u64,
    /// Days from one such look at all of them to the next
    #[arg(long, value_name = "DAYS", default_value_t = ScrubOptions::default().period.as_secs() / DAY_S, hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(1..=3_650))]
    pub scrub_days: u64,
    /// Folder with copies of blobs (another farm's blobs, a backup's): what is damaged here is taken from there; repeat for several
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub blobs_copy: Vec<PathBuf>,
    /// Nothing any more: every address asks for a token
    #[arg(long, hide = true)]
    pub require_token: bool,
    /// Plugin library that jobs may load, by its SHA-256; repeat for several (planforge plugins allows more at any time)
    #[arg(long = "allow-plugin", value_name = "DIGEST", hide_short_help = true)]
    pub allow_plugins: Vec<Digest>,
    /// Let a digest be enough to reach what other projects have, as among people who trust each other
    #[arg(long)]
    pub share_projects: bool,
    /// Jobs of all projects that may wait or run at once
    #[arg(long, value_name = "N", default_value_t = FarmConfig::default().max_live_jobs as u32, hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pub max_jobs: u32,
    /// Lines of each kind (acts of administrators, use, refusals) that the audit log keeps
    #[arg(long, value_name = "N", default_value_t = FarmConfig::default().audit_lines as u32, hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub audit_lines: u32,
    /// How long ended jobs are kept, such as 90d; 'ever': for ever
    #[arg(long, value_name = "AGE", default_value = "90d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_jobs: Keep,
    /// How long events are kept, of jobs that are kept for longer
    #[arg(long, value_name = "AGE", default_value = "30d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_events: Keep,
    /// How long logs of attempts are kept, likewise
    #[arg(long, value_name = "AGE", default_value = "30d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_logs: Keep,
    /// How long measurements of a plan are kept of which there is a newer one
    #[arg(long, value_name = "AGE", default_value = "90d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_reports: Keep,
    /// How long files are kept that were sent and never named by a job
    #[arg(long, value_name = "AGE", default_value = "7d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_uploads: Keep,
    /// How long engines are kept that nobody asks for
    #[arg(long, value_name = "AGE", default_value = "90d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_unused: Keep,
    /// How long builds are kept that a newer one of the same key took the place of
    #[arg(long, value_name = "AGE", default_value = "7d", hide_short_help = true, value_parser = parse_keep)]
    pub keep_superseded: Keep,
    /// GiB that all engines together may take; those that were used longest ago go first; 0: as many as the disk has
    #[arg(long, value_name = "GIB", default_value_t = 20, hide_short_help = true)]
    pub keep_gib: u64,
    /// Look this often for engines that are stale or outdated and build them again, such as 1d; without it, only 'planforge
    /// refresh' does
    #[arg(long, value_name = "AGE", hide_short_help = true, value_parser = ages::parse)]
    pub refresh_every: Option<u64>,
    /// With --refresh-every: also engines that were last measured longer ago, such as 90d
    #[arg(long, value_name = "AGE", hide_short_help = true, requires = "refresh_every", value_parser = ages::parse)]
    pub refresh_older_than: Option<u64>,
    /// How others reach this coordinator, for the commands that the page shows
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub public_url: String,
    /// How often agents tell that they live
    #[arg(long, value_name = "MS", default_value_t = FarmConfig::default().heartbeat_ms, hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(50..=600_000))]
    pub heartbeat_ms: u32,
    /// How long a job stays with an agent that is not heard of
    #[arg(long, value_name = "MS", default_value_t = FarmConfig::default().lease_ms, hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(100..=3_600_000))]
    pub lease_ms: u32,
}

/// Looking more often would only find what is under way.
const MINUTE_MS: u64 = 60_000;

/// How long something is kept; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep(Option<u64>);

fn parse_keep(text: &str) -> Result<Keep, String> {
    if text == "ever" { Ok(Keep(None)) } else { ages::parse(text).map(|age_ms| Keep(Some(age_ms))) }
}

/// Whether agents need certificates that this coordinator makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Certificates {
    /// Agents may enroll
    Offer,
    /// Agents have to show a certificate
    Require,
}

impl ListenArgs {
    /// Whether several coordinators may share the farm.
    pub fn is_shared(&self, context: &Context<'_>) -> Result<bool, Failure> {
        Ok(store_url(context, self.store_file.as_deref(), self.store.as_deref())?.is_some())
    }

    /// Starts a coordinator on the data folder; its socket there serves this user's own commands. With it comes what it
    /// has been asked since. `None`: asked to end while another one led.
    pub async fn start(
        &self,
        context: &Context<'_>,
        folder: &DataFolder,
    ) -> Result<Option<(Coordinator, Asked)>, Failure> {
        if self.lease_ms < self.heartbeat_ms.saturating_mul(2) {
            let message =
                format!("a lease of {} ms ends between two heartbeats of {} ms", self.lease_ms, self.heartbeat_ms);
            return Err(
                Failure::usage(message).hint("make --lease-ms at least twice --heartbeat-ms; five times is usual")
            );
        }
        let allow_readable_key = context.settings.switch(Key::AllowReadable)?;
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        let mut config = CoordinatorConfig::new(folder.path());
        config.listen = Some(self.listen);
        config.new_farm = self.new;
        let store = store_url(context, self.store_file.as_deref(), self.store.as_deref())?;
        let is_shared = store.is_some();
        config.postgres = store.map(|url| PostgresConfig { url, ..PostgresConfig::default() });
        match self.blobs.as_deref().map(cloud::place).transpose()? {
            Some(BlobsPlace::Cloud(place)) => {
                let mut options = CloudBlobsOptions::new(place, folder.path());
                options.access = self.cloud.access(allow_readable_key);
                options.read_back = self.cloud.blobs_read_back;
                options.direct = self.blobs_direct.map(Duration::from_secs);
                options.copies = copies(folder.path(), &self.blobs_copy);
                config.cloud = Some(options);
            }
            in_folder => {
                let direct = self.blobs_direct.map(|_| "--blobs-direct");
                if let Some(flag) = self.cloud.any().or(direct) {
                    let message = format!("{flag} says something of a store that --blobs does not name");
                    return Err(Failure::usage(message).hint("name it: --blobs s3://BUCKET/PREFIX"));
                }
                config.blobs_dir = in_folder.and_then(|place| match place {
                    BlobsPlace::Folder(folder) => Some(folder),
                    BlobsPlace::Cloud(_) => None,
                });
            }
        }
        let (told, mut standing_by) = watch::channel(String::new());
        config.standing_by = Some(told);
        config.advertise.clone_from(&self.advertise);
        config.peers_ca.clone_from(&self.peers_ca);
        let reread = Arc::new(Notify::new());
        config.reread = Some(reread.clone());
        config.unix_socket = Some(folder.socket_path());
        config.tls = tls.map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_ca: self.agent_ca.clone(),
            allow_readable_key,
        });
        config.agent_certificates = self.agent_certificates.map(|how| AgentCertificates {
            required: how == Certificates::Require,
            life: Duration::from_secs(self.agent_certificate_life_s),
        });
        if self.require_token {
            context.printer.warn("--require-token does nothing any more: every address asks for a token");
        }
        config.insecure_http = context.settings.switch(Key::Insecure)?;
        config.public_url.clone_from(&self.public_url);
        config.scrub = (self.scrub_rate > 0).then(|| ScrubOptions {
            bytes_per_s: self.scrub_rate << 20,
            period: Duration::from_secs(self.scrub_days * DAY_S),
            ..ScrubOptions::default()
        });
        config.refresh = self.refresh_every.map(|every_ms| RefreshSchedule {
            every: Duration::from_millis(every_ms.max(MINUTE_MS)),
            older_than: self.refresh_older_than.map(Duration::from_millis),
        });
        config.blobs.copies = copies(folder.path(), &self.blobs_copy);
        config.farm.heartbeat_ms = self.heartbeat_ms;
        config.farm.lease_ms = self.lease_ms;
        config.farm.share_projects = self.share_projects;
        config.farm.max_live_jobs = self.max_jobs as usize;
        config.farm.audit_lines = self.audit_lines as usize;
        config.farm.retention.jobs_ms = self.keep_jobs.0;
        config.farm.retention.events_ms = self.keep_events.0;
        config.farm.retention.logs_ms = self.keep_logs.0;
        config.farm.retention.reports_ms = self.keep_reports.0;
        config.farm.retention.uploads_ms = self.keep_uploads.0;
        config.farm.retention.unused_ms = self.keep_unused.0;
        config.farm.retention.superseded_ms = self.keep_superseded.0;
        config.farm.retention.room_bytes = Some(self.keep_gib << 30).filter(|bytes| *bytes > 0);
        config.farm.plugins = self.allow_plugins.iter().copied().collect();
        // Every connection is an open file.
        if let Err(error) = open_files::raise() {
            context.printer.warn(&format!("the limit on open files stays as it is: {error}"));
        }
        let until = Instant::now() + OTHERS_END_LIMIT;
        let mut told = false;
        // Before a farm of this machine alone is open, nothing is lost by an end without a word.
        let mut asked = is_shared.then(Asked::listen);
        let started = {
            let mut ended = pin!(async {
                match &mut asked {
                    Some(asked) => asked.until_ended(|| reread.notify_one()).await,
                    None => std::future::pending().await,
                }
            });
            loop {
                let mut starting = pin!(Coordinator::start(config.clone()));
                let started = loop {
                    tokio::select! {
                        started = &mut starting => break started,
                        Ok(()) = standing_by.changed() => context.printer.note(&standing_by.borrow_and_update()),
                        () = &mut ended => return Ok(None),
                    }
                };
                match started {
                    // A command that looked something up hosts the farm for a moment.
                    Err(StartError::Locked { .. }) if Instant::now() < until => {
                        if !told {
                            context.printer.note("another planforge process has the data folder: waiting for its end");
                            told = true;
                        }
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                    started => break started?,
                }
            }
        };
        Ok(Some((started, asked.unwrap_or_else(Asked::listen))))
    }
}

/// Says where a started coordinator is and how to get in, and leaves its record for this user's own commands.
pub fn announce(
    context: &Context<'_>,
    coordinator: &Coordinator,
    folder: &DataFolder,
) -> Result<Option<Record>, Failure> {
    let record = coordinator.address().and_then(|address| Record::leave(address, folder, context.printer));
    let url = coordinator.url().unwrap_or_default();
    let link = coordinator.login_link()?;
    let sign_in = link.as_ref().map(|(url, _)| url.as_str()).unwrap_or_default();
    let minutes = link.as_ref().map_or(0, |(_, link)| link.life.as_secs() / 60);
    let token_file = server::admin_token_file(folder.path());
    let data = folder.path().display();
    let lines = [
        format!("url         {url}"),
        format!("page        {url}/"),
        format!("sign in     {sign_in}   (once, within {minutes} minutes)"),
        format!("token file  {}", token_file.display()),
        format!("data        {data}"),
    ];
    context.printer.lines(lines)?;
    context.printer.note(
        "every address asks for a token, 127.0.0.1 too; your own commands on this machine need none, and \
         `planforge open` prints another link that signs a browser in",
    );
    context.printer.object(&serde_json::json!({
        "url": url,
        "page": format!("{url}/"),
        "sign_in": sign_in,
        "token_file": token_file,
        "data": folder.path(),
    }))?;
    Ok(record)
}

/// Reads certificates and keys again, as SIGHUP asks for.
pub fn reload(context: &Context<'_>, coordinator: &Coordinator) {
    match coordinator.reload_tls() {
        Ok(true) => context.printer.note("read certificates and keys again; they hold for connections from now on"),
        Ok(false) => context.printer.note("there are no certificates to read again"),
        Err(error) => context.printer.warn(&format!("certificates stay as they are: {error}")),
    }
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let folder = DataFolder::open(&context.settings.data_folder()?)?;
    let Some((coordinator, mut asked)) = args.listen.start(context, &folder).await? else { return Ok(()) };
    let _record = announce(context, &coordinator, &folder)?;
    let result = tokio::select! {
        () = asked.until_ended(|| reload(context, &coordinator)) => Ok(()),
        failure = superseded(&coordinator, args.listen.is_shared(context)?) => Err(failure),
    };
    context.printer.note("ending: what was accepted is kept");
    coordinator.shutdown().await;
    result
}

/// The URL of the farm's store, where that is not a database in its folder.
pub fn store_url(context: &Context<'_>, file: Option<&Path>, flag: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(file) = file {
        let allow_readable = context.settings.switch(Key::AllowReadable)?;
        return credentials::read_secret("file of the store's URL", file, allow_readable).map(Some);
    }
    match flag {
        Some(url) if has_password(url) => {
            let message = "--store holds a password, which every user of this machine can read";
            Err(Failure::usage(message).hint("put the URL into PLANFORGE_STORE, or into a file: --store-file FILE"))
        }
        Some(url) => Ok(Some(url.to_owned())),
        None => Ok(context.settings.get(Key::Store).map(str::to_owned)),
    }
}

/// Returns only when another coordinator of a farm that several share leads now.
pub async fn superseded(coordinator: &Coordinator, is_shared: bool) -> Failure {
    if !is_shared {
        return std::future::pending().await;
    }
    let why = coordinator.ended().await;
    Failure::new(why.code, format!("this coordinator stopped leading: {}", why.message))
        .hint("start it again, as service managers do: it stands by then")
}

/// Whether a password stands in a URL of PostgreSQL, as user's or as parameter.
fn has_password(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let parameters = rest.split_once('?').map_or("", |(_, parameters)| parameters);
    user.contains(':') || parameters.split('&').any(|parameter| parameter.starts_with("password="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_seen() {
        for url in ["postgres://me:secret@db/farm", "postgres://db/farm?sslmode=require&password=secret"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["postgres://me@db:5432/farm", "postgres:///farm?host=/run/postgresql", "postgres://[::1]:5432/farm"]
        {
            assert!(!has_password(url), "{url}");
        }
    }
}
