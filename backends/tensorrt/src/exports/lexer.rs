//! Tokens of something like JSON, from a reader, with a fixed window of memory.

use std::io::{self, Read};

/// Window on the input; also how far ahead a decision may look.
const WINDOW_BYTES: usize = 64 << 10;

/// Longest string that is kept whole; the rest of a longer one is passed over.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;

/// Longest number or word.
const MAX_WORD_BYTES: usize = 64;

/// Longest sentence that is kept.
const MAX_SENTENCE_BYTES: usize = 512;

/// Blanks between a quote and what follows it.
const MAX_BLANKS: usize = 64;

/// A piece of the input.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// `{` or `[`
    Open(u8),
    /// `}` or `]`
    Close(u8),
    Colon,
    Comma,
    Text(String),
    Number(f64),
    /// `true`, `false`, `null`
    Word(String),
    /// Anything else, to the end of its line.
    Sentence(String),
    End,
}

/// Cuts input into tokens. Every token consumes input, so reading always ends.
#[derive(Debug)]
pub(super) struct Lexer<R> {
    source: R,
    window: Vec<u8>,
    at: usize,
    ended: bool,
    /// Backslashes escape. Files whose names are not escaped keep theirs as they are.
    escapes: bool,
}

impl<R: Read> Lexer<R> {
    /// For files whose writer escapes.
    pub(super) fn escaped(source: R) -> Self {
        Self { source, window: Vec::new(), at: 0, ended: false, escapes: true }
    }

    /// For files whose writer does not escape.
    pub(super) fn plain(source: R) -> Self {
        Self { escapes: false, ..Self::escaped(source) }
    }

    pub(super) fn next(&mut self) -> io::Result<Token> {
        loop {
            let Some(byte) = self.peek(0)? else { return Ok(Token::End) };
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | 0 => self.at += 1,
                0xef if self.peek(1)? == Some(0xbb) && self.peek(2)? == Some(0xbf) => self.at += 3,
                _ => break,
            }
        }
        let Some(byte) = self.peek(0)? else { return Ok(Token::End) };
        self.at += 1;
        Ok(match byte {
            b'{' | b'[' => Token::Open(byte),
            b'}' | b']' => Token::Close(byte),
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => Token::Text(self.text()?),
            _ => {
                self.at -= 1;
                self.word()?
            }
        })
    }

    /// The byte `ahead` of the current one, if the input has it; `ahead` is less than the window.
    fn peek(&mut self, ahead: usize) -> io::Result<Option<u8>> {
        while self.at + ahead >= self.window.len() && !self.ended {
            self.fill()?;
        }
        Ok(self.window.get(self.at + ahead).copied())
    }

    fn fill(&mut self) -> io::Result<()> {
        self.window.drain(..self.at);
        self.at = 0;
        let held = self.window.len();
        self.window.resize(held + WINDOW_BYTES, 0);
        let read = loop {
            match self.source.read(&mut self.window[held..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.window.truncate(held + read);
        self.ended = read == 0;
        Ok(())
    }

    /// The rest of a string after its opening quote.
    fn text(&mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        while let Some(byte) = self.peek(0)? {
            self.at += 1;
            match byte {
                b'"' if self.closes()? => break,
                b'\\' if self.escapes => self.escape(&mut bytes)?,
                _ => bytes.push(byte),
            }
            if bytes.len() > MAX_TEXT_BYTES {
                bytes.truncate(MAX_TEXT_BYTES);
                // One more may follow; the length stays at the bound.
            }
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Whether the quote just passed ends its string: an unescaped one inside a name is followed by more name.
    fn closes(&mut self) -> io::Result<bool> {
        let Some((next, at)) = self.after_blanks(0)? else { return Ok(true) };
        Ok(match next {
            b':' | b'}' | b']' => true,
            b',' => self.after_blanks(at + 1)?.is_none_or(|(next, _)| {
                matches!(next, b'"' | b'{' | b'[' | b'-' | b'0'..=b'9' | b'n' | b'i' | b't' | b'f' | b'}' | b']')
            }),
            _ => false,
        })
    }

    /// The next byte that is no blank, and how far ahead it is. `None` at the end, or after too many blanks.
    fn after_blanks(&mut self, from: usize) -> io::Result<Option<(u8, usize)>> {
        for ahead in from..from + MAX_BLANKS {
            match self.peek(ahead)? {
                Some(b' ' | b'\t' | b'\r' | b'\n') => {}
                Some(byte) => return Ok(Some((byte, ahead))),
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// What follows a backslash; one that escapes nothing stays.
    fn escape(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let Some(byte) = self.peek(0)? else { return Ok(()) };
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                if let Some(character) = self.hex(1)? {
                    self.at += 5;
                    return self.unicode(character, bytes);
                }
                bytes.push(b'\\');
                return Ok(());
            }
            _ => {
                bytes.push(b'\\');
                return Ok(());
            }
        };
        self.at += 1;
        bytes.push(plain);
        Ok(())
    }

    /// Appends a character of one or two `\u` escapes.
    fn unicode(&mut self, first: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut code = first;
        if (0xd800..0xdc00).contains(&first)
            && self.peek(0)? == Some(b'\\')
            && self.peek(1)? == Some(b'u')
            && let Some(second) = self.hex(2)?.filter(|second| (0xdc00..0xe000).contains(second))
        {
            self.at += 6;
            code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// Four hexadecimal digits `ahead`.
    fn hex(&mut self, ahead: usize) -> io::Result<Option<u32>> {
        let mut code = 0;
        for place in 0..4 {
            let Some(digit) = self.peek(ahead + place)?.and_then(|byte| char::from(byte).to_digit(16)) else {
                return Ok(None);
            };
            code = code * 16 + digit;
        }
        Ok(Some(code))
    }

    /// A number or a word, or else the rest of the line.
    fn word(&mut self) -> io::Result<Token> {
        let mut length = 0;
        while length < MAX_WORD_BYTES {
            match self.peek(length)? {
                None | Some(b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' | b'[' | b']' | b'{' | b'}' | b'"') => break,
                Some(_) => length += 1,
            }
        }
        let word = String::from_utf8_lossy(&self.window[self.at..self.at + length]).into_owned();
        if length < MAX_WORD_BYTES {
            if let Some(number) = crate::log::number(&word) {
                self.at += length;
                return Ok(Token::Number(number));
            }
            if matches!(word.as_str(), "true" | "false" | "null") {
                self.at += length;
                return Ok(Token::Word(word));
            }
        }
        let mut sentence = Vec::new();
        while let Some(byte) = self.peek(0)? {
            self.at += 1;
            if byte == b'\n' {
                break;
            }
            if sentence.len() < MAX_SENTENCE_BYTES {
                sentence.push(byte);
            }
        }
        Ok(Token::Sentence(String::from_utf8_lossy(&sentence).trim_end().to_owned()))
    }
}

/// A value of a record that is not nested.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Text(String),
    Number(f64),
    Other,
}

/// Fields of one record; the rest of a larger one is passed over.
const MAX_FIELDS: usize = 64;

/// Calls `take` with the fields of every object directly in the outermost list (or of the objects of a file that lost
/// its brackets). Nested values are passed over.
pub(super) fn each_record<R: Read>(
    lexer: &mut Lexer<R>,
    expected: &'static str,
    mut take: impl FnMut(&[(String, Scalar)]),
) -> Result<(), super::ExportError> {
    match lexer.next()? {
        Token::Open(b'[') => {}
        Token::Open(_) => {
            // One record without its list.
            let fields = record(lexer)?;
            take(&fields);
            return Ok(());
        }
        _ => return Err(super::ExportError::NotJson { expected }),
    }
    loop {
        match lexer.next()? {
            Token::End => return Ok(()),
            Token::Open(b'{') => take(&record(lexer)?),
            Token::Close(b']') => return Ok(()),
            _ => {}
        }
    }
}

/// The fields of an object after its opening bracket.
fn record<R: Read>(lexer: &mut Lexer<R>) -> io::Result<Vec<(String, Scalar)>> {
    let mut fields = Vec::new();
    let mut key = None;
    let mut value_follows = false;
    let mut depth = 0u64;
    loop {
        let scalar = match lexer.next()? {
            Token::End => return Ok(fields),
            Token::Open(_) => {
                depth += 1;
                continue;
            }
            Token::Close(_) if depth > 0 => {
                depth -= 1;
                continue;
            }
            Token::Close(_) => return Ok(fields),
            _ if depth > 0 => continue,
            Token::Colon => {
                value_follows = key.is_some();
                continue;
            }
            Token::Comma => {
                (key, value_follows) = (None, false);
                continue;
            }
            Token::Text(text) if !value_follows => {
                key = Some(text);
                continue;
            }
            Token::Text(text) => Scalar::Text(text),
            Token::Number(number) => Scalar::Number(number),
            Token::Word(_) | Token::Sentence(_) => Scalar::Other,
        };
        if value_follows
            && fields.len() < MAX_FIELDS
            && let Some(key) = key.take()
        {
            fields.push((key, scalar));
        }
        value_follows = false;
    }
}

/// The number under one of `names`.
pub(super) fn number_of(fields: &[(String, Scalar)], names: &[&str]) -> Option<f64> {
    fields.iter().find_map(|(name, value)| match value {
        Scalar::Number(number) if names.contains(&name.as_str()) => Some(*number),
        _ => None,
    })
}

/// The text under `name`.
pub(super) fn text_of<'a>(fields: &'a [(String, Scalar)], name: &str) -> Option<&'a str> {
    fields.iter().find_map(|(field, value)| match value {
        Scalar::Text(text) if field == name => Some(text.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(mut lexer: Lexer<&[u8]>) -> Vec<Token> {
        let mut tokens = Vec::new();
        loop {
            match lexer.next().unwrap() {
                Token::End => return tokens,
                token => tokens.push(token),
            }
        }
    }

    fn text(text: &str) -> Token {
        Token::Text(text.into())
    }

    #[test]
    fn numbers_and_words() {
        let read = tokens(Lexer::plain(b"[1, -2.5e-3,inf,-nan] true null"));
        assert_eq!(read[1], Token::Number(1.0));
        assert_eq!(read[3], Token::Number(-2.5e-3));
        assert_eq!(read[5], Token::Number(f64::INFINITY));
        assert!(matches!(read[7], Token::Number(nan) if nan.is_nan()));
        assert_eq!(read[9..], [Token::Word("true".into()), Token::Word("null".into())]);
    }

    #[test]
    fn quotes_and_backslashes_inside_plain_names_stay() {
        let read = tokens(Lexer::plain(br#"{ "name" : "a "b" \n c\", "x" : 1 }"#));
        assert_eq!(read[3], text(r#"a "b" \n c\"#));
        assert_eq!(read[5], text("x"));
    }

    #[test]
    fn escapes_are_undone_where_the_writer_escapes() {
        let read = tokens(Lexer::escaped(br#"["a\u001eb\"c", "\ud83d\ude00", "\d\u12", "\ud83d", "x\\"]"#));
        assert_eq!(read[1], text("a\u{1e}b\"c"));
        assert_eq!(read[3], text("😀"));
        assert_eq!(read[5], text(r"\d\u12"));
        assert_eq!(read[7], text("\u{fffd}"));
        assert_eq!(read[9], text("x\\"));
    }

    #[test]
    fn a_sentence_ends_with_its_line() {
        let read = tokens(Lexer::plain(b"[ Final shape is (1, 3) reported by x.\n1, 2 ]"));
        assert_eq!(read[1], Token::Sentence("Final shape is (1, 3) reported by x.".into()));
        assert_eq!(read[2], Token::Number(1.0));
    }

    #[test]
    fn long_strings_are_cut_and_passed_over() {
        let mut bytes = b"[\"".to_vec();
        bytes.resize(5 << 20, b'x');
        bytes.extend_from_slice(b"\", 7]");
        let read = tokens(Lexer::plain(&bytes[..]));
        assert!(matches!(&read[1], Token::Text(text) if text.len() == MAX_TEXT_BYTES));
        assert_eq!(read[3], Token::Number(7.0));
    }

    #[test]
    fn records_survive_damage() {
        let mut seen = Vec::new();
        let file = br#"[ {"a": 1, "b": {"c": [2]}, "d": "x"}, junk
            {"a": 2 ], {"a"  "a": 3, : 4}, {"a": 5"#;
        each_record(&mut Lexer::plain(&file[..]), "test", |fields| seen.push(number_of(fields, &["a"]))).unwrap();
        assert_eq!(seen.first(), Some(&Some(1.0)));
        assert!(seen.len() >= 2);
    }
}
