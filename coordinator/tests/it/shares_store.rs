//! What every store promises of links for reading, and of what is stored by kind.

use planforge_coordinator::{
    core::{Change, ShareRecord, Shared},
    store::{Heap, Store},
};
use planforge_types::Digest;

fn share(id: &str, project: Option<&str>, (created_ms, expires_ms): (u64, u64)) -> ShareRecord {
    ShareRecord {
        id: id.into(),
        secret_hash: Digest::of(id.as_bytes()),
        project: project.map(str::to_owned),
        of: Shared::Request(format!("of \"{id}\"")),
        actor: "it's me".into(),
        token: "t".into(),
        created_ms,
        expires_ms,
        opened_ms: 0,
    }
}

pub(crate) async fn shares(store: &dyn Store, epoch: u64) {
    let (a, b) = (share("a", Some("red"), (10, 100)), share("b", None, (11, 50)));
    let c = ShareRecord { of: Shared::Model(Digest::of(b"m")), ..share("c", Some("red"), (12, 100)) };
    let made = [&a, &b, &c].map(|share| Change::Share(Box::new(share.clone())));
    store.commit(epoch, made.into()).await.unwrap();
    let ids = async |project| {
        let shares = store.shares(project).await.unwrap();
        shares.into_iter().map(|share| share.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None).await, ["c", "b", "a"], "newest first");
    assert_eq!(ids(Some("red")).await, ["c", "a"]);
    assert_eq!(store.share_of(c.secret_hash).await.unwrap().as_ref(), Some(&c), "as it was written");
    assert_eq!(store.share_of(Digest::of(b"nobody's")).await.unwrap(), None);
    let opened = |at_ms| Change::ShareOpened { id: "a".into(), at_ms };
    store.commit(epoch, vec![opened(30), opened(20)]).await.unwrap();
    assert_eq!(store.share_of(a.secret_hash).await.unwrap().unwrap().opened_ms, 30, "the latest time counts");
    // What ends a link is not undone by what comes later.
    store.commit(epoch, vec![Change::Unshare("a".into())]).await.unwrap();
    store.commit(epoch, vec![opened(40)]).await.unwrap();
    assert_eq!(store.share_of(a.secret_hash).await.unwrap(), None);
    store.commit(epoch, vec![Change::SharesExpired { now_ms: 49 }]).await.unwrap();
    assert_eq!(ids(None).await, ["c", "b"]);
    store.commit(epoch, vec![Change::SharesExpired { now_ms: 50 }]).await.unwrap();
    assert_eq!(ids(None).await, ["c"]);
}

/// After jobs, engines and reports of several projects were stored: each blob of a project is of one kind.
pub(crate) async fn heaps(store: &dyn Store, projects: &[&str]) {
    let heaps = store.heaps().await.unwrap();
    assert!(heaps.is_sorted_by_key(|heap| (heap.project.clone(), heap.kind.clone())), "{heaps:?}");
    let kinds = ["plans", "reports", "models and cards", "inputs", "uploads", "logs"];
    assert!(!heaps.is_empty() && heaps.iter().all(|heap| kinds.contains(&&*heap.kind) && heap.blobs > 0), "{heaps:?}");
    for project in projects {
        let own = heaps.iter().filter(|heap| heap.project == *project);
        let bytes: u64 = own.map(|Heap { bytes, .. }| bytes).sum();
        assert_eq!(bytes, store.stored_bytes(project).await.unwrap(), "{project}: {heaps:?}");
    }
}
