//! One line of a log: its level, who says it, and what.

use std::borrow::Cow;

/// Level a line begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Verbose,
    Info,
    Warning,
    Error,
    Fatal,
}

/// A line without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// `None`: a line without prefix, which continues the line before it or comes from elsewhere.
    pub level: Option<Level>,
    /// Said by the TensorRT library, not by trtexec itself.
    pub library: bool,
    pub body: &'a str,
}

/// Splits the prefix off: a time, a level and the library's tag, in any order that trtexec or the library's own
/// loggers print them. The first level counts; what follows it is body.
pub fn parse_line(text: &str) -> Line<'_> {
    let mut level = None;
    let mut library = false;
    let mut rest = text;
    while let Some((tag, after)) = bracketed(rest) {
        match tag {
            "TRT" | "TensorRT" if !library => library = true,
            _ if level.is_some() => break,
            _ => match level_of(tag) {
                Some(found) => level = Some(found),
                None if is_time(tag) && !library => {}
                None => break,
            },
        }
        rest = after;
    }
    match level {
        Some(_) => Line { level, library, body: rest },
        // A tag alone still says who speaks: some hosts drop the level.
        None if library => Line { level: Some(Level::Error), library, body: rest },
        None => Line { level: None, library: false, body: text },
    }
}

/// The content of a leading `[...]` and what follows one blank after it.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    // Longer than any time or tag; keeps the search for the end short on hostile lines.
    const LONGEST_TAG: usize = 24;
    let inner = text.strip_prefix('[')?;
    let end = inner.bytes().take(LONGEST_TAG).position(|byte| byte == b']')?;
    let after = &inner[end + 1..];
    Some((&inner[..end], after.strip_prefix(' ').unwrap_or(after)))
}

fn level_of(tag: &str) -> Option<Level> {
    Some(match tag {
        "V" => Level::Verbose,
        "I" => Level::Info,
        "W" => Level::Warning,
        "E" => Level::Error,
        "F" => Level::Fatal,
        _ => return None,
    })
}

/// `MM/DD/YYYY-HH:MM:SS`
fn is_time(tag: &str) -> bool {
    const SHAPE: &[u8] = b"00/00/0000-00:00:00";
    tag.len() == SHAPE.len()
        && tag.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        })
}

/// Text of a raw line: without line end and terminal colours, invalid UTF-8 replaced.
pub(crate) fn clean(raw: &[u8]) -> Cow<'_, str> {
    let mut end = raw.len();
    while end > 0 && matches!(raw[end - 1], b'\r' | b'\n') {
        end -= 1;
    }
    let raw = &raw[..end];
    if raw.contains(&ESCAPE) {
        return Cow::Owned(String::from_utf8_lossy(&without_escapes(raw)).into_owned());
    }
    String::from_utf8_lossy(raw)
}

const ESCAPE: u8 = 0x1b;

/// Drops `ESC [ ... letter` and any other escape's next byte.
fn without_escapes(raw: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != ESCAPE {
            kept.push(byte);
        } else if bytes.next() == Some(b'[') {
            // Parameters end with the first byte from '@' on.
            let _final = bytes.find(|byte| (b'@'..=b'~').contains(byte));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: Level, library: bool, body: &str) -> Line<'_> {
        Line { level: Some(level), library, body }
    }

    #[test]
    fn prefixes_of_all_loggers_are_split_off() {
        assert_eq!(
            parse_line("[04/25/2026-00:54:25] [I] Throughput: 1 qps"),
            line(Level::Info, false, "Throughput: 1 qps")
        );
        assert_eq!(parse_line("[04/25/2026-00:54:25] [W] [TRT] x"), line(Level::Warning, true, "x"));
        assert_eq!(parse_line("[05/02/2022-15:17:45] [TRT] [E] 6: The"), line(Level::Error, true, "6: The"));
        assert_eq!(parse_line("[TensorRT] IRuntime: x"), line(Level::Error, true, "IRuntime: x"));
        assert_eq!(parse_line("[E] Error[10]: x"), line(Level::Error, false, "Error[10]: x"));
        assert_eq!(parse_line("[I]"), line(Level::Info, false, ""));
    }

    #[test]
    fn only_the_first_level_counts() {
        assert_eq!(parse_line("[V] [I] Throughput: 1 qps"), line(Level::Verbose, false, "[I] Throughput: 1 qps"));
        assert_eq!(parse_line("[I] [TRT] [MS] x"), line(Level::Info, true, "[MS] x"));
        assert_eq!(parse_line("[I] [E] x"), line(Level::Info, false, "[E] x"));
    }

    #[test]
    fn lines_without_a_prefix_have_no_level() {
        for text in ["", "  [I] x", "Layer(Reformat): x", "[6] Invalid Node - x", "[I", "&&&& PASSED"] {
            assert_eq!(parse_line(text), Line { level: None, library: false, body: text }, "{text}");
        }
    }

    #[test]
    fn colours_line_ends_and_bad_bytes_go() {
        assert_eq!(clean(b"\x1b[1;31m[E] x\x1b[0m\r\n"), "[E] x");
        assert_eq!(clean(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(clean(b"x\x1b"), "x");
        assert_eq!(clean(b"x\x1b[12"), "x");
    }
}
