//! Lines of a tool's output on their way to the attempt's log: the first ones as they come, the last ones at the end.

use crate::log::Stream;
use std::collections::VecDeque;

/// Lines that are passed on at once: a usual run is far shorter, a flood is cut.
const FIRST_BYTES: usize = 512 << 10;

/// Lines that are kept from the end of each stream of a longer run: the verdict and what led to it. Each has its own
/// room, for the two pipes are read at their own speed: what is left of one may well come after the other's verdict.
const LAST_BYTES: usize = 64 << 10;

/// Longest line that is passed on whole.
const LINE_BYTES: usize = 4 << 10;

/// Forwards lines, of each stream apart, up to the bounds above.
#[derive(Debug, Default)]
pub(super) struct Forward {
    /// Unfinished line of standard output and of standard error.
    partial: [Vec<u8>; 2],
    told_bytes: usize,
    last: [Last; 2],
    /// Lines that came after the first ones.
    later: u64,
    left_out: u64,
}

/// The last lines of one stream, each with its place among those of both.
#[derive(Debug, Default)]
struct Last {
    lines: VecDeque<(u64, String)>,
    bytes: usize,
}

impl Forward {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn feed(&mut self, stream: Stream, bytes: &[u8], tell: &mut dyn FnMut(&str)) {
        let slot = usize::from(stream == Stream::Stderr);
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            append(&mut self.partial[slot], &rest[..end]);
            rest = &rest[end + 1..];
            self.line(slot, tell);
        }
        append(&mut self.partial[slot], rest);
    }

    pub fn finish(mut self, tell: &mut dyn FnMut(&str)) {
        for slot in 0..self.partial.len() {
            if !self.partial[slot].is_empty() {
                self.line(slot, tell);
            }
        }
        if self.left_out > 0 {
            tell(&format!("... {} lines left out", self.left_out));
        }
        let mut last: Vec<_> = self.last.into_iter().flat_map(|last| last.lines).collect();
        last.sort_unstable_by_key(|(place, _)| *place);
        last.iter().for_each(|(_, line)| tell(line));
    }

    fn line(&mut self, slot: usize, tell: &mut dyn FnMut(&str)) {
        let bytes = std::mem::take(&mut self.partial[slot]);
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches('\r');
        if self.told_bytes < FIRST_BYTES {
            self.told_bytes += text.len() + 1;
            tell(text);
            return;
        }
        let last = &mut self.last[slot];
        last.bytes += text.len() + 1;
        last.lines.push_back((self.later, text.to_owned()));
        self.later += 1;
        while last.bytes > LAST_BYTES
            && let Some((_, oldest)) = last.lines.pop_front()
        {
            last.bytes -= oldest.len() + 1;
            self.left_out += 1;
        }
    }
}

fn append(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = LINE_BYTES.saturating_sub(line.len());
    line.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(feed: impl FnOnce(&mut Forward, &mut dyn FnMut(&str))) -> Vec<String> {
        let mut lines = Vec::new();
        let mut tell = |line: &str| lines.push(line.to_owned());
        let mut forward = Forward::new();
        feed(&mut forward, &mut tell);
        forward.finish(&mut tell);
        lines
    }

    #[test]
    fn streams_do_not_mix_within_a_line() {
        let lines = lines_of(|forward, tell| {
            forward.feed(Stream::Stdout, b"one ", tell);
            forward.feed(Stream::Stderr, b"error\n", tell);
            forward.feed(Stream::Stdout, b"line\r\nlast", tell);
        });
        assert_eq!(lines, ["error", "one line", "last"]);
    }

    #[test]
    fn a_flood_keeps_its_beginning_and_its_end() {
        let lines = lines_of(|forward, tell| {
            for index in 0..100_000 {
                forward.feed(Stream::Stdout, format!("line number {index}\n").as_bytes(), tell);
            }
        });
        assert_eq!(lines.first().unwrap(), "line number 0");
        assert_eq!(lines.last().unwrap(), "line number 99999");
        assert_eq!(lines.iter().filter(|line| line.ends_with("lines left out")).count(), 1);
        let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
        assert!(bytes < FIRST_BYTES + LAST_BYTES + 200, "{bytes}");
    }

    #[test]
    fn one_streams_flood_does_not_push_out_the_others_verdict() {
        let flood = "y".repeat(200) + "\n";
        let lines = lines_of(|forward, tell| {
            let pour = |forward: &mut Forward, bytes, tell: &mut dyn FnMut(&str)| {
                (0..bytes / flood.len()).for_each(|_| forward.feed(Stream::Stderr, flood.as_bytes(), tell));
            };
            pour(forward, FIRST_BYTES + LAST_BYTES, tell);
            forward.feed(Stream::Stdout, b"&&&& PASSED\n", tell);
            pour(forward, 2 * LAST_BYTES, tell);
        });
        let verdict = lines.iter().position(|line| line == "&&&& PASSED").unwrap();
        let left_out = lines.iter().position(|line| line.ends_with("lines left out")).unwrap();
        assert!(left_out < verdict && verdict < lines.len() - 1, "{left_out} {verdict} of {}", lines.len());
    }

    #[test]
    fn an_endless_line_is_cut() {
        let lines = lines_of(|forward, tell| {
            for _ in 0..100 {
                forward.feed(Stream::Stdout, &[b'x'; 1000], tell);
            }
        });
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES]);
    }
}
