//! Replies that fit into a message, however long the list is.
//!
//! A page ends when the next item would make the message too long; a cursor names the last item by what lists are sorted
//! by, so that the next page goes on behind it whatever was added at the front meanwhile.

use super::convert::invalid;
use crate::{core::Report, store::PastBuild};
use planforge_proto::{ApiError, v1};
use prost::Message as _;

/// Bytes of one reply's items: a quarter of what clients take, so that one long item more still fits.
const PAGE_BYTES: usize = 8 << 20;

/// Something that takes room in a reply.
pub(super) trait Item {
    fn bytes(&self) -> usize;
}

impl Item for v1::Job {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::Engine {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::AuditRecord {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::SubmittedRequest {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::EventRecord {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::Declaration {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for v1::Pin {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

impl Item for PastBuild {
    fn bytes(&self) -> usize {
        // At most: builds of one line share its spec, and those of one toolchain that.
        [&self.job, &self.plan, &self.model_digest, &self.spec_json, &self.toolchain_json].map(String::len).iter().sum()
    }
}

impl Item for Report {
    fn bytes(&self) -> usize {
        self.document.len()
    }
}

/// Items of one reply.
pub(super) struct Page<T> {
    items: Vec<T>,
    bytes: usize,
}

impl<T: Item> Page<T> {
    pub(super) fn new() -> Self {
        Self { items: Vec::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= PAGE_BYTES
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }

    /// Takes an item where it fits; the first always does, so that every page brings the list forward.
    pub(super) fn push(&mut self, item: T) -> bool {
        let bytes = self.bytes + item.bytes();
        if bytes > PAGE_BYTES && !self.items.is_empty() {
            return false;
        }
        self.bytes = bytes;
        self.items.push(item);
        true
    }
}

impl Page<v1::Job> {
    /// Takes a job of a reply that has to name every one: what no longer fits is shortened, and says so.
    pub(super) fn push_or_shorten(&mut self, job: v1::Job) {
        if self.bytes + job.bytes() <= PAGE_BYTES {
            self.push(job);
            return;
        }
        // No more room for whole ones: what comes later is short too, so that names alone never fill a message.
        let model = job.model.map(|model| v1::Model { files: Vec::new(), ..model });
        let spec_json = String::new();
        let report_json = String::new();
        let (attempts, artifacts) = (Vec::new(), Vec::new());
        self.bytes = PAGE_BYTES;
        self.items.push(v1::Job {
            model,
            spec_json,
            report_json,
            attempts,
            artifacts,
            tried: Vec::new(),
            partial: true,
            ..job
        });
    }
}

/// Where a page ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cursor<'a, const N: usize> {
    pub(super) created_ms: u64,
    pub(super) names: [&'a str; N],
}

impl<'a, const N: usize> Cursor<'a, N> {
    /// `None` for the first page.
    pub(super) fn read(text: &'a str) -> Result<Option<Self>, ApiError> {
        if text.is_empty() {
            return Ok(None);
        }
        let mut parts = text.split('.');
        let created_ms = parts.next().and_then(|part| part.parse().ok()).ok_or_else(bad_cursor)?;
        let names: Vec<&str> = parts.collect();
        Ok(Some(Self { created_ms, names: names.try_into().map_err(|_| bad_cursor())? }))
    }

    pub(super) fn write(&self) -> String {
        format!("{}.{}", self.created_ms, self.names.join("."))
    }
}

/// A name for a cursor: it may hold what cursors are written with.
pub(super) fn in_hex(name: &str) -> String {
    hex::encode(name)
}

pub(super) fn of_hex(text: &str) -> Result<String, ApiError> {
    let bytes = hex::decode(text).map_err(|_| bad_cursor())?;
    String::from_utf8(bytes).map_err(|_| bad_cursor())
}

pub(super) fn bad_cursor() -> ApiError {
    invalid("the cursor is none that this list gave").with_hint("begin again without one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bytes: usize) -> v1::Job {
        v1::Job { id: "j".into(), report_json: "r".repeat(bytes), ..v1::Job::default() }
    }

    #[test]
    fn a_page_ends_before_the_message_is_too_long_and_is_never_empty() {
        let mut page = Page::new();
        assert!(page.push(job(2 * PAGE_BYTES)));
        assert!(!page.push(job(1)));
        let mut page = Page::new();
        while page.push(job(100_000)) {}
        assert!((PAGE_BYTES - 200_000..=PAGE_BYTES).contains(&page.bytes), "{}", page.bytes);
        assert_eq!(page.len(), PAGE_BYTES / 100_010);
    }

    #[test]
    fn a_reply_that_names_every_job_shortens_those_that_do_not_fit() {
        let mut page = Page::new();
        for _ in 0..200 {
            page.push_or_shorten(job(100_000));
        }
        let jobs = page.into_items();
        let whole = jobs.iter().filter(|job| !job.partial).count();
        assert!(whole > 0 && jobs.len() == 200);
        assert!(jobs[whole..].iter().all(|job| job.partial && job.report_json.is_empty() && job.id == "j"));
        assert!(jobs.iter().map(Item::bytes).sum::<usize>() <= PAGE_BYTES + 200 * 100);
    }

    #[test]
    fn cursors_are_read_as_they_were_written() {
        let cursor = Cursor { created_ms: 7, names: ["a", "b"] };
        assert_eq!(Cursor::read(&cursor.write()).unwrap(), Some(cursor));
        assert_eq!(Cursor::<1>::read("").unwrap(), None);
        for bad in ["x", "1", "1.a.b", ".a", "-1.a"] {
            assert!(Cursor::<1>::read(bad).is_err(), "{bad}");
        }
    }
}
