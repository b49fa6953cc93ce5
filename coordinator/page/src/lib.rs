//! The status page without its farm: the contract's messages as rows, tables and pages for people. Text stays text:
//! askama escapes it.
//!
//! | module | holds |
//! |---|---|
//! | [`rows`] | a job, engine, attempt or event as it stands in a list or on a page of its own |
//! | [`table`] | tables whose rows have keys |
//! | [`lists`] | the tables of the page |
//! | [`coverage`] | which model has an engine for which device kind |
//! | [`report`] | what a report says beyond its figures: charts, bounds, advice, types |
//! | [`layers`] | the layers of an engine, sorted, a page at a time |
//! | [`history`] | an engine's medians, build after build |
//! | [`progress`] | how far a request is |
//! | [`graph`] | what of a request needs what, as a picture |
//! | [`comparison`] | reports side by side, with the verdicts on them |
//! | [`timeline`] | what a job did when |
//! | [`search`] | lines of a log that have a text in them |
//! | [`cards`] | devices, as cards |
//! | [`day`] | what a device did within a day |
//! | [`parts`] | tiles, cards, and the parts of a job's page |
//! | [`view`] | a page as its parts, and the state that updates are told from |
//! | [`assets`] | style, scripts and icon |
//! | [`mod@format`] | numbers and times as people read them |
//!
//! Must not know: where messages come from, who asks, and over what.

pub mod assets;
pub mod cards;
pub mod comparison;
pub mod coverage;
pub mod day;
pub mod format;
pub mod graph;
pub mod history;
pub mod layers;
pub mod lists;
pub mod parts;
pub mod progress;
pub mod reading;
pub mod report;
pub mod rows;
pub mod search;
pub mod table;
pub mod timeline;
pub mod view;

pub use askama::Template;
