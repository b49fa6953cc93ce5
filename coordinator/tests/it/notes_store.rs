//! What every store promises of what a blob store remembers in it.

use planforge_coordinator::{core::Change, store::Store};

fn note(kind: &str, name: &str, text: Option<&str>, at_ms: u64) -> Change {
    Change::BlobNote { kind: kind.into(), name: name.into(), text: text.map(str::to_owned), at_ms }
}

/// Called while the store's epoch is not 0.
pub(crate) async fn notes(store: &dyn Store) {
    let all = async |kind| {
        let found = store.blob_notes(kind).await.unwrap();
        found.into_iter().map(|note| (note.name, note.text, note.at_ms)).collect::<Vec<_>>()
    };
    let is = |name: &str, text: &str, at_ms| (name.to_owned(), text.to_owned(), at_ms);
    let written = vec![
        note("part", "b", Some("it's {}"), 2),
        note("part", "a", Some(""), 1),
        note("upload", "a", Some("another"), 3),
    ];
    store.commit_notes(written).await.unwrap();
    assert_eq!(all("part").await, [is("a", "", 1), is("b", "it's {}", 2)], "by name");
    assert_eq!(all("upload").await, [is("a", "another", 3)]);
    // The last of several changes of one note holds.
    let changes =
        vec![note("part", "b", Some("new"), 5), note("part", "a", None, 0), note("part", "a", Some("again"), 6)];
    store.commit_notes(changes).await.unwrap();
    assert_eq!(all("part").await, [is("a", "again", 6), is("b", "new", 5)]);
    store.commit_notes(vec![note("upload", "a", None, 0)]).await.unwrap();
    assert_eq!(all("upload").await, []);
    // Whoever does not lead any more writes none, as nothing else.
    store.commit(0, vec![note("part", "c", Some(""), 7)]).await.unwrap_err();
    assert_eq!(all("part").await.len(), 2);
}
