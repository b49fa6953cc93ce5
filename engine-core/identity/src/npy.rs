//! The header of one numpy array: what lies between the magic bytes and the elements.
//!
//! It is the text of a Python dict with three known keys; nothing else of Python is understood. The format is numpy's
//! `numpy.lib.format`, versions 1 to 3.

use std::{
    fmt,
    io::{self, Read, Write},
    iter::Peekable,
    str::CharIndices,
};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Elements begin at a multiple of this, counted from the magic bytes.
const ALIGNMENT: usize = 64;
/// Longest text that is read: those of arrays of numbers have about a hundred bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// What the elements are and how they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub descr: Descr,
    pub order: Order,
    pub shape: Vec<u64>,
}

/// The elements' type as the file words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Descr {
    /// A type's name, such as `<f4`.
    Plain(String),
    /// A record of fields, as it stands in the file.
    Record(String),
}

impl fmt::Display for Descr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => write!(f, "'{name}'"),
            Self::Record(text) => f.write_str(text),
        }
    }
}

/// Which axis changes fastest: the last (C) or the first (Fortran).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    C,
    Fortran,
}

impl Header {
    /// Reads everything before the elements.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut begin = [0; 8];
        from.read_exact(&mut begin)?;
        if !begin.starts_with(MAGIC) {
            return Err(invalid("it does not begin as a numpy array does"));
        }
        let text_bytes = match begin[6] {
            1 => {
                let mut length = [0; 2];
                from.read_exact(&mut length)?;
                u16::from_le_bytes(length) as usize
            }
            2 | 3 => {
                let mut length = [0; 4];
                from.read_exact(&mut length)?;
                u32::from_le_bytes(length) as usize
            }
            version => return Err(invalid(format!("its format is of version {version}; 1 to 3 are known"))),
        };
        if text_bytes > MAX_TEXT_BYTES {
            return Err(invalid(format!("its header of {text_bytes} bytes is longer than {MAX_TEXT_BYTES}")));
        }
        let mut text = vec![0; text_bytes];
        from.read_exact(&mut text)?;
        let text = String::from_utf8(text).map_err(|_| invalid("its header is no text"))?;
        Parser::new(&text).header().ok_or_else(|| invalid(format!("its header makes no sense: {}", text.trim_end())))
    }

    /// Writes everything before the elements, in version 1 of the format.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let fortran = if self.order == Order::Fortran { "True" } else { "False" };
        let sizes: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        let comma = if sizes.len() == 1 { "," } else { "" };
        let mut text = format!(
            "{{'descr': {}, 'fortran_order': {fortran}, 'shape': ({}{comma}), }}",
            self.descr,
            sizes.join(", ")
        );
        let before = MAGIC.len() + 4;
        let padded = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before - 1;
        text.extend(std::iter::repeat_n(' ', padded - text.len()));
        text.push('\n');
        let length = u16::try_from(text.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an array has too many dimensions"))?;
        to.write_all(MAGIC)?;
        to.write_all(&[1, 0])?;
        to.write_all(&length.to_le_bytes())?;
        to.write_all(text.as_bytes())
    }
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

/// Reads the dict; `None` wherever the text is another than numpy writes.
struct Parser<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, rest: text.char_indices().peekable() }
    }

    fn header(mut self) -> Option<Header> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.takes('}') {
            let key = self.string()?;
            self.expect(':')?;
            let again = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => order.replace(self.order()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => true,
            };
            if again || (!self.takes(',') && self.peek() != Some('}')) {
                return None;
            }
        }
        if self.peek().is_some() {
            return None;
        }
        Some(Header { descr: descr?, order: order?, shape: shape? })
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        while self.rest.next_if(|(_, c)| c.is_ascii_whitespace()).is_some() {}
        self.rest.peek().map(|(_, c)| *c)
    }

    fn takes(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.rest.next();
        }
        there
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.takes(wanted).then_some(())
    }

    /// Where the next character stands.
    fn at(&mut self) -> usize {
        self.rest.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    /// A quoted text without escapes: type names and keys have none.
    fn string(&mut self) -> Option<&'a str> {
        let quote = self.peek().filter(|c| matches!(c, '\'' | '"'))?;
        self.rest.next();
        let begin = self.at();
        while self.rest.next_if(|(_, c)| *c != quote && *c != '\\').is_some() {}
        let end = self.at();
        (self.rest.next()?.1 == quote).then(|| &self.text[begin..end])
    }

    fn descr(&mut self) -> Option<Descr> {
        if self.peek()? != '[' {
            return self.string().map(|name| Descr::Plain(name.to_owned()));
        }
        let begin = self.at();
        let mut depth = 0_u32;
        loop {
            match self.peek()? {
                '\'' | '"' => {
                    self.string()?;
                    continue;
                }
                '[' | '(' => depth += 1,
                ']' | ')' => depth -= 1,
                _ => {}
            }
            self.rest.next();
            if depth == 0 {
                return Some(Descr::Record(self.text[begin..self.at()].to_owned()));
            }
        }
    }

    fn order(&mut self) -> Option<Order> {
        self.peek();
        let begin = self.at();
        while self.rest.next_if(|(_, c)| c.is_ascii_alphabetic()).is_some() {}
        match &self.text[begin..self.at()] {
            "True" => Some(Order::Fortran),
            "False" => Some(Order::C),
            _ => None,
        }
    }

    fn shape(&mut self) -> Option<Vec<u64>> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.takes(')') {
            self.peek();
            let begin = self.at();
            while self.rest.next_if(|(_, c)| c.is_ascii_digit()).is_some() {}
            shape.push(self.text[begin..self.at()].parse().ok()?);
            if !self.takes(',') && self.peek() != Some(')') {
                return None;
            }
        }
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Header> {
        Parser::new(text).header()
    }

    fn plain(name: &str, order: Order, shape: &[u64]) -> Header {
        Header { descr: Descr::Plain(name.into()), order, shape: shape.to_vec() }
    }

    #[test]
    fn a_header_is_written_as_numpy_does() {
        let mut bytes = Vec::new();
        plain("<f4", Order::C, &[3]).write(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 128);
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } "));
        assert!(bytes.ends_with(b" \n"));
        for header in [plain("|b1", Order::Fortran, &[]), plain("<i8", Order::C, &[u64::MAX, 0, 7])] {
            let mut bytes = Vec::new();
            header.write(&mut bytes).unwrap();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Header::read(&mut bytes.as_slice()).unwrap(), header);
        }
        let flat = plain("<f4", Order::C, &[1; 40_000]);
        assert_eq!(flat.write(&mut Vec::new()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn keys_come_in_any_order_and_later_versions_have_longer_lengths() {
        let text = r#"{"shape":(2,3,),"fortran_order":True,"descr":"<f2"}"#;
        assert_eq!(parse(text), Some(plain("<f2", Order::Fortran, &[2, 3])));
        for version in [2, 3] {
            let mut bytes = [MAGIC.as_slice(), &[version, 0], &(text.len() as u32).to_le_bytes()].concat();
            bytes.extend(text.as_bytes());
            assert_eq!(Header::read(&mut bytes.as_slice()).unwrap().shape, [2, 3]);
        }
        let record = parse("{'descr': [('a', '<f4', (2,)), ('b]', '|u1')], 'fortran_order': False, 'shape': (1,), }");
        assert_eq!(record.unwrap().descr.to_string(), "[('a', '<f4', (2,)), ('b]', '|u1')]");
    }

    #[test]
    fn another_text_is_refused() {
        for text in [
            "",
            "{}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} more",
            "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', '<f4'), 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
            "{'descr': 'a\\'b', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        let told = |bytes: &[u8]| Header::read(&mut &*bytes).unwrap_err().to_string();
        assert!(told(b"\x93NUMPZ\x01\x00").contains("begin"));
        assert!(told(b"\x93NUMPY\x09\x00").contains("version 9"));
        assert!(told(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("longer than"));
        assert!(told(b"\x93NUMPY\x01\x00\x02\x00\xff\xff").contains("no text"));
        assert!(told(b"\x93NUMPY\x01\x00\x02\x00{}").contains("makes no sense: {}"));
        assert_eq!(Header::read(&mut b"\x93NUM".as_slice()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
