//! Lines of a log that have a text in them, found while the log is read: it is never held as a whole.

use askama::Template;

/// Lines that are shown; those behind are counted.
const SHOWN_MAX: usize = 500;
/// Of a longer line the beginning is shown, and looked through.
const LINE_MAX_BYTES: usize = 2_000;

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// It is what was looked for.
    pub is_match: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub number: u64,
    pub pieces: Vec<Piece>,
}

/// What was found.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "job_log_found.html")]
pub struct Found {
    pub id: String,
    pub asked: String,
    pub lines: Vec<Line>,
    /// Lines that have it, and how often they do together.
    pub matching: u64,
    pub places: u64,
    /// Lines of the log.
    pub total: u64,
}

impl Found {
    fn more_than_shown(&self) -> bool {
        self.matching > self.lines.len() as u64
    }
}

/// Looks through a log, whichever pieces it comes in. Letters of the alphabet match in either case.
#[derive(Debug)]
pub struct Search {
    found: Found,
    wanted: Vec<u8>,
    /// The line that is not over yet.
    line: Vec<u8>,
    line_is_cut: bool,
}

impl Search {
    /// `asked` is not empty.
    pub fn new(id: &str, asked: &str) -> Self {
        let found = Found { id: id.into(), asked: asked.into(), ..Found::default() };
        Self { found, wanted: asked.to_ascii_lowercase().into_bytes(), line: Vec::new(), line_is_cut: false }
    }

    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.take(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.take(bytes);
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = LINE_MAX_BYTES - self.line.len();
        self.line_is_cut |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) {
        self.found.total += 1;
        let (line, is_cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.line_is_cut));
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let text = String::from_utf8_lossy(line);
        let mut pieces = pieces(&text, &self.wanted);
        let places = pieces.iter().filter(|piece| piece.is_match).count() as u64;
        if places == 0 {
            return;
        }
        self.found.places += places;
        self.found.matching += 1;
        if self.found.lines.len() < SHOWN_MAX {
            if is_cut {
                pieces.push(Piece { text: "…".into(), is_match: false });
            }
            self.found.lines.push(Line { number: self.found.total, pieces });
        }
    }

    pub fn done(mut self) -> Found {
        if !self.line.is_empty() || self.line_is_cut {
            self.end_line();
        }
        self.found
    }
}

fn pieces(text: &str, wanted: &[u8]) -> Vec<Piece> {
    let lower = text.to_ascii_lowercase();
    // What is valid UTF-8 is found at the beginnings of its characters alone.
    let wanted = std::str::from_utf8(wanted).unwrap_or_default();
    let (mut pieces, mut from) = (Vec::new(), 0);
    for (at, found) in lower.match_indices(wanted) {
        if at > from {
            pieces.push(Piece { text: text[from..at].into(), is_match: false });
        }
        from = at + found.len();
        pieces.push(Piece { text: text[at..from].into(), is_match: true });
    }
    if from < text.len() {
        pieces.push(Piece { text: text[from..].into(), is_match: false });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(log: &[u8], pieces_of: usize, asked: &str) -> Found {
        let mut search = Search::new("job", asked);
        log.chunks(pieces_of.max(1)).for_each(|chunk| search.feed(chunk));
        search.done()
    }

    #[test]
    fn matches_are_marked_and_counted_in_either_case_and_escaped() {
        let log = "compiling <fast>\nWARNING: a warning\r\n\nno newline warning".as_bytes();
        let found = find(log, 3, "Warning");
        assert_eq!((found.matching, found.places, found.total), (2, 3, 4));
        let numbers: Vec<u64> = found.lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [2, 4]);
        let html = found.render().unwrap();
        assert!(html.contains("<mark>WARNING</mark>: a <mark>warning</mark>"), "{html}");
        assert!(html.contains("2 of 4 lines have it, 3 times"), "{html}");
        let html = find(log, 100, "<FAST").render().unwrap();
        assert!(html.contains("compiling <mark>&#60;fast</mark>") && html.contains("1 of 4 lines has it"), "{html}");
        let none = find(log, 1, "nothing like it").render().unwrap();
        assert!(none.contains("No line of 4 has it."), "{none}");
    }

    #[test]
    fn long_lines_and_many_matches_are_bounded() {
        let log = format!("x{}\n", "é".repeat(LINE_MAX_BYTES)).repeat(SHOWN_MAX + 7);
        let found = find(log.as_bytes(), 4_096, "x");
        assert_eq!((found.matching as usize, found.lines.len()), (SHOWN_MAX + 7, SHOWN_MAX));
        assert!(found.lines.iter().all(|line| line.pieces.last().unwrap().text == "…"));
    }

    #[test]
    fn however_a_log_is_cut_the_same_is_found() {
        let log = [&b"ab\xc3\nAB\xffab\n\nb\r\na"[..], &[0xe2, 0x82], b"bAb\naab"].concat();
        let whole = find(&log, log.len(), "ab");
        assert_eq!((whole.matching, whole.places), (4, 5));
        for at in 1..log.len() {
            let cut = find(&log, at, "ab");
            assert_eq!((&cut.lines, cut.places, cut.total), (&whole.lines, whole.places, whole.total), "{at}");
        }
    }
}
