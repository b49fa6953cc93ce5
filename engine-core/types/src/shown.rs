//! How words from outside look to people: what could steer a terminal, reorder or hide text is shown escaped.
//!
//! Names in models and plans, lines of logs, messages of tools, agents and servers may hold anything. Escaped are
//!
//! - controls: C0 but newline and tab, DEL, and C1, which some terminals obey as they obey ESC;
//! - U+2028 and U+2029, which some viewers take for the end of a line;
//! - what reorders text: the bidirectional marks, embeddings, overrides and isolates;
//! - what cannot be seen and so makes two different names look like one: zero-width space, word joiner, invisible
//!   operators, soft hyphen, byte order mark, annotation marks, tags, deprecated format characters;
//! - the zero-width joiners U+200C and U+200D but where they do what they are for: once, right behind a visible
//!   character beyond ASCII, as Persian, Indic scripts and emoji need them.
//!
//! The form is that of Rust's own escapes, `\u{1b}`, and `\r` and `\n`, so that a message which somebody has escaped before
//! stays as it is: escaping twice is escaping once. Backslashes stay single, for paths and patterns stay what one can
//! copy. So the text `\u{1b}` looks as an ESC does; both are harmless, and `--json` has the exact value.
//!
//! A carriage return is escaped, and not obeyed by keeping what follows it: a tool's progress line would read better, but
//! whatever writes a log could hide lines in it. One right before a newline belongs to the line's end and is left out.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    mem,
};

/// Most bytes that an UTF-8 sequence may still lack its end after.
const UNFINISHED_MAX_BYTES: usize = 3;

/// Text of several lines: newlines and tabs stay.
pub fn text(words: &str) -> Cow<'_, str> {
    if is_plain(words) { Cow::Borrowed(words) } else { Cow::Owned(escaped(words, &mut None)) }
}

/// Text that has to stay on one line, such as a name: newlines are escaped, too.
pub fn line(words: &str) -> Cow<'_, str> {
    match text(words) {
        shown if !shown.contains('\n') => shown,
        shown => Cow::Owned(shown.replace('\n', "\\n")),
    }
}

/// A JSON document whose values stay what they are: the same characters, as escapes of JSON.
pub fn json(document: &str) -> Cow<'_, str> {
    if !document.chars().any(|c| is_hidden(c) || is_joiner(c)) {
        return Cow::Borrowed(document);
    }
    let mut out = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        // Outside of strings JSON has only ASCII, and of controls only those that stay.
        if is_hidden(c) && c != '\r' || is_joiner(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// A formatter of words in lines: whatever one `write!` or `writeln!` writes is one line, so that no name in it can begin
/// another.
pub struct Lines<'f, 'a>(&'f mut fmt::Formatter<'a>);

impl fmt::Debug for Lines<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl<'f, 'a> Lines<'f, 'a> {
    pub fn new(formatter: &'f mut fmt::Formatter<'a>) -> Self {
        Self(formatter)
    }

    /// What `write!` and `writeln!` call.
    ///
    /// # Errors
    ///
    /// Where the formatter fails.
    pub fn write_fmt(&mut self, words: fmt::Arguments<'_>) -> fmt::Result {
        let words = words.to_string();
        match words.strip_suffix('\n') {
            Some(words) => writeln!(self.0, "{}", line(words)),
            None => self.0.write_str(&line(&words)),
        }
    }
}

/// Bytes that come in pieces, such as a log that is followed: the same text however they are cut.
#[derive(Debug, Default)]
pub struct Stream {
    /// The end of what came, as long as what follows may decide about it.
    held: Vec<u8>,
    before: Option<char>,
}

impl Stream {
    /// What can be shown now. Bytes that are no UTF-8 become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let rest = self.held.split_off(self.held.len() - undecided(&self.held));
        let ready = mem::replace(&mut self.held, rest);
        escaped(&String::from_utf8_lossy(&ready), &mut self.before)
    }

    /// What was held back, at the end.
    pub fn finish(self) -> String {
        let Self { held, mut before } = self;
        escaped(&String::from_utf8_lossy(&held), &mut before)
    }
}

/// How many bytes at the end wait for what follows: of a character, or a carriage return that may end a line.
fn undecided(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    let is_unfinished = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=UNFINISHED_MAX_BYTES.min(bytes.len())).find(is_unfinished).unwrap_or(0)
}

fn is_plain(words: &str) -> bool {
    !words.chars().any(|c| is_hidden(c) || is_joiner(c))
}

/// `before` is the character right before `words`, and becomes their last.
fn escaped(words: &str, before: &mut Option<char>) -> String {
    let mut out = String::with_capacity(words.len());
    let mut chars = words.chars().peekable();
    while let Some(c) = chars.next() {
        let joins =
            is_joiner(c) && before.is_some_and(|before| !before.is_ascii() && !is_joiner(before) && !is_hidden(before));
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => out.push_str("\\r"),
            c if is_hidden(c) || is_joiner(c) && !joins => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
        *before = Some(c);
    }
    out
}

fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

/// Whether a character is never shown as it is.
fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        c if c.is_control() => true,
        '\u{2028}' | '\u{2029}' => true,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' => true,
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Strings in which about every second character is one that matters here.
    fn hostile() -> impl Strategy<Value = String> {
        let special = prop_oneof![
            (0u32..0xa1).prop_filter_map("a character", char::from_u32),
            (0x2000u32..0x2070).prop_filter_map("a character", char::from_u32),
            (0xe0000u32..0xe0080).prop_filter_map("a character", char::from_u32),
            prop::sample::select(vec!['\u{61c}', '\u{180e}', '\u{feff}', '\u{fff9}', '\r', '\n', '\\', 'ي', '👩']),
            any::<char>(),
        ];
        prop::collection::vec(special, 0..40).prop_map(String::from_iter)
    }

    /// The characters that the command line promises never to write, from the standard's tables and not from the code.
    fn forbidden(c: char) -> bool {
        let code = u32::from(c);
        let controls = code < 0x20 && c != '\n' && c != '\t' || (0x7f..0xa0).contains(&code);
        let bidi = [0x61c, 0x200e, 0x200f].contains(&code)
            || (0x202a..=0x202e).contains(&code)
            || (0x2066..=0x2069).contains(&code);
        controls || bidi || [0x2028, 0x2029, 0xfeff, 0x200b].contains(&code)
    }

    /// Text without escapes and without what they stand for.
    fn rest(shown: &str) -> String {
        let mut out = String::new();
        let mut left = shown;
        while let Some(at) = left.find('\\') {
            out.push_str(&left[..at]);
            let escape = &left[at..];
            let end = if escape.starts_with("\\u{") { escape.find('}').unwrap() + 1 } else { 2 };
            left = &escape[end..];
        }
        out + left
    }

    proptest! {
        #[test]
        fn nothing_forbidden_is_shown_and_nothing_else_is_changed(words in hostile()) {
            let shown = text(&words);
            prop_assert!(!shown.contains(forbidden), "{shown:?}");
            prop_assert!(!line(&words).contains(|c| c == '\n' || forbidden(c)));
            prop_assert_eq!(text(&shown), shown.clone(), "once is enough");
            let words = words.replace('\\', "");
            let kept: String = words.chars().filter(|c| !is_hidden(*c) && !is_joiner(*c)).collect();
            let shown = rest(&text(&words));
            prop_assert_eq!(shown.replace(is_joiner, ""), kept);
        }

        #[test]
        fn json_keeps_its_values_and_is_ascii_where_it_matters(words in hostile()) {
            let printed = json(&serde_json::to_string(&words).unwrap()).into_owned();
            prop_assert!(!printed.contains(forbidden), "{printed:?}");
            prop_assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), words);
        }

        #[test]
        fn a_stream_is_the_same_however_it_is_cut(
            words in hostile(), noise in prop::collection::vec(any::<u8>(), 0..8), cuts in prop::collection::vec(1usize..5, 1..40)
        ) {
            let bytes = [words.as_bytes(), &noise, words.as_bytes()].concat();
            let mut stream = Stream::default();
            let (mut shown, mut left, mut cuts) = (String::new(), bytes.as_slice(), cuts.into_iter().cycle());
            while !left.is_empty() {
                let (piece, rest) = left.split_at(cuts.next().unwrap_or(1).min(left.len()));
                shown.push_str(&stream.push(piece));
                left = rest;
            }
            shown.push_str(&stream.finish());
            prop_assert_eq!(shown, text(&String::from_utf8_lossy(&bytes)).into_owned());
        }
    }

    #[test]
    fn escapes_are_those_of_rust() {
        assert_eq!(text("a\u{1b}[31mb\tc\\d\n"), "a\\u{1b}[31mb\tc\\d\n");
        assert_eq!(text("10%\r20%\r\nend\r"), "10%\\r20%\nend\\r");
        assert_eq!(line("one\nhint: two"), "one\\nhint: two");
        assert_eq!(json("\"\u{9b}\u{202e}\u{e0041}\""), "\"\\u009b\\u202e\\udb40\\udc41\"");
    }

    #[test]
    fn joiners_stay_where_scripts_need_them() {
        for words in ["می\u{200c}خواهم", "👩\u{200d}🚀"] {
            assert_eq!(text(words), words);
        }
        assert_eq!(text("re\u{200d}lu"), "re\\u{200d}lu");
        assert_eq!(text("é\u{200d}\u{200d}"), "é\u{200d}\\u{200d}");
    }
}
