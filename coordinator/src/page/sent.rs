//! Updates on their way to browsers, as server-sent events. What changed from one state of a page to the next is written
//! once, and the same bytes go to everybody who has the state before.

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use planforge_page::view::{Change, Snapshot};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};

/// Comments that keep proxies from closing a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// How the update of a stream's first page begins: most streams follow one page.
const FIRST: &str = "event: update\ndata: {\"t\":0,";

/// A page at one moment.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) snapshot: Snapshot,
    /// Of the state before it the tag, and what changed since, for streams that follow this page first: most of who look
    /// have that one.
    since: Option<(u64, Bytes)>,
}

impl Made {
    pub(super) fn first(snapshot: Snapshot) -> Self {
        Self { snapshot, since: None }
    }

    /// Whether what is made now says anything else.
    pub(super) fn replace(now: &mut Arc<Self>, next: Snapshot) -> bool {
        let before = &now.snapshot;
        let is_new = before.tag != next.tag;
        if is_new {
            let since = Some((before.tag, written(next.tag, &next.since(Some(before)))));
            *now = Arc::new(Self { snapshot: next, since });
        }
        is_new
    }

    /// The update of a stream's page `t` for whoever has the state of this tag, which is `has` where it is still known;
    /// empty: nothing changed.
    fn update(&self, t: usize, tag: Option<u64>, has: Option<&Self>) -> Bytes {
        let first = match &self.since {
            _ if tag == Some(self.snapshot.tag) => Bytes::new(),
            Some((before, update)) if tag == Some(*before) => update.clone(),
            _ => written(self.snapshot.tag, &self.snapshot.since(has.map(|has| &has.snapshot))),
        };
        if t == 0 || first.is_empty() {
            return first;
        }
        let mut other = FIRST.replace(":0,", &format!(":{t},")).into_bytes();
        other.extend_from_slice(&first[FIRST.len()..]);
        other.into()
    }
}

/// Changes as they are sent to streams that follow a page first; empty: none.
fn written(tag: u64, changes: &[Change]) -> Bytes {
    if changes.is_empty() {
        return Bytes::new();
    }
    // JSON has no line breaks of its own, which would end the event's line.
    let parts = serde_json::to_string(changes).unwrap_or_default();
    format!("{FIRST}\"s\":\"{tag:x}\",\"parts\":{parts}}}\n\n").into()
}

/// What is sent of one page to a browser that has the state of this tag. A browser that is slow holds its own stream back,
/// nobody else's: which update it is to be sent is looked up when it takes it.
fn updates(t: usize, states: watch::Receiver<Arc<Made>>, tag: Option<u64>) -> impl Stream<Item = Bytes> + Send {
    let first: Option<Arc<Made>> = None;
    stream::unfold((states, first), move |(mut states, mut has)| async move {
        loop {
            if has.is_some() {
                match timeout(KEEP_ALIVE, states.changed()).await {
                    Ok(changed) => changed.ok()?,
                    Err(_) => return Some((COMMENT, (states, has))),
                }
            }
            let now = states.borrow_and_update().clone();
            let tag = has.as_ref().map_or(tag, |has| Some(has.snapshot.tag));
            let update = now.update(t, tag, has.as_deref());
            has = Some(now);
            if !update.is_empty() {
                return Some((update, (states, has)));
            }
        }
    })
}

/// The stream of the updates of pages, each with the tag of the state that the browser has, if any, until `end`.
pub(super) fn answer(
    pages: Vec<(watch::Receiver<Arc<Made>>, Option<u64>)>,
    end: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let mut of_pages: Vec<_> =
        pages.into_iter().enumerate().map(|(t, (states, tag))| updates(t, states, tag).boxed()).collect();
    let all = match of_pages.len() {
        1 => of_pages.remove(0),
        _ => stream::select_all(of_pages).boxed(),
    };
    let body = Body::from_stream(all.take_until(end.boxed()).map(Ok::<_, Infallible>));
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_page::{
        table::{Cell, Table, words},
        view::{Section, View},
    };
    use serde_json::Value;

    fn page(rows: &[(&str, &str)]) -> Snapshot {
        let mut table = Table::new("things", "Things", &[words("Name")]);
        for (key, text) in rows {
            table.push(*key, "", [Cell::text(*text)]);
        }
        Snapshot::of(&View { sections: vec![Section::table("Things", table)], ..View::default() })
    }

    fn read(update: &[u8]) -> Value {
        let text = std::str::from_utf8(update).unwrap();
        let data = text.strip_prefix("event: update\ndata: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        assert!(!data.contains('\n'), "one line: {data}");
        serde_json::from_str(data).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_sent_what_they_lack_and_the_same_bytes_where_it_is_the_same() {
        let one = page(&[("a", "1"), ("b", "two\nlines")]);
        let tag = one.tag;
        let (states, _) = watch::channel(Arc::new(Made::first(one)));
        let follow = |t, tag| Box::pin(updates(t, states.subscribe(), tag));
        let (mut known, mut third, mut new) = (follow(0, Some(tag)), follow(2, Some(tag)), follow(0, None));
        let whole = read(&new.next().await.unwrap());
        assert_eq!((&whole["t"], &whole["s"]), (&Value::from(0), &Value::from(format!("{tag:x}"))));
        assert_eq!(whole["parts"][0]["id"], "things");

        // Who has the state is sent nothing but what shows that the stream lives.
        assert_eq!(known.next().await.unwrap(), COMMENT);
        let two = page(&[("a", "1"), ("b", "3")]);
        states.send_if_modified(|now| Made::replace(now, two.clone()));
        let [update, same] = [known.next().await.unwrap(), new.next().await.unwrap()];
        assert_eq!(update.as_ptr(), same.as_ptr(), "made once");
        let changed = read(&update);
        assert_eq!(changed["parts"][0]["rows"].as_object().unwrap().keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(changed["s"], format!("{:x}", two.tag));
        // Of a page that a stream follows third: it lacks this one, and no more.
        let third = read(&third.next().await.unwrap());
        assert_eq!(third["t"], 2);
        assert_eq!((&third["s"], &third["parts"]), (&changed["s"], &changed["parts"]));

        // Nothing new is nothing sent; who slept over two states is brought to the last.
        assert!(!states.send_if_modified(|now| Made::replace(now, two)));
        for text in ["4", "5"] {
            states.send_if_modified(|now| Made::replace(now, page(&[("a", text), ("b", "3")])));
        }
        let last = read(&known.next().await.unwrap());
        assert!(last["parts"][0]["rows"]["a"].as_str().unwrap().contains('5'));
    }
}
