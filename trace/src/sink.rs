//! Where this process's spans go.
//!
//! Nowhere, until somebody takes them, once and for the life of the process. What finds no room is counted and let go:
//! nothing ever waits for whoever takes spans.

use crate::Span;
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
    mpsc::{self, Receiver, SyncSender},
};

/// Spans that may wait to be taken.
const WAITING_MAX: usize = 8_192;

/// What whoever takes spans is told.
#[derive(Debug)]
pub enum Word {
    Span(Box<Span>),
    /// Hand over what there is, then answer.
    Flush(SyncSender<()>),
}

static SINK: OnceLock<SyncSender<Word>> = OnceLock::new();
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Takes this process's spans from now on; `None` where somebody does already.
pub fn take() -> Option<Receiver<Word>> {
    let (sender, receiver) = mpsc::sync_channel(WAITING_MAX);
    SINK.set(sender).is_ok().then_some(receiver)
}

/// Whether anybody takes spans: what costs something to make is made only then.
pub fn is_recording() -> bool {
    SINK.get().is_some()
}

/// Hands a span over, unless whoever began its trace wants nothing recorded.
pub fn emit(span: Span) {
    let Some(sink) = SINK.get() else { return };
    if span.context.sampled && sink.try_send(Word::Span(Box::new(span))).is_err() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Spans that found no room since this was last asked.
pub fn left_out() -> u64 {
    LEFT_OUT.swap(0, Ordering::Relaxed)
}

/// Says a word to whoever takes spans; whether it was heard.
pub fn say(word: Word) -> bool {
    SINK.get().is_some_and(|sink| sink.try_send(word).is_ok())
}
