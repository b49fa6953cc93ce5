//! What is wrong with a declaration.

/// What is wrong with a declaration, and in which of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct DeclarationError {
    /// From 1.
    pub line: usize,
    pub message: String,
    /// What to do next; may be empty.
    pub hint: String,
}

impl DeclarationError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), hint: String::new() }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}
