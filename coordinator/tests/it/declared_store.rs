//! What every store promises of what projects declare, and want kept.

use crate::{store::key, support::SKU};
use planforge_coordinator::{
    core::{Change, DeclarationId, DeclarationRecord, DeclaredCell, DeclaredSpec, PinId, PinRecord},
    store::{DeclarationFilter, PinFilter, Store},
};
use planforge_types::{BuildSpec, Digest};

pub(crate) fn pin(plan: &str, project: &str, owner: &str, (created_ms, expires_ms): (u64, u64)) -> PinRecord {
    PinRecord {
        plan: Digest::of(plan.as_bytes()),
        project: project.into(),
        owner: owner.into(),
        key: key(plan),
        model: "it's \"m\".onnx".into(),
        sku: SKU.parse().unwrap(),
        reason: "engines.lock".into(),
        created_ms,
        expires_ms,
    }
}

fn put(pin: &PinRecord) -> Change {
    Change::Pin(Box::new(pin.clone()))
}

pub(crate) async fn pins(store: &dyn Store, epoch: u64) {
    let (a, b) = (pin("a", "red", "ci", (10, 100)), pin("a", "blue", "ci", (10, 50)));
    let (c, d) = (pin("c", "red", "ci", (10, 100)), pin("a", "red", "me", (11, 60)));
    let (plan, other) = (a.plan, c.plan);
    store.commit(epoch, [&a, &b, &c, &d].map(put).into()).await.unwrap();
    let list = async |filter: PinFilter| {
        let pins = store.pins(PinFilter { limit: 10, ..filter }).await.unwrap();
        pins.into_iter().map(|pin| (pin.created_ms, pin.id())).collect::<Vec<_>>()
    };
    let told = |pins: &[&PinRecord]| {
        let mut told: Vec<(u64, PinId)> = pins.iter().map(|pin| (pin.created_ms, pin.id())).collect();
        told.sort();
        told.reverse();
        told
    };
    let any = PinFilter::default;
    let everything = list(any()).await;
    assert_eq!(everything, told(&[&a, &b, &c, &d]), "newest first");
    assert_eq!(list(PinFilter { project: Some("red".into()), ..any() }).await, told(&[&a, &c, &d]));
    assert_eq!(list(PinFilter { owner: Some("me".into()), ..any() }).await, told(&[&d]));
    assert_eq!(list(PinFilter { plans: vec![other], ..any() }).await, told(&[&c]));
    assert_eq!(list(PinFilter { plans: vec![plan, other], now_ms: 60, ..any() }).await, told(&[&a, &c]));
    for at in 0..everything.len() {
        let behind = Some(everything[at].clone());
        assert_eq!(list(PinFilter { behind, ..any() }).await, everything[at + 1..], "behind {at}");
    }
    assert_eq!(
        store.pins(PinFilter { limit: 1, ..any() }).await.unwrap(),
        std::slice::from_ref(&d),
        "as it was written"
    );

    // At its last millisecond a pin is there, and then it is not.
    let pinned = async |now_ms| store.is_pinned(plan, now_ms).await.unwrap();
    assert_eq!((pinned(0).await, pinned(99).await, pinned(100).await), (true, true, false));
    assert!(!store.is_pinned(Digest::of(b"z"), 0).await.unwrap());
    let count = async |project, now_ms| store.pin_count(project, now_ms).await.unwrap();
    assert_eq!((count("red", 0).await, count("red", 60).await, count("green", 0).await), (3, 2, 0));

    // Renewed and taken away, twice in one commit: as it last stood.
    let longer = PinRecord { expires_ms: 200, reason: "again".into(), ..a.clone() };
    store.commit(epoch, vec![Change::Unpin(a.id()), put(&longer), put(&d), Change::Unpin(d.id())]).await.unwrap();
    let own = PinFilter { project: Some("red".into()), plans: vec![plan], limit: 9, ..any() };
    assert_eq!(store.pins(own.clone()).await.unwrap(), std::slice::from_ref(&longer));
    assert!(pinned(199).await);
    store.commit(epoch, vec![Change::PinsExpired { now_ms: 100 }]).await.unwrap();
    assert_eq!(list(any()).await, told(&[&longer]), "what has expired is gone");
    // Gone and made anew in one commit.
    let anew = PinRecord { created_ms: 300, expires_ms: 400, ..longer.clone() };
    store.commit(epoch, vec![Change::PinsExpired { now_ms: 250 }, put(&anew)]).await.unwrap();
    assert_eq!(store.pins(own).await.unwrap(), [anew]);
}

fn declaration(project: &str, name: &str, declared_ms: u64) -> DeclarationRecord {
    let spec = DeclaredSpec { name: "it's \"fast\"".into(), spec: BuildSpec::default(), toolchain: "native".into() };
    let cell = |plan: Option<Digest>| DeclaredCell {
        model: "m".into(),
        digest: Digest::of(b"m"),
        sku: SKU.parse().unwrap(),
        target: "cpu".into(),
        spec: spec.name.clone(),
        plan,
    };
    DeclarationRecord {
        project: project.into(),
        name: name.into(),
        actor: "ci".into(),
        declared_ms,
        cells: vec![cell(None), cell(Some(Digest::of(b"plan")))],
        specs: vec![spec],
    }
}

pub(crate) async fn declarations(store: &dyn Store, epoch: u64) {
    let put = |record: &DeclarationRecord| Change::Declaration(Box::new(record.clone()));
    let (a, b) = (declaration("red", "a", 10), declaration("red", "b", 10));
    let other = declaration("blue", "a", 20);
    store.commit(epoch, [&a, &b, &other].map(put).into()).await.unwrap();
    let list =
        async |filter: DeclarationFilter| store.declarations(DeclarationFilter { limit: 10, ..filter }).await.unwrap();
    let any = DeclarationFilter::default;
    let everything = list(any()).await;
    assert_eq!(everything, [other.clone(), b.clone(), a.clone()], "newest first, as they were written");
    assert_eq!(list(DeclarationFilter { project: Some("red".into()), ..any() }).await, everything[1..]);
    let named = DeclarationFilter { project: Some("red".into()), name: Some("a".into()), ..any() };
    assert_eq!(list(named.clone()).await, std::slice::from_ref(&a));
    for at in 0..everything.len() {
        let behind = Some((everything[at].declared_ms, everything[at].id()));
        assert_eq!(list(DeclarationFilter { behind, ..any() }).await, everything[at + 1..], "behind {at}");
    }
    assert_eq!(store.declarations(DeclarationFilter { limit: 1, ..any() }).await.unwrap().len(), 1);
    let others = async |project: &str, name: &str| {
        let id = DeclarationId { project: project.into(), name: name.into() };
        store.other_declarations(&id).await.unwrap()
    };
    assert_eq!((others("red", "a").await, others("red", "c").await, others("blue", "a").await), (1, 2, 0));

    // Replaced as a whole, and forgotten; twice in one commit: as it last stood.
    let newer = DeclarationRecord { cells: Vec::new(), ..declaration("red", "a", 30) };
    let changes = vec![Change::ForgetDeclaration(a.id()), put(&newer), put(&b), Change::ForgetDeclaration(b.id())];
    store.commit(epoch, changes).await.unwrap();
    assert_eq!(list(named).await, std::slice::from_ref(&newer));
    assert_eq!(list(any()).await, [newer, other]);
}

/// Of the builds that a collection looks at, those whose plan somebody wants kept say so, until the pin expires.
pub(crate) async fn pinned_builds(store: &dyn Store, epoch: u64) {
    let builds = async |now_ms| store.builds_unused_since(u64::MAX >> 1, None, 1_000, now_ms).await.unwrap();
    let before = builds(0).await;
    let plan = before.first().expect("an engine").name.1;
    assert!(before.iter().all(|build| !build.is_pinned));
    let pin = PinRecord { plan, ..pin("kept", "red", "ci", (10, 100)) };
    store.commit(epoch, vec![put(&pin)]).await.unwrap();
    for (now_ms, kept) in [(99, true), (100, false)] {
        for build in builds(now_ms).await {
            assert_eq!(build.is_pinned, kept && build.name.1 == plan, "{:?} at {now_ms}", build.name);
        }
    }
    store.commit(epoch, vec![Change::Unpin(pin.id())]).await.unwrap();
}
