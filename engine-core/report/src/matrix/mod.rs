//! The portability matrix of a model: the plan built for each device kind, measured on each.
//!
//! A cell says *valid* where the foreign plan is shown to be no slower than the device's own engine, by the margin that
//! counts as no difference; *suboptimal* where it is shown to be slower; and *undecided* where neither is shown. Whatever
//! does not run there is *refused*, with the reason. What was not measured is said to be, never guessed from other cells.
//!
//! Several matrices are evidence of which device kinds may stand for each other ([`classes`]).

mod classes;
mod stand_in;

pub use classes::{Classes, LEAST_BOARDS, LEAST_MODELS, PairEvidence, classes};
pub use stand_in::{StandIn, spec_words, stand_in};

use crate::{
    Report,
    compare::{
        SAME_MARGIN,
        portability::{Loss, portability},
    },
    format::{milliseconds, percent},
};
use planforge_types::{Digest, Sku, fingerprint::DeviceFingerprint};
use serde::{Deserialize, Serialize};

/// Raised whenever a field changes its meaning or goes away.
pub const MATRIX_SCHEMA_VERSION: u32 = 1;

/// How a plan stands on a device kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was built for it.
    Own,
    /// Shown to be no slower than the own engine, within the margin.
    Valid,
    /// Shown to be slower by more.
    Suboptimal,
    /// Measured, and neither is shown.
    Undecided,
    /// It runs there, and its outputs are wrong.
    Wrong,
    /// It does not run there.
    Refused,
    Unmeasured,
}

impl State {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Valid => "valid",
            Self::Suboptimal => "suboptimal",
            Self::Undecided => "undecided",
            Self::Wrong => "wrong",
            Self::Refused => "refused",
            Self::Unmeasured => "not measured",
        }
    }
}

/// The plan of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    pub sku: Sku,
    /// Absent where nothing was built for the device kind.
    pub plan: Option<Digest>,
}

/// Why a plan does not run on a device kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub built_for: Sku,
    pub measured_on: Sku,
    pub reason: String,
    /// When that was found out, by the clock of reports; a measurement that came later counts instead. The end of time
    /// where no measurement could change it.
    pub at_unix_ms: u64,
}

/// What one board said of a cell, last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnBoard {
    /// UUID of a GPU; the agent's name where a device has none.
    pub board: String,
    pub state: State,
    pub simulated: bool,
}

/// A plan built for one device kind, on another or the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub built_for: Sku,
    pub measured_on: Sku,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Why it is refused, undecided or not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The job whose measurement it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// What of the two devices differs and may explain it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// Every board that measured it, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boards: Vec<OnBoard>,
}

impl Cell {
    /// As people read it in a table.
    pub fn short(&self) -> String {
        match (self.state, &self.loss, self.median_ms) {
            (State::Own, _, Some(median_ms)) => milliseconds(median_ms),
            (state, Some(loss), _) => format!("{:+.1} % {}", loss.relative * 100.0, state.words()),
            (state, ..) => state.words().to_owned(),
        }
    }

    /// As people read it on a line of its own; `None` where the table says everything.
    pub fn words(&self) -> Option<String> {
        let mut said = match (&self.loss, &self.reason) {
            (Some(loss), _) => format!(
                "{} (95 % interval {} to {}): {} against {}",
                percent(loss.relative),
                percent(loss.low),
                percent(loss.high),
                milliseconds(loss.foreign_ms),
                milliseconds(loss.own_ms)
            ),
            (None, Some(reason)) => reason.clone(),
            (None, None) => return None,
        };
        if !self.differences.is_empty() && !matches!(self.state, State::Own | State::Unmeasured) {
            said.push_str(&format!(" [{}]", self.differences.join("; ")));
        }
        Some(format!("{} on {}: {}: {said}", self.built_for, self.measured_on, self.state.words()))
    }
}

/// The plans of one model, spec and toolchain, wherever they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    pub schema_version: u32,
    pub model: String,
    pub model_digest: Digest,
    /// What tells architectures apart: models that differ in their weights alone count once as evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure_digest: Option<Digest>,
    pub toolchain: String,
    /// Precision, batch, threads and the rest, as people read them.
    pub spec: String,
    pub skus: Vec<Sku>,
    /// Losses up to this count as none.
    pub margin: f64,
    /// A number in here was measured on a scripted double.
    pub simulated: bool,
    /// Row by row: `built for` by `measured on`, both in the order of `skus`.
    pub cells: Vec<Cell>,
}

/// What a matrix is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    pub model: String,
    pub model_digest: Digest,
    pub structure_digest: Option<Digest>,
    pub toolchain: String,
    pub spec: String,
}

impl Matrix {
    /// Puts together what `reports` say of the plans in `built`; reports of other plans are no part of it.
    pub fn of(subject: Subject, built: &[Built], reports: &[Report], refusals: &[Refusal]) -> Self {
        let mut newest: Vec<&Report> = reports.iter().collect();
        newest.sort_by_key(|report| std::cmp::Reverse(report.provenance.measured_unix_ms));
        let known = Known { newest, refusals };
        let pairs = built.iter().flat_map(|row| built.iter().map(move |column| (row, column)));
        let cells: Vec<Cell> = pairs.map(|(row, column)| known.cell(row, column)).collect();
        let Subject { model, model_digest, structure_digest, toolchain, spec } = subject;
        Self {
            schema_version: MATRIX_SCHEMA_VERSION,
            model,
            model_digest,
            structure_digest,
            toolchain,
            spec,
            skus: built.iter().map(|row| row.sku.clone()).collect(),
            margin: SAME_MARGIN,
            simulated: cells.iter().flat_map(|cell| &cell.boards).any(|board| board.simulated),
            cells,
        }
    }

    pub fn cell(&self, built_for: &Sku, measured_on: &Sku) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.built_for == *built_for && cell.measured_on == *measured_on)
    }
}

/// Everything that is known, the newest reports first.
struct Known<'a> {
    newest: Vec<&'a Report>,
    refusals: &'a [Refusal],
}

impl Known<'_> {
    /// Measurements of the plan on a device kind.
    fn of(&self, plan: Digest, sku: &Sku) -> impl Iterator<Item = &Report> {
        let here = move |report: &&Report| {
            let measured_on = report.foreign.as_ref().map_or(&report.sku, |foreign| &foreign.measured_on);
            report.plan.digest == plan && measured_on == sku
        };
        self.newest.iter().copied().filter(here)
    }

    fn cell(&self, row: &Built, column: &Built) -> Cell {
        let is_own = row.sku == column.sku;
        let mut cell = Cell {
            built_for: row.sku.clone(),
            measured_on: column.sku.clone(),
            state: State::Unmeasured,
            median_ms: None,
            loss: None,
            reason: None,
            job: None,
            differences: Vec::new(),
            boards: Vec::new(),
        };
        let Some(plan) = row.plan else {
            cell.reason = Some(format!("nothing was built for {}", row.sku));
            return cell;
        };
        let found: Vec<&Report> = self.of(plan, &column.sku).collect();
        for report in &found {
            let board = board(report);
            if cell.boards.iter().all(|known| known.board != board) {
                let state = if is_own { own(report) } else { self.judge(report, column).state };
                cell.boards.push(OnBoard { board, state, simulated: report.simulated });
            }
        }
        let refusal = self.refusals.iter().filter(|one| one.built_for == row.sku && one.measured_on == column.sku);
        let refusal = refusal.max_by_key(|one| one.at_unix_ms);
        let measured_ms = found.first().map(|report| report.provenance.measured_unix_ms);
        let home = self.of(plan, &row.sku).next();
        match (found.first(), refusal) {
            (measured, Some(refusal)) if measured.is_none() || measured_ms < Some(refusal.at_unix_ms) => {
                cell.state = State::Refused;
                cell.reason = Some(refusal.reason.clone());
                let there = column.plan.and_then(|plan| self.of(plan, &column.sku).next());
                cell.differences = differences(&row.sku, home, &column.sku, there);
                // What was measured where the plan cannot run everywhere is no evidence for the device kind.
                cell.boards.clear();
            }
            (Some(report), _) => {
                let judged = if is_own {
                    Judged { state: own(report), loss: None, reason: None }
                } else {
                    self.judge(report, column)
                };
                cell.median_ms = Some(report.latency_ms.median);
                cell.job = Some(report.provenance.job.clone());
                if !is_own {
                    cell.differences = differences(&row.sku, home, &column.sku, Some(report));
                }
                (cell.state, cell.loss, cell.reason) = (judged.state, judged.loss, judged.reason);
            }
            (None, _) => cell.reason = Some(format!("no measurement on {}", column.sku)),
        }
        cell
    }

    fn judge(&self, report: &Report, column: &Built) -> Judged {
        if !report.accurate {
            return Judged { state: State::Wrong, loss: None, reason: Some("its outputs are wrong there".into()) };
        }
        let own = column.plan.into_iter().flat_map(|plan| self.of(plan, &column.sku));
        let Some(cell) = portability(report, own) else {
            let reason = Some("its report does not say that it is foreign".into());
            return Judged { state: State::Undecided, loss: None, reason };
        };
        let Some(loss) = cell.loss else {
            return Judged { state: State::Undecided, loss: None, reason: cell.not_measured };
        };
        let state = if loss.high <= SAME_MARGIN {
            State::Valid
        } else if loss.low > 0.0 && loss.relative > SAME_MARGIN {
            State::Suboptimal
        } else {
            State::Undecided
        };
        Judged { state, loss: Some(loss), reason: None }
    }
}

struct Judged {
    state: State,
    loss: Option<Loss>,
    reason: Option<String>,
}

fn own(report: &Report) -> State {
    if report.accurate { State::Own } else { State::Wrong }
}

/// Which specimen of a device measured.
fn board(report: &Report) -> String {
    let uuid = report.device.gpu.as_ref().map(|gpu| gpu.uuid.clone()).filter(|uuid| !uuid.is_empty());
    uuid.unwrap_or_else(|| report.provenance.agent.clone())
}

/// What differs between the devices of two reports, in the order in which it likely matters.
fn differences(home_sku: &Sku, home: Option<&Report>, there_sku: &Sku, there: Option<&Report>) -> Vec<String> {
    let mut told = Vec::new();
    if home_sku.is_cpu() && there_sku.is_cpu() {
        told.push(format!("instruction set: {home_sku} and {there_sku}"));
    }
    let (Some(home), Some(there)) = (home, there) else { return told };
    let pairs = facts(&home.device).into_iter().zip(facts(&there.device));
    told.extend(pairs.filter(|(a, b)| a.1 != b.1).map(|((name, a), (_, b))| format!("{name}: {a} and {b}")));
    told
}

fn facts(device: &DeviceFingerprint) -> Vec<(&'static str, String)> {
    fn told<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
    }
    let (gpu, cpu) = (device.gpu.as_ref(), device.cpu.as_ref());
    vec![
        ("compute capability", told(gpu.map(|gpu| &gpu.compute_capability))),
        ("SMs", told(gpu.and_then(|gpu| gpu.sm_count))),
        ("memory MiB", if gpu.is_some() { device.memory_mib.to_string() } else { String::new() }),
        ("memory bus bits", told(gpu.and_then(|gpu| gpu.memory_bus_bits))),
        ("memory clock MHz", told(gpu.and_then(|gpu| gpu.max_memory_clock_mhz))),
        ("SM clock MHz", told(gpu.and_then(|gpu| gpu.max_sm_clock_mhz))),
        ("power limit W", told(gpu.and_then(|gpu| gpu.power_limit_w))),
        ("slice", told(gpu.and_then(|gpu| gpu.mig.clone()))),
        ("driver", told(gpu.map(|gpu| &gpu.driver))),
        ("cores", told(cpu.map(|cpu| cpu.usable_cores))),
        ("L2 KiB", told(cpu.and_then(|cpu| cpu.l2_kib))),
        ("L3 KiB", told(cpu.and_then(|cpu| cpu.l3_kib))),
        ("MHz", told(cpu.and_then(|cpu| cpu.max_mhz))),
        ("device", device.name.clone()),
    ]
}

#[cfg(test)]
mod tests;
