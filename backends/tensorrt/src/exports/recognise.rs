//! What a file is, by its content: names mean nothing once people have copied them about.

use crate::{
    log::{Level, parse_line},
    timing_cache::TimingCacheHeader,
};

/// A kind of file that trtexec or its friends write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    Log,
    Times,
    Profile,
    LayerInfo,
    Output,
    Plan,
    TimingCache,
    /// JSON of another kind.
    OtherJson,
    Unknown,
}

/// How much of a file is looked at.
pub const RECOGNISE_BYTES: usize = 64 << 10;

/// What the file is that begins with `head` and has `file_bytes`.
pub fn recognise(head: &[u8], file_bytes: u64) -> FileKind {
    let head = &head[..head.len().min(RECOGNISE_BYTES)];
    if head.starts_with(b"ftrt") {
        return FileKind::Plan;
    }
    if head.starts_with(b"ptrt") {
        let cache = TimingCacheHeader::parse(head, file_bytes);
        return if cache.is_ok_and(|cache| cache.build.is_some()) { FileKind::TimingCache } else { FileKind::Plan };
    }
    let text = String::from_utf8_lossy(head);
    let trimmed = text.trim_start_matches('\u{feff}').trim_start();
    let has = |key: &str| trimmed.contains(key);
    match trimmed.as_bytes().first() {
        Some(b'{') if has("\"Layers\"") => FileKind::LayerInfo,
        Some(b'{') => FileKind::OtherJson,
        // A log may begin with a bracket too: a time or a level.
        Some(b'[') if !is_log_line(trimmed) => {
            if has("\"computeMs\"") {
                FileKind::Times
            } else if has("\"averageMs\"") || has("\"timeMs\"") || has("\"count\"") {
                FileKind::Profile
            } else if has("\"dimensions\"") && has("\"values\"") {
                FileKind::Output
            } else {
                FileKind::OtherJson
            }
        }
        _ if text.lines().any(is_log_line) => FileKind::Log,
        _ => FileKind::Unknown,
    }
}

fn is_log_line(line: &str) -> bool {
    let line = line.lines().next().unwrap_or_default();
    line.starts_with("&&&& ")
        || parse_line(line).level.is_some_and(|level| level != Level::Verbose || line.starts_with('['))
}
