//! Plugin libraries that a run names, and what its log says of them.

use crate::log::{LogFacts, Message};

/// A plugin is named on the command line; what is missing then is the operator's to provide.
pub(crate) fn is_plugin(facts: &LogFacts, library: &str) -> bool {
    facts.banner().is_some_and(|banner| {
        !library.is_empty()
            && banner.command.to_ascii_lowercase().contains("plugins")
            && banner.command.contains(library)
    })
}

/// An error that a plugin library of the command line could not be loaded: some versions go on and pass without it.
pub(crate) fn lost_plugin(facts: &LogFacts) -> Option<&Message> {
    const LOST: [&str; 6] = [
        "could not load plugin library",
        "could not load library",
        "unable to load library",
        "unable to load dynamic library",
        "failed to load library",
        "cannot open shared object file",
    ];
    facts.errors.iter().find(|message| {
        let text = message.text.to_ascii_lowercase();
        LOST.iter().any(|lost| text.contains(lost)) && is_plugin(facts, library_in(&message.text))
    })
}

/// The library that a message names.
pub(crate) fn library_in(text: &str) -> &str {
    let words = text.split(|c: char| c.is_whitespace() || "'\":,;()".contains(c));
    words.into_iter().find(|word| word.contains(".so") || word.ends_with(".dll")).unwrap_or_default()
}
