//! The command line's grammar.

#[cfg(feature = "local")]
use crate::commands::{
    admin, agent, bench, coordinator, doctor, eval, explain, inspect, ops, prepare, probe, run, testmodel, token, up,
};
use crate::{
    commands::{
        agents, audit, best, build, caches, cancel, check, compare, completions, config, devices, diff, engines,
        events, fetch, gc, history, jobs, login, logs, man_pages, matrix, open, pause, pins, plugins, priority,
        projects, refresh, report, requests, retry, share, submit, sync, watch,
    },
    examples, failure,
    settings::{self, Key, Layer},
};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::{ffi::OsString, sync::LazyLock};

/// Below every command's list: what holds for all of them.
static AFTER_HELP: LazyLock<String> =
    LazyLock::new(|| format!("{}\n\n{}\n{}", examples::text(""), failure::exit_codes_text(), settings::help_text()));

/// Builds, measures, stores and compares inference engines on real devices.
///
/// Without a coordinator, `planforge build` does the whole job on this machine.
#[derive(Debug, Parser)]
#[command(name = "planforge", version, max_term_width = 120, after_long_help = AFTER_HELP.as_str())]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The whole grammar, examples in every command's help included.
    pub fn grammar() -> clap::Command {
        examples::add(Self::command(), "")
    }

    /// What a process's arguments say, its own name first.
    pub fn of_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = Self::grammar().try_get_matches_from(arguments)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::grammar()))
    }
}

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// URL of the coordinator [env: PLANFORGE_SERVER]
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Project that jobs belong to [env: PLANFORGE_PROJECT]
    #[arg(long, global = true, value_name = "NAME")]
    pub project: Option<String>,
    /// Secret that says who you are; safer in a file or the environment [env: PLANFORGE_TOKEN]
    #[arg(long, global = true, value_name = "SECRET", hide_short_help = true)]
    pub token: Option<String>,
    /// File that holds the token [env: PLANFORGE_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub token_file: Option<String>,
    /// PEM file of the authority that signed the coordinator's certificate [env: PLANFORGE_CA]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub ca: Option<String>,
    /// Allow http:// beyond this machine: tokens and plans travel in the clear [env: PLANFORGE_INSECURE]
    #[arg(long, global = true, hide_short_help = true)]
    pub insecure: bool,
    /// Take token files and keys that other users can read [env: PLANFORGE_ALLOW_READABLE_KEY]
    #[arg(long, global = true, hide_short_help = true)]
    pub allow_readable_key: bool,
    /// Folder of the farm on this machine [env: PLANFORGE_DATA]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<String>,
    /// GiB that this machine's agent keeps of models and timing caches [env: PLANFORGE_AGENT_CACHE]
    #[arg(long, global = true, value_name = "GIB", hide_short_help = true)]
    pub agent_cache: Option<String>,
    /// Seconds that this machine's agent may measure one engine for, even where comparisons need more [env: PLANFORGE_MEASURE_BUDGET_S]
    #[arg(long, global = true, value_name = "S", hide_short_help = true)]
    pub measure_budget_s: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing on stderr but warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Log more: -v info, -vv debug, -vvv trace
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log filter, such as info,planforge_agent=debug [env: PLANFORGE_LOG]
    #[arg(long, global = true, value_name = "FILTER", hide_short_help = true)]
    pub log: Option<String>,
    /// Log lines as text or json [env: PLANFORGE_LOG_FORMAT]
    #[arg(long, global = true, value_name = "FORMAT", hide_short_help = true)]
    pub log_format: Option<String>,
}

impl Global {
    /// The flags as the strongest layer of settings.
    pub fn layer(&self) -> Layer {
        let flags = [
            (Key::Server, &self.server),
            (Key::Project, &self.project),
            (Key::Token, &self.token),
            (Key::TokenFile, &self.token_file),
            (Key::Ca, &self.ca),
            (Key::Data, &self.data),
            (Key::AgentCache, &self.agent_cache),
            (Key::MeasureBudget, &self.measure_budget_s),
            (Key::Log, &self.log),
            (Key::LogFormat, &self.log_format),
        ];
        let texts = flags.into_iter().filter_map(|(key, text)| text.clone().map(|text| (key, text)));
        let switches = [(Key::Insecure, self.insecure), (Key::AllowReadable, self.allow_readable_key)];
        let on = switches.into_iter().filter(|(_, on)| *on).map(|(key, _)| (key, "true".to_owned()));
        texts.chain(on).collect()
    }
}

/// One variant per command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build engines of a model, measure them and bring them here
    Build(build::Args),
    #[cfg(feature = "local")]
    /// Run a coordinator and this machine's agent
    Up(up::Args),
    #[cfg(feature = "local")]
    /// Run a coordinator
    Coordinator(coordinator::Args),
    #[cfg(feature = "local")]
    /// Run this machine's agent for a coordinator
    Agent(agent::Args),
    /// Submit jobs and return at once
    Submit(submit::Args),
    /// List jobs
    Jobs(jobs::Args),
    /// List requests: who asked for how much, and how it stands
    Requests(requests::Args),
    /// List what happened to jobs
    Events(events::Args),
    /// Follow jobs as they change
    Watch(watch::Args),
    /// Print the log of a job
    Logs(logs::Args),
    /// Cancel jobs
    Cancel(cancel::Args),
    /// Change how urgent waiting jobs are
    Priority(priority::Args),
    /// Build engines again that are stale or outdated
    Refresh(refresh::Args),
    /// Try the failed and skipped jobs of a request again
    Retry(retry::Args),
    /// Bring finished engines here, verified: those that are locked, or a model's newest
    Fetch(fetch::Args),
    /// Build what planforge.toml declares, and write engines.lock
    Sync(sync::Args),
    /// Say whether every declared engine is there, fresh and fast enough; build nothing
    Check(check::Args),
    /// Show what changed between two locks, with verdicts
    Diff(diff::Args),
    /// Check planforge.toml, print its schema, or show what the farm knows of it
    Config(config::Args),
    /// List, add and remove pins: who wants which engine kept, and until when
    Pins(pins::Args),
    /// Make, list and end links for reading one request or model
    Share(share::Args),
    /// Show the measurements of a job, engine or plan
    Report(report::Args),
    /// Compare reports with each other
    Compare(compare::Args),
    /// Say which engine of a model is the best, of those that keep bounds
    Best(best::Args),
    /// Show where plans built for one device kind may serve others
    Matrix(matrix::Args),
    /// List devices, and the flag that names each
    Devices(devices::Args),
    /// List, drain, resume and forget agents
    Agents(agents::Args),
    /// List projects, set their shares and limits
    Projects(projects::Args),
    /// Show who did what to the farm, and what came of it
    Audit(audit::Args),
    /// Take away what nobody needs any more
    Gc(gc::Args),
    #[cfg(feature = "local")]
    /// Keep a farm whole: check, back up, restore, look stored bytes through
    Admin(admin::Args),
    #[cfg(feature = "local")]
    /// Look for what is wrong with this machine; sets nothing
    Doctor(doctor::Args),
    #[cfg(feature = "local")]
    /// Measure what this machine's GPU reaches: copies, products, transfers, launches
    Probe(probe::Args),
    /// List finished engines
    Engines(engines::Args),
    /// Show how fast a model's engines were, build after build, and since which build that is another
    History(history::Args),
    #[cfg(feature = "local")]
    /// Show what a plan or an ONNX file holds
    Inspect(inspect::Args),
    #[cfg(feature = "local")]
    /// Say what the native compiler would do with a model, and what it cannot
    Explain(explain::Args),
    #[cfg(feature = "local")]
    /// List the operators that a native compiler knows
    Ops(ops::Args),
    #[cfg(feature = "local")]
    /// Measure a plan or a model on this machine, or on devices of the farm
    Bench(bench::Args),
    #[cfg(feature = "local")]
    /// Run a plan on inputs from a file
    Run(run::Args),
    #[cfg(feature = "local")]
    /// Make a model of other number types, calibrated on data
    Prepare(prepare::Args),
    #[cfg(feature = "local")]
    /// Say how often a plan is right on labelled data
    Eval(eval::Args),
    /// List and drop the timing caches that the farm keeps
    Caches(caches::Args),
    /// Give a device kind, project or agent no more jobs for a while, or in windows
    Pause(pause::Args),
    /// Let what is paused have jobs again
    Resume(pause::ResumeArgs),
    /// List, allow and forbid plugin libraries
    Plugins(plugins::Args),
    /// Keep a token for one coordinator, so that it goes to no other
    Login(login::Args),
    /// Forget the token that login keeps for a coordinator
    Logout(login::LogoutArgs),
    /// Print a link that signs a browser in to the page, once
    Open(open::Args),
    #[cfg(feature = "local")]
    /// Create, list, rebind and revoke tokens
    Token(token::Args),
    #[cfg(feature = "local")]
    /// Write a model to try the farm with
    Testmodel(testmodel::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Write a man page for each command
    #[command(hide = true)]
    ManPages(man_pages::Args),
    #[cfg(feature = "local")]
    /// One job of an agent
    #[command(hide = true)]
    Worker,
    #[cfg(feature = "local")]
    /// Look whether a GPU can be used; agents start this after a failure
    #[command(hide = true)]
    CheckDevice { device: String },
    #[cfg(feature = "local")]
    /// Run each step of a plan once; what reads a GPU's counters starts this
    #[command(hide = true)]
    RunSteps { plan: std::path::PathBuf, profile: usize },
    #[cfg(feature = "local")]
    /// Compile kernels that standard input brings; workers start this
    #[command(hide = true)]
    CompileKernels,
    #[cfg(feature = "local")]
    /// Time the candidates that standard input names; workers start this
    #[command(hide = true)]
    TimeCandidates,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::grammar().debug_assert();
    }

    #[test]
    fn every_setting_with_a_global_flag_says_its_variable() {
        let command = Cli::command();
        for setting in settings::SETTINGS.iter().filter(|s| ![Key::Skus, Key::Store, Key::Blobs].contains(&s.key)) {
            let argument = command.get_arguments().find(|a| a.get_long() == setting.flag.strip_prefix("--"));
            let help = argument.and_then(|a| a.get_help()).map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("[env: {}]", setting.env)), "{}: {help}", setting.flag);
        }
    }
}
