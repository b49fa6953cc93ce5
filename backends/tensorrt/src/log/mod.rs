//! What a `trtexec` console log says, read while it streams in.
//!
//! Standard output and standard error are fed as they arrive, in pieces of any size; the reader keeps facts, never the
//! log, so a log of any length costs bounded memory. A line counts by the level it begins with: `--verbose` prints
//! explanations that look like results at level `V`, and what the library says carries a tag of its own.

mod facts;
pub(crate) mod findings;
mod kept;
mod line;
mod number;
mod reader;
mod rows;
mod table;

pub use facts::{
    Average, Banner, DeviceFacts, EngineFacts, LatencyRow, ListedDevice, LogFacts, RunFacts, Summary, TimingCacheFacts,
    Verdict, VerdictLine,
};
pub use kept::{Kept, Message};
pub use line::{Level, Line, parse_line};
pub use reader::{LogReader, Stream};
pub use table::{ProfileTable, TableRow};

pub(crate) use number::number;

#[cfg(test)]
mod tests;
