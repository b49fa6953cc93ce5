//! What the status page says: the contract's messages as rows, cards and figures for people. Text stays text; whoever
//! writes it into a page escapes it.
//!
//! | module | holds |
//! |---|---|
//! | [`rows`] | a job, device, engine, attempt or event as it stands in a list or on a page of its own |
//! | [`mod@format`] | numbers and times as people read them |
//!
//! Must not know: where messages come from, how a page is laid out.

pub mod format;
pub mod rows;
