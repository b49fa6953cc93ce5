//! What is no table: tiles, cards, and the parts of a job's page.

use crate::{cards::DeviceCard, rows::JobDetail, view::Frame};
use askama::Template;

#[derive(Clone, Debug, Template, Default, serde::Serialize)]
#[template(path = "counts.html")]
pub struct Counts {
    pub running: usize,
    pub waiting: usize,
    pub failed: usize,
    /// Jobs that ended last, as many as are looked at.
    pub ended: usize,
    pub devices_online: usize,
    pub devices_busy: usize,
    pub devices: usize,
    pub engines: String,
    /// Damaged blobs, for who sees the whole farm.
    pub set_aside: usize,
}

#[derive(Clone, Debug, Template)]
#[template(path = "devices.html")]
pub struct DeviceList {
    pub cards: Vec<DeviceCard>,
    /// Which of how many they are; empty: all.
    pub place: String,
    /// Where those before and behind them stand; empty: there are none.
    pub back: String,
    pub more: String,
    pub server: String,
}

impl DeviceList {
    fn join_command(&self) -> String {
        format!("planforge agent --server {}", self.server)
    }
}

#[derive(Clone, Debug, Template)]
#[template(path = "job_head.html")]
pub struct JobHead {
    pub job: JobDetail,
    /// Whether who looks may cancel and repeat it.
    pub may_act: bool,
}

/// A form that submits what a job was submitted as, with changes.
#[derive(Clone, Debug, Template)]
#[template(path = "clone.html")]
pub struct CloneForm {
    pub id: String,
    pub what: String,
    pub sku: String,
    pub toolchain: String,
    pub spec: String,
    pub builds: u32,
    pub priority: i32,
    pub tags: String,
    pub allow_inaccurate: bool,
    /// It builds; what only measures takes the plan as it is.
    pub is_build: bool,
}

/// What an administrator does to the farm as a whole.
#[derive(Clone, Debug, Template)]
#[template(path = "farm_acts.html")]
pub struct FarmActs;

/// Sets a project's limits.
#[derive(Clone, Debug, Template)]
#[template(path = "project_form.html")]
pub struct ProjectForm {
    /// Whoever belongs to one project sets that one's.
    pub project: String,
    /// Shares are the whole farm's to give.
    pub sets_shares: bool,
}

/// Has done what a dry run told of.
#[derive(Clone, Debug, Template)]
#[template(path = "collect.html")]
pub struct CollectForm;

/// A form that makes a link for reading.
#[derive(Clone, Debug, Template)]
#[template(path = "share.html")]
pub struct ShareForm {
    /// `request` or `model`.
    pub what: &'static str,
    pub of: String,
}

/// A link that was made: shown once.
#[derive(Clone, Debug, Template)]
#[template(path = "share_made.html")]
pub struct ShareMade {
    pub url: String,
    pub days: u64,
}

#[derive(Clone, Debug, Template)]
#[template(path = "job_attempts.html")]
pub struct JobAttempts {
    pub job: JobDetail,
}

/// The end of a log, and where to go on reading.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "job_log.html")]
pub struct LogTail {
    pub id: String,
    /// What is looked for in it: nothing yet.
    pub asked: String,
    pub text: String,
    /// Bytes before the text that are not shown.
    pub skipped: u64,
    pub next_offset: u64,
}

#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub frame: Frame,
    pub heading: String,
    pub message: String,
    pub hint: String,
}

#[derive(Debug, Template)]
#[template(path = "login.html")]
pub struct LoginPage {
    pub frame: Frame,
    pub next: String,
    /// Secret of a link that is good once; empty: a token is asked for.
    pub once: String,
    pub error: String,
}
