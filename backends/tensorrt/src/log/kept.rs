//! Lists that keep the first and the last of what may come without end.

use super::line::Level;
use std::collections::VecDeque;

/// Longest text of one kept message, continuation lines included: enough for the parser's report of a node.
pub(super) const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// The first `HEAD` and the last `TAIL` values of a stream; failures name their cause first and their end last.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept<T> {
    head: Vec<T>,
    tail: VecDeque<T>,
    seen: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), seen: 0 }
    }
}

const HEAD: usize = 64;
const TAIL: usize = 64;

impl<T> Kept<T> {
    pub(super) fn push(&mut self, value: T) {
        self.seen += 1;
        if self.head.len() < HEAD {
            return self.head.push(value);
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(value);
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.tail.back_mut().or(self.head.last_mut())
    }

    /// What is kept, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.head.iter().chain(&self.tail)
    }

    /// How many there were, kept or not.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

/// A warning, an error or a line without prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `None`: a line that no logger printed, such as the dynamic linker's.
    pub level: Option<Level>,
    pub library: bool,
    /// Continuation lines follow after line feeds; cut at a bound.
    pub text: String,
}

impl Message {
    pub(super) fn new(level: Option<Level>, library: bool, text: &str) -> Self {
        Self { level, library, text: cut(text, MAX_MESSAGE_BYTES).to_owned() }
    }

    /// Appends a continuation line as far as there is room.
    pub(super) fn extend(&mut self, line: &str) {
        let room = MAX_MESSAGE_BYTES.saturating_sub(self.text.len() + 1);
        if room > 0 {
            self.text.push('\n');
            self.text.push_str(cut(line, room));
        }
    }
}

/// The longest prefix of whole characters within `limit` bytes.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_are_kept_and_all_are_counted() {
        let mut kept = Kept::default();
        (0..10_000u32).for_each(|value| kept.push(value));
        assert_eq!(kept.seen(), 10_000);
        assert_eq!(kept.iter().count(), HEAD + TAIL);
        assert_eq!(kept.iter().next(), Some(&0));
        assert_eq!(kept.iter().next_back(), Some(&9_999));
        assert_eq!(kept.last_mut(), Some(&mut 9_999));
    }

    #[test]
    fn a_message_grows_to_a_bound() {
        let mut message = Message::new(Some(Level::Error), false, "x");
        (0..10_000).for_each(|_| message.extend("äöü"));
        assert!(message.text.len() <= MAX_MESSAGE_BYTES);
        assert!(message.text.starts_with("x\näöü\n"));
    }
}
