//! What repositories declare: replaced as a whole, of one project, within bounds.

use crate::support::{SKU, actor, blobs::MemBlobs};
use planforge_coordinator::{
    auth::Actor,
    farm::{Farm, FarmConfig, SystemClock},
    store::{MemStore, SqliteStore, Store},
};
use planforge_proto::{ErrorCode, v1};
use planforge_types::Digest;
use std::sync::Arc;

async fn open(store: Arc<dyn Store>) -> Farm {
    let clock = Arc::new(SystemClock::new());
    Farm::open(store, Arc::new(MemBlobs::default()), FarmConfig::default(), clock).await.unwrap()
}

fn cell(model: &str, plan: &str) -> v1::DeclaredCell {
    v1::DeclaredCell {
        model: model.into(),
        model_digest: Digest::of(model.as_bytes()).to_string(),
        sku: SKU.into(),
        target: "cpu".into(),
        spec: "fast".into(),
        plan_digest: if plan.is_empty() { String::new() } else { Digest::of(plan.as_bytes()).to_string() },
    }
}

fn declare(name: &str, cells: Vec<v1::DeclaredCell>) -> v1::DeclareEnginesRequest {
    let fast = v1::DeclaredSpec {
        name: "fast".into(),
        spec_json: r#"{"precision":"fp16"}"#.into(),
        toolchain: "tensorrt>=10.3,<11".into(),
    };
    v1::DeclareEnginesRequest { project: String::new(), name: name.into(), specs: vec![fast], cells }
}

async fn listed(farm: &Farm, who: &Actor) -> Vec<v1::Declaration> {
    farm.list_declarations(who, v1::ListDeclarationsRequest::default()).await.unwrap().declarations
}

#[tokio::test]
async fn a_repository_replaces_what_it_declared_and_is_forgotten_without_cells() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let farm = open(Arc::new(SqliteStore::open(&file).await.unwrap())).await;
    let (red, blue) = (actor("ci", "submit", Some("red")), actor("b", "submit", Some("blue")));
    let reader = actor("r", "read", Some("red"));
    farm.declare_engines(&red, declare("shop", vec![cell("a", ""), cell("b", "plan")])).await.unwrap();
    farm.declare_engines(&red, declare("shop", vec![cell("b", ""), cell("c", "plan")])).await.unwrap();
    farm.declare_engines(&blue, declare("shop", vec![cell("z", "")])).await.unwrap();
    let found = listed(&farm, &reader).await;
    let [shop] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(shop.cells, [cell("b", ""), cell("c", "plan")]);
    assert_eq!((shop.name.as_str(), shop.project.as_str(), shop.actor.as_str()), ("shop", "red", "ci"));
    assert_eq!(shop.specs[0].toolchain, "tensorrt>=10.3,<11");
    assert!(shop.specs[0].spec_json.contains("fp16"), "{shop:?}");
    assert_eq!(listed(&farm, &Actor::local()).await.len(), 2, "who belongs to no project sees all");
    farm.close().await;

    let farm = open(Arc::new(SqliteStore::open(&file).await.unwrap())).await;
    assert_eq!(listed(&farm, &reader).await, found, "also after a restart");
    let gone = farm.declare_engines(&reader, declare("shop", Vec::new())).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::PermissionDenied);
    farm.declare_engines(&red, declare("shop", Vec::new())).await.unwrap();
    assert!(listed(&farm, &red).await.is_empty());
    assert_eq!(listed(&farm, &blue).await.len(), 1, "another project's of the same name stays");
    let again = farm.declare_engines(&red, declare("shop", Vec::new())).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn what_makes_no_sense_or_is_too_much_is_refused() {
    let farm = open(Arc::new(MemStore::new())).await;
    let red = actor("ci", "submit", Some("red"));
    let with = |change: &dyn Fn(&mut v1::DeclareEnginesRequest)| {
        let mut request = declare("shop", vec![cell("a", "")]);
        change(&mut request);
        request
    };
    let long = |count: usize| "x".repeat(count);
    let wrong: [(&str, v1::DeclareEnginesRequest); 10] = [
        ("no name", declare("", vec![cell("a", "")])),
        ("a name for a path", declare("../shop", vec![cell("a", "")])),
        ("a long name", declare(&long(65), vec![cell("a", "")])),
        ("a spec of no name", with(&|request| request.cells[0].spec = "other".into())),
        ("a cell twice", with(&|request| request.cells.push(cell("a", "plan")))),
        ("a spec twice", with(&|request| request.specs.push(request.specs[0].clone()))),
        ("no digest", with(&|request| request.cells[0].model_digest = "x".into())),
        ("no device kind", with(&|request| request.cells[0].sku = "T 4".into())),
        ("no range", with(&|request| request.specs[0].toolchain = ">=10".into())),
        ("no spec", with(&|request| request.specs[0].spec_json = r#"{"speed":"fast"}"#.into())),
    ];
    for (what, request) in wrong {
        let error = farm.declare_engines(&red, request).await.expect_err(what);
        assert_eq!(error.code, ErrorCode::InvalidArgument, "{what}: {error}");
    }
    let many = |count: usize| (0..count).map(|number| cell(&format!("m{number}"), "")).collect();
    assert!(farm.declare_engines(&red, declare("shop", many(10_001))).await.is_err());
    let wide = (0..10_000).map(|number| cell(&format!("{number}{}", long(200)), "")).collect();
    let error = farm.declare_engines(&red, declare("shop", wide)).await.unwrap_err();
    assert!(error.message.contains("bytes"), "{error}");
    assert!(listed(&farm, &red).await.is_empty());

    // So many repositories and no more; those that are there go on saying what they declare.
    for number in 0..50 {
        farm.declare_engines(&red, declare(&format!("shop{number}"), vec![cell("a", "")])).await.unwrap();
    }
    let full = farm.declare_engines(&red, declare("more", vec![cell("a", "")])).await.unwrap_err();
    assert_eq!(full.code, ErrorCode::ResourceExhausted);
    farm.declare_engines(&red, declare("shop7", vec![cell("b", "")])).await.unwrap();
    farm.declare_engines(&actor("b", "submit", Some("blue")), declare("more", vec![cell("a", "")])).await.unwrap();
    // Every one once, over all pages, however many are asked for at once.
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let ask = v1::ListDeclarationsRequest { limit: 1_000, cursor, ..Default::default() };
        let reply = farm.list_declarations(&red, ask).await.unwrap();
        assert!(reply.declarations.len() <= 8, "each may be large");
        names.extend(reply.declarations.into_iter().map(|declaration| declaration.name));
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 50);
    let one = v1::ListDeclarationsRequest { name: "shop7".into(), ..Default::default() };
    let one = farm.list_declarations(&red, one).await.unwrap().declarations;
    assert_eq!(one[0].cells, [cell("b", "")]);
}
