//! The reader itself: bytes in, facts out.

use super::{
    facts::{LogFacts, Summary},
    kept::{Message, cut},
    line::{Level, Line, clean, parse_line},
    number::{number, with_unit},
    rows,
    table::TableReader,
};
use crate::log::findings;
use std::io::BufRead as _;

/// Longest line that is looked at; the rest of a longer one is dropped. Command lines with many shapes are the longest
/// real ones.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Longest part of a line other than a verdict that is looked at.
const MAX_BODY_BYTES: usize = 8 << 10;

/// Averages that are kept; only old versions print more.
const MAX_AVERAGES: usize = 4096;

/// More devices than a host has.
const MAX_DEVICES: usize = 64;

/// Kinds of findings there are, and then some.
const MAX_FINDINGS: usize = 64;

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    /// Both in one file, as people record logs.
    Merged,
}

/// Reads a run's log as it comes.
#[derive(Debug, Default)]
pub struct LogReader {
    facts: LogFacts,
    /// A line of each stream that has not ended yet.
    partial: [Partial; 3],
    /// What a line without prefix continues, by stream.
    open: [Open; 3],
    table: Option<TableReader>,
    section: Section,
    /// Rows of the summary that were read under its title.
    titled_rows: [bool; Summary::ROWS.len()],
}

#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// The line was longer than the bound.
    cut: bool,
}

/// What the last line with a prefix was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    /// A line that nothing is kept of: what continues it is dropped.
    Dropped,
    Warning,
    Error,
}

/// The block of the log that informational lines stand in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Other,
    Summary,
}

impl LogReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of a stream, cut anywhere.
    pub fn feed(&mut self, stream: Stream, mut bytes: &[u8]) {
        while let Some((line, rest)) = split_line(bytes) {
            bytes = rest;
            let partial = &mut self.partial[stream as usize];
            if partial.bytes.is_empty() && !partial.cut {
                self.line(stream, line);
                continue;
            }
            partial.push(line);
            let mut whole = std::mem::take(partial);
            self.take_line(stream, &whole.bytes, whole.cut);
            whole.bytes.clear();
            whole.cut = false;
            self.partial[stream as usize] = whole;
        }
        self.partial[stream as usize].push(bytes);
    }

    /// Takes one whole line, with or without its line end.
    pub fn line(&mut self, stream: Stream, raw: &[u8]) {
        self.take_line(stream, &raw[..raw.len().min(MAX_LINE_BYTES)], raw.len() > MAX_LINE_BYTES);
    }

    /// What the log said so far.
    pub fn facts(&self) -> &LogFacts {
        &self.facts
    }

    #[cfg(test)]
    pub(super) fn partial_bytes(&self) -> usize {
        self.partial.iter().map(|partial| partial.bytes.len()).sum()
    }

    /// What the log said; a last line without an end counts.
    pub fn finish(mut self) -> LogFacts {
        for stream in [Stream::Stdout, Stream::Stderr, Stream::Merged] {
            let partial = std::mem::take(&mut self.partial[stream as usize]);
            if !partial.bytes.is_empty() {
                self.take_line(stream, &partial.bytes, partial.cut);
            }
        }
        if let Some(table) = self.table.take() {
            self.facts.profile.get_or_insert(table.end());
        }
        for finding in findings::of_summary(&self.facts.summary) {
            self.facts.add(finding);
        }
        self.facts
    }

    fn take_line(&mut self, stream: Stream, raw: &[u8], cut_short: bool) {
        self.facts.lines += 1;
        self.facts.cut_lines += u64::from(cut_short);
        let text = clean(&raw[..raw.len().min(MAX_BODY_BYTES)]);
        if text.starts_with("&&&&") {
            return self.verdict(stream, &clean(raw));
        }
        let line = parse_line(&text);
        let Some(level) = line.level else { return self.continuation(stream, &text) };
        self.open[stream as usize] = match level {
            Level::Verbose => Open::Dropped,
            Level::Info => {
                self.info(line);
                Open::Dropped
            }
            Level::Warning => {
                self.warning(line);
                Open::Warning
            }
            Level::Error | Level::Fatal => {
                self.facts.errors.push(Message::new(line.level, line.library, line.body));
                self.timing_cache(line.body);
                Open::Error
            }
        };
    }

    /// A line that begins with ampersands; anything but trtexec's own form is dropped. Standard error has none.
    fn verdict(&mut self, stream: Stream, text: &str) {
        if stream == Stream::Stderr {
            return;
        }
        self.open[stream as usize] = Open::Dropped;
        match rows::ampersands(text) {
            Some(rows::Ampersands::Running(banner)) => {
                self.facts.running.get_or_insert(banner);
            }
            // A line that repeats another command than the run began with was printed by something else.
            Some(rows::Ampersands::End(end)) if self.facts.running.as_ref().is_none_or(|run| *run == end.banner) => {
                self.facts.verdict = Some(end);
            }
            _ => {}
        }
    }

    fn continuation(&mut self, stream: Stream, text: &str) {
        if self.table.is_some() || text.trim().is_empty() {
            return;
        }
        let facts = &mut self.facts;
        match self.open[stream as usize] {
            _ if stands_alone(text) => facts.loose.push(Message::new(None, false, text)),
            Open::Dropped if stream != Stream::Stderr => {}
            Open::Nothing | Open::Dropped => facts.loose.push(Message::new(None, false, text)),
            Open::Warning => {
                if let Some(finding) = findings::of_line(Level::Warning, text) {
                    facts.add(finding);
                }
                if let Some(last) = facts.warnings.last_mut() {
                    last.extend(text);
                }
            }
            Open::Error => {
                if let Some(last) = facts.errors.last_mut() {
                    last.extend(text);
                }
            }
        }
    }

    fn warning(&mut self, line: Line<'_>) {
        let facts = &mut self.facts;
        facts.warnings.push(Message::new(line.level, line.library, line.body));
        if let Some(finding) = findings::of_line(Level::Warning, line.body) {
            facts.add(finding);
        }
        if let Some(rest) = line.body.strip_prefix("* GPU compute time is unstable, with coefficient of variance = ") {
            let percent = rest.trim_end().trim_end_matches('.').strip_suffix('%').and_then(number);
            set(&mut facts.summary.coefficient_of_variance_percent, percent);
        }
        if let Some(rest) = line.body.strip_prefix("The engine uses ") {
            set(&mut facts.engine.aux_streams, rest.split(' ').next().and_then(|count| count.parse().ok()));
        }
        self.timing_cache(line.body);
    }

    fn info(&mut self, line: Line<'_>) {
        if let Some(table) = &mut self.table {
            if let Some(done) = table.line(line.body) {
                self.table = None;
                self.facts.profile.get_or_insert(done);
            } else {
                return;
            }
        }
        if line.library {
            return self.library_info(line.body);
        }
        let body = line.body;
        if body.starts_with("=== ") {
            self.table = TableReader::title(body);
            self.section = if body.trim() == "=== Performance summary ===" { Section::Summary } else { Section::Other };
            return;
        }
        if let Some(rest) = body.strip_prefix("Average on ") {
            if let Some(average) = rows::average(rest) {
                self.facts.run.averages_seen += 1;
                if self.facts.run.averages.len() < MAX_AVERAGES {
                    self.facts.run.averages.push(average);
                }
            }
            return;
        }
        if body.starts_with("Explanations of the performance metrics") {
            self.section = Section::Other;
            return;
        }
        if self.summary(body) || self.engine(body) || self.device(body) || self.run(body) {
            return;
        }
        self.timing_cache(body);
        if let Some(finding) = findings::of_line(Level::Info, body) {
            self.facts.add(finding);
        }
    }

    /// Rows of the summary. A log may be only the tail of one, so rows count without its title too, but a row under the
    /// title replaces one that stood elsewhere.
    fn summary(&mut self, body: &str) -> bool {
        let Some((name, rest)) = body.split_once(": ") else { return false };
        let titled = self.section == Section::Summary;
        let summary = &mut self.facts.summary;
        let mut set = |slot: fn(&mut Summary) -> &mut Option<f64>, value: Option<f64>| {
            let slot = slot(summary);
            if value.is_some() && (titled || slot.is_none()) {
                *slot = value;
            }
        };
        match name {
            "Throughput" => set(|summary| &mut summary.throughput_qps, with_unit(rest, "qps")),
            "Total Host Walltime" => set(|summary| &mut summary.host_walltime_s, with_unit(rest, "s")),
            "Total GPU Compute Time" => set(|summary| &mut summary.gpu_compute_s, with_unit(rest, "s")),
            _ => {
                let Some(at) = Summary::ROWS.iter().position(|row| *row == name) else { return false };
                let (name, seen) = (Summary::ROWS[at], &mut self.titled_rows[at]);
                // The first under the title counts, and before it the first anywhere; others are not even parsed.
                if *seen || (!titled && summary.rows.contains_key(name)) {
                    return true;
                }
                let Some(row) = rows::latency_row(rest) else { return false };
                *seen = titled;
                summary.rows.insert(name, row);
            }
        }
        true
    }

    fn engine(&mut self, body: &str) -> bool {
        let engine = &mut self.facts.engine;
        if let Some(rest) = body.strip_prefix("Engine built in ") {
            set(&mut engine.built_s, with_unit(rest, "sec."));
        } else if let Some(rest) = body.strip_prefix("Engine loaded in ") {
            set(&mut engine.loaded_s, with_unit(rest, "sec."));
        } else if let Some(rest) = body.strip_prefix("Engine deserialized in ") {
            set(&mut engine.deserialized_s, with_unit(rest, "sec."));
        } else if let Some(rest) = body.strip_prefix("Created engine with size: ") {
            set(&mut engine.size_mib, with_unit(rest, "MiB"));
        } else if let Some(rest) = body.strip_prefix("Created execution context with device memory size: ") {
            set(&mut engine.context_memory_mib, with_unit(rest, "MiB"));
        } else if let Some(rest) = body.strip_prefix("Finished parsing network model. Parse time: ") {
            set(&mut engine.parse_s, number(rest.trim()));
        } else {
            return false;
        }
        true
    }

    fn device(&mut self, body: &str) -> bool {
        let device = &mut self.facts.device;
        let Some((name, rest)) = body.split_once(": ") else { return false };
        match name {
            "Selected Device" => set(&mut device.name, some_text(rest)),
            "Selected Device ID" => set(&mut device.id, rest.trim().parse().ok()),
            "Selected Device UUID" => set(&mut device.uuid, some_text(rest)),
            "Compute Capability" => set(&mut device.compute_capability, rows::capability(rest)),
            "SMs" => set(&mut device.sm_count, rest.trim().parse().ok()),
            "Device Global Memory" => set(&mut device.global_memory_mib, whole_with_unit(rest, "MiB")),
            "Shared Memory per SM" => set(&mut device.shared_memory_per_sm_kib, whole_with_unit(rest, "KiB")),
            "Memory Bus Width" => {
                if let Some((bits, ecc)) = rows::bus_width(rest) {
                    set(&mut device.memory_bus_bits, Some(bits));
                    set(&mut device.ecc, ecc);
                }
            }
            "Compute Clock Rate" | "Application Compute Clock Rate" => {
                set(&mut device.compute_clock_ghz, with_unit(rest, "GHz"));
            }
            "Memory Clock Rate" | "Application Memory Clock Rate" => {
                set(&mut device.memory_clock_ghz, with_unit(rest, "GHz"));
            }
            "TensorRT version" => set(&mut self.facts.tensorrt_version, rows::version(rest).map(str::to_owned)),
            _ => {
                let Some(listed) = body.strip_prefix("  Device ").and_then(rows::listed_device) else { return false };
                if device.available.len() < MAX_DEVICES {
                    device.available.push(listed);
                }
            }
        }
        true
    }

    fn run(&mut self, body: &str) -> bool {
        let run = &mut self.facts.run;
        if let Some(rest) = body.strip_prefix("Warmup completed ") {
            let Some((queries, ms)) = rows::queries_over(rest, "ms") else { return false };
            set(&mut run.warm_up_queries, Some(queries));
            set(&mut run.warm_up_ms, Some(ms));
        } else if let Some(rest) = body.strip_prefix("Timing trace has ") {
            let Some((queries, seconds)) = rows::queries_over(rest, "s") else { return false };
            set(&mut run.trace_queries, Some(queries));
            set(&mut run.trace_s, Some(seconds));
        } else if body.starts_with("The e2e network timing is not reported") {
            run.summary_withheld = true;
        } else {
            return false;
        }
        true
    }

    /// What the library itself says at level `I`.
    fn library_info(&mut self, body: &str) {
        let engine = &mut self.facts.engine;
        if let Some(rest) = body.strip_prefix("Engine generation completed in ") {
            let rest = rest.trim_end().trim_end_matches('.');
            set(&mut engine.generation_s, with_unit(rest, "seconds"));
        } else if let Some(rest) = body.strip_prefix("Loaded engine size: ") {
            set(&mut engine.loaded_size_mib, with_unit(rest, "MiB"));
        } else if let Some(rest) = body.strip_prefix("[MS] Number of aux streams is ") {
            set(&mut engine.aux_streams, rest.trim().parse().ok());
        } else if let Some((_, rest)) = body.split_once("Peak memory usage of TRT CPU/GPU memory allocators: ") {
            if let Some((host, device)) = rows::peak_memory(rest) {
                set(&mut engine.peak_host_mib, Some(host));
                set(&mut engine.peak_device_mib, Some(device));
            }
        } else {
            self.timing_cache(body);
            if let Some(finding) = findings::of_line(Level::Info, body) {
                self.facts.add(finding);
            }
        }
    }

    /// Lines about the timing cache come from trtexec or the library, by version, and at several levels.
    fn timing_cache(&mut self, body: &str) {
        // Such lines are short; errors can be pages.
        const MOST: usize = 1024;
        let body = cut(body, MOST);
        let cache = &mut self.facts.timing_cache;
        if let Some(rest) = body.strip_prefix("Loaded ") {
            if rest.contains(" bytes of timing cache from ") || rest.contains(" bytes of cache from file: ") {
                set(&mut cache.loaded_bytes, rest.split(' ').next().and_then(|bytes| bytes.parse().ok()));
            }
        } else if let Some(rest) = body.strip_prefix("Saved ") {
            if rest.contains(" bytes of timing cache to ") {
                // Written more than once in some versions: the last size is the file's.
                cache.saved_bytes = rest.split(' ').next().and_then(|bytes| bytes.parse().ok()).or(cache.saved_bytes);
            }
        } else if body.starts_with("Could not read ") && body.contains("cache from") {
            cache.missing = true;
        } else if ["TimingCache creation failed", "Failed to create ITimingCache", "Could not write timing cache"]
            .iter()
            .any(|problem| body.contains(problem))
        {
            set(&mut cache.problem, Some(body.to_owned()));
        }
    }
}

impl Partial {
    fn push(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES - self.bytes.len();
        self.cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl LogFacts {
    /// Adds a finding unless there is one of its kind.
    fn add(&mut self, finding: planforge_report::Finding) {
        if self.findings.len() < MAX_FINDINGS && self.findings.iter().all(|known| known.code != finding.code) {
            self.findings.push(finding);
        }
    }
}

/// The bytes before the first line feed and those after it. Of all ways to look for a byte that the standard library
/// has, this one uses wide instructions, which is most of the cost of a long log.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = bytes;
    // Reading from memory does not fail.
    let passed = rest.skip_until(b'\n').ok()?;
    let line = bytes[..passed].strip_suffix(b"\n")?;
    Some((line, rest))
}

/// Fills an empty slot: the first time that something is said counts, as names printed later can look like anything.
fn set<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn some_text(text: &str) -> Option<String> {
    // Longer than any device's name.
    const LONGEST: usize = 256;
    let text = text.trim();
    (!text.is_empty()).then(|| cut(text, LONGEST).to_owned())
}

fn whole_with_unit(text: &str, unit: &str) -> Option<u64> {
    text.trim().strip_suffix(unit)?.trim().parse().ok()
}

/// Lines that some part of the process prints past every logger.
fn stands_alone(text: &str) -> bool {
    const BEGINNINGS: [&str; 9] = [
        "terminate called",
        "  what():",
        "Cuda failure",
        "CUDA error",
        "Segmentation fault",
        "Aborted",
        "Killed",
        "Uncaught exception",
        "trtexec:",
    ];
    BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
        || text.contains("error while loading shared libraries")
}
