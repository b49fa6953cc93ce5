//! Pins: who may, for how long, of what, and how many.

use crate::{
    declared_store,
    support::{self, TestClock, actor, agent::Agent, blobs::MemBlobs, model, request},
};
use planforge_coordinator::{
    auth::Actor,
    core::Change,
    farm::{Farm, FarmConfig},
    store::{MemStore, SqliteStore, Store},
};
use planforge_proto::{ErrorCode, v1};
use std::sync::{Arc, atomic::Ordering};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const DAY_S: u64 = DAY_MS / 1_000;

struct World {
    farm: Farm,
    store: Arc<dyn Store>,
    clock: Arc<TestClock>,
    /// The plan of red's engine.
    plan: String,
    red: Actor,
    _agent: Agent,
}

impl World {
    async fn on(store: Arc<dyn Store>) -> Self {
        let (blobs, clock) = (MemBlobs::default(), Arc::new(TestClock::default()));
        clock.0.store(1_000_000, Ordering::SeqCst);
        let config = FarmConfig { seed: Some(7), ..FarmConfig::default() };
        let farm = Farm::open(store.clone(), Arc::new(blobs.clone()), config, clock.clone()).await.unwrap();
        let red = actor("ci", "submit", Some("red"));
        let mut agent = Agent::usual(&farm, "a").await;
        support::show(&farm, &red, &model(&blobs, "m")).await;
        farm.submit(&red, request(model(&blobs, "m"))).await.unwrap();
        let assign = agent.assigned().await;
        agent.succeed(&blobs, &assign).await;
        assert!(agent.acknowledged().await.accepted);
        let plan =
            farm.list_engines(&red, v1::ListEnginesRequest::default()).await.unwrap().engines.remove(0).plan_digest;
        Self { farm, store, clock, plan, red, _agent: agent }
    }

    fn later(&self, days: u64) {
        self.clock.0.fetch_add(days * DAY_MS, Ordering::SeqCst);
    }

    fn ask(&self, days: u64) -> v1::PinEnginesRequest {
        v1::PinEnginesRequest {
            plan_digests: vec![self.plan.clone()],
            reason: "engines.lock of shop".into(),
            ttl_s: days * DAY_S,
            ..Default::default()
        }
    }

    async fn pins(&self, who: &Actor) -> Vec<v1::Pin> {
        self.farm.list_pins(who, v1::ListPinsRequest::default()).await.unwrap().pins
    }
}

#[tokio::test]
async fn a_pin_lasts_ninety_days_from_its_last_renewal_and_is_gone_then() {
    let world = World::on(Arc::new(MemStore::new())).await;
    let begun_ms = world.clock.0.load(Ordering::SeqCst);
    let reply = world.farm.pin_engines(&world.red, world.ask(0)).await.unwrap();
    let pin = &reply.pins[0];
    assert_eq!((pin.owner.as_str(), pin.project.as_str(), pin.model_name.as_str()), ("ci", "red", "m"));
    assert_eq!((pin.created_ms, pin.expires_ms), (begun_ms, begun_ms + 90 * DAY_MS));
    assert_eq!(world.pins(&world.red).await, reply.pins);
    let is_pinned = async || {
        let now_ms = world.clock.0.load(Ordering::SeqCst);
        world.store.is_pinned(world.plan.parse().unwrap(), now_ms).await.unwrap()
    };
    // Hours later there is nothing worth writing; a month later it lasts a month longer; asking for less takes nothing.
    world.clock.0.fetch_add(DAY_MS / 2, Ordering::SeqCst);
    assert_eq!(world.farm.pin_engines(&world.red, world.ask(0)).await.unwrap().pins, reply.pins);
    world.later(30);
    let renewed = world.farm.pin_engines(&world.red, world.ask(0)).await.unwrap().pins.remove(0);
    assert_eq!(renewed.expires_ms, begun_ms + DAY_MS / 2 + 120 * DAY_MS);
    assert_eq!(renewed.created_ms, begun_ms);
    let shorter = world.farm.pin_engines(&world.red, world.ask(1)).await.unwrap().pins.remove(0);
    assert_eq!(shorter.expires_ms, renewed.expires_ms);
    world.later(89);
    assert!(is_pinned().await);
    world.later(1);
    assert!(!is_pinned().await && world.pins(&world.red).await.is_empty());
    let anew = world.farm.pin_engines(&world.red, world.ask(7)).await.unwrap().pins.remove(0);
    assert_eq!(anew.expires_ms - anew.created_ms, 7 * DAY_MS);
    assert!(is_pinned().await);
    assert_eq!(
        world.farm.pin_engines(&world.red, world.ask(4_000)).await.unwrap_err().code,
        ErrorCode::InvalidArgument
    );
}

#[tokio::test]
async fn a_pin_is_its_owners_and_administrators_take_away_others() {
    let world = World::on(Arc::new(MemStore::new())).await;
    let (farm, admin) = (&world.farm, actor("boss", "admin", Some("red")));
    let (blue, reader) = (actor("b", "submit", Some("blue")), actor("r", "read", Some("red")));
    farm.pin_engines(&world.red, world.ask(0)).await.unwrap();
    // What blue does not have it cannot pin, whoever else has it.
    assert_eq!(farm.pin_engines(&blue, world.ask(0)).await.unwrap_err().code, ErrorCode::NotFound);
    assert!(world.pins(&blue).await.is_empty());
    assert_eq!(farm.pin_engines(&reader, world.ask(0)).await.unwrap_err().code, ErrorCode::PermissionDenied);
    assert_eq!(world.pins(&reader).await.len(), 1, "reading is looking");
    // Of several plans those that are there are pinned, and the others named.
    let absent = "7".repeat(64);
    let both = v1::PinEnginesRequest { plan_digests: vec![world.plan.clone(), absent.clone()], ..world.ask(0) };
    let reply = farm.pin_engines(&admin, both).await.unwrap();
    assert_eq!((reply.pins.len(), reply.unknown), (1, vec![absent]));
    let pins = world.pins(&admin).await;
    assert_eq!(pins.iter().map(|pin| pin.owner.as_str()).collect::<Vec<_>>(), ["ci", "boss"], "of one time by name");

    let unpin = |owner: &str| v1::UnpinEnginesRequest {
        plan_digests: vec![world.plan.clone()],
        owner: owner.into(),
        ..Default::default()
    };
    let refused = farm.unpin_engines(&world.red, unpin("boss")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    assert_eq!(farm.unpin_engines(&blue, unpin("")).await.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(farm.unpin_engines(&admin, unpin("ci")).await.unwrap().pins[0].owner, "ci");
    assert_eq!(farm.unpin_engines(&world.red, unpin("")).await.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(farm.unpin_engines(&admin, unpin("")).await.unwrap().pins.len(), 1);
    assert!(world.pins(&admin).await.is_empty());
    for wrong in [vec![], vec!["x".to_owned()], vec!["0".repeat(64); 2_000]] {
        let ask = v1::PinEnginesRequest { plan_digests: wrong, ..Default::default() };
        assert_eq!(farm.pin_engines(&world.red, ask).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn a_project_has_so_many_pins_and_no_more_and_lists_come_in_pages() {
    let world = World::on(Arc::new(MemStore::new())).await;
    let epoch = world.farm.server_info(&Actor::local()).epoch;
    let end_ms = world.clock.0.load(Ordering::SeqCst) + DAY_MS;
    let put = |number: u64| {
        let pin = declared_store::pin(&format!("p{number}"), "red", "some.body", (number / 7, end_ms));
        Change::Pin(Box::new(pin))
    };
    world.store.commit(epoch, (0..9_999).map(put).collect()).await.unwrap();
    world.farm.pin_engines(&world.red, world.ask(0)).await.unwrap();
    world.farm.pin_engines(&world.red, world.ask(300)).await.unwrap();
    let boss = actor("boss", "admin", Some("red"));
    let full = world.farm.pin_engines(&boss, world.ask(0)).await.unwrap_err();
    assert_eq!(full.code, ErrorCode::ResourceExhausted, "{full}");
    // Every pin once, in order, over all pages.
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let ask = v1::ListPinsRequest { limit: 1_000, cursor, ..Default::default() };
        let reply = world.farm.list_pins(&boss, ask).await.unwrap();
        all.extend(reply.pins.into_iter().map(|pin| (pin.created_ms, pin.plan_digest)));
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(all.len(), 10_000);
    assert!(all.windows(2).all(|pair| pair[0] > pair[1]));
    for cursor in ["x", "1.2.3", &format!("1.{}.zz.00", "0".repeat(64))] {
        let ask = v1::ListPinsRequest { cursor: cursor.into(), ..Default::default() };
        assert_eq!(world.farm.list_pins(&boss, ask).await.unwrap_err().code, ErrorCode::InvalidArgument, "{cursor}");
    }
    // What has expired leaves room.
    world.later(2);
    assert_eq!(world.farm.pin_engines(&boss, world.ask(0)).await.unwrap().pins.len(), 1);
    assert_eq!(world.pins(&boss).await.len(), 2);
}

#[tokio::test]
async fn pins_outlive_the_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let world = World::on(Arc::new(SqliteStore::open(&file).await.unwrap())).await;
    let pinned = world.farm.pin_engines(&world.red, world.ask(0)).await.unwrap().pins;
    world.farm.close().await;
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file).await.unwrap());
    let clock = world.clock.clone();
    let farm = Farm::open(store, Arc::new(MemBlobs::default()), FarmConfig::default(), clock).await.unwrap();
    assert_eq!(farm.list_pins(&world.red, v1::ListPinsRequest::default()).await.unwrap().pins, pinned);
}
