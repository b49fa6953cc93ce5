//! Who is believed about an attempt: the session that holds it, and nobody else.

use crate::support::{
    SKU,
    agent::{Agent, device, hello, success},
    blobs::MemBlobs,
    model, open, request, until, until_state,
};
use futures::StreamExt as _;
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, JobState, agent_message::Kind as Say, coordinator_message::Kind as Hear};
use std::sync::Arc;

fn lines(assign: &v1::Assign, offset_bytes: u64, text: &str) -> Say {
    Say::Log(v1::LogLines { lease: assign.lease.clone(), offset_bytes, data: text.into() })
}

async fn log_of(farm: &Farm, job: &str) -> String {
    let request = v1::ReadLogRequest { id: job.into(), ..v1::ReadLogRequest::default() };
    let chunks = farm.read_log(&Actor::local(), request).await.unwrap();
    let pieces: Vec<Vec<u8>> = chunks.map(|chunk| chunk.unwrap().data).collect().await;
    String::from_utf8(pieces.concat()).unwrap()
}

/// Says something and waits until the farm has read it: a question after it is answered.
async fn said(agent: &mut Agent, kind: Say) {
    agent.say(kind).await;
    let lease = v1::Lease { job: "nothing".into(), attempt: 1, device: "cpu0".into() };
    agent.say(Say::Heartbeat(v1::Heartbeat { leases: vec![lease], telemetry: Vec::new() })).await;
    loop {
        match agent.next().await {
            Some(Hear::LeaseLost(lost)) if lost.lease.as_ref().unwrap().job == "nothing" => return,
            Some(_) => {}
            None => panic!("the session of {} ended", agent.id),
        }
    }
}

#[tokio::test]
async fn nothing_is_believed_from_who_does_not_hold_the_lease() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut holder = Agent::usual(&farm, "a").await;
    let job = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let assign = holder.assigned().await;
    let lease = assign.lease.clone();
    said(&mut holder, lines(&assign, 0, "the holder's\n")).await;

    let mut stranger = Agent::connect(&farm, hello("b", vec![device("gpu0", "t4", "tensorrt 10.3")])).await;
    assert!(matches!(stranger.next().await, Some(Hear::Welcome(_))));
    let finished = success(&blobs, &assign);
    let plan_digest = finished.plan_digest.clone();
    for foreign in [
        lines(&assign, 13, "a stranger's\n"),
        Say::Started(v1::Started { lease: lease.clone() }),
        Say::Progress(v1::Progress { lease: lease.clone(), phase: "forged".into(), ..v1::Progress::default() }),
        Say::Built(v1::Built {
            lease: lease.clone(),
            plan_digest,
            plan_bytes: finished.plan_bytes,
            card_digest: finished.card_digest.clone(),
            builds: 1,
        }),
        Say::Finished(finished),
        Say::Heartbeat(v1::Heartbeat { leases: lease.iter().cloned().collect(), telemetry: Vec::new() }),
    ] {
        said(&mut stranger, foreign).await;
    }
    // A session that has not said who it is, and lines of attempts that nobody was given.
    let nobody = Agent::connect(&farm, hello("c", Vec::new())).await;
    nobody.say(lines(&assign, 13, "nobody's\n")).await;
    let later = v1::Assign { lease: Some(v1::Lease { attempt: 2, ..lease.clone().unwrap() }), ..assign.clone() };
    said(&mut holder, lines(&later, 0, "of a later attempt\n")).await;

    let seen = farm.get_job(&Actor::local(), &job.id).await.unwrap();
    assert_eq!((seen.state(), seen.phase.as_str(), seen.plan_digest.as_str()), (JobState::Leased, "", ""), "{seen:?}");
    assert_eq!(log_of(&farm, &job.id).await, "the holder's\n");

    // Its agent comes back on a new stream: that one is believed.
    let again = v1::Hello { leases: lease.into_iter().collect(), ..hello("a", vec![device("cpu0", SKU, "native 1")]) };
    let mut holder = Agent::connect(&farm, again).await;
    assert!(matches!(holder.next().await, Some(Hear::Welcome(welcome)) if welcome.resumed.len() == 1));
    said(&mut holder, lines(&assign, 0, "the holder's\nand more\n")).await;
    assert_eq!(log_of(&farm, &job.id).await, "the holder's\nand more\n");
    holder.succeed(&blobs, &assign).await;
    assert!(holder.acknowledged().await.accepted);
    until_state(&farm, &job.id, JobState::Succeeded).await;
}

#[tokio::test]
async fn one_stream_speaks_for_one_agent() {
    let farm = open(Arc::new(MemStore::new()), &MemBlobs::default()).await;
    let mut agent = Agent::usual(&farm, "a").await;
    agent.say(Say::Hello(hello("b", vec![device("cpu0", SKU, "native 1")]))).await;
    while agent.next().await.is_some() {}
    let online = || async {
        let devices = farm.list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await.unwrap().devices;
        devices.iter().all(|device| !device.online && device.agent == "host-a").then_some(())
    };
    until("nobody to be connected, and the second name unheard", online).await;
}
