//! What was promised, held against the database, the bucket, and a watch that went on all the while.

use crate::world::World;
use planforge_s3_server::BUCKET;
use planforge_tests::eventually;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Holds what the farm promised against its database and its bucket.
pub fn check(world: &World, acknowledged: &BTreeSet<String>) {
    let rows = |sql: &str| -> Vec<Vec<String>> {
        let text = world.database.sql("farm", sql);
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    };
    // Every job ended exactly once, and every one that was acknowledged is there.
    let jobs: BTreeMap<String, String> =
        rows("SELECT id, state FROM jobs").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert!(acknowledged.iter().all(|id| jobs.contains_key(id)), "an acknowledged job is gone");
    let ended =
        "SELECT job, COUNT(*) FROM events WHERE what IN ('succeeded', 'failed', 'cancelled', 'skipped') GROUP BY job";
    let ends: BTreeMap<String, String> = rows(ended).into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert!(ends.values().all(|count| count == "1"), "a job ended twice: {ends:?}");
    assert!(jobs.keys().all(|id| ends.contains_key(id)), "a job's end has no event");
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    jobs.values().for_each(|state| *states.entry(state).or_default() += 1);
    println!("{} jobs: {states:?}", jobs.len());
    for why in rows("SELECT doc::jsonb -> 'failure' ->> 'message' FROM jobs WHERE state = 'failed'") {
        println!("failed: {}", why.join("|"));
    }
    assert!(states.get("succeeded").is_some_and(|count| *count > 0), "nothing was built");
    let failed = "SELECT id, doc::jsonb -> 'failure' FROM jobs WHERE state = 'failed' \
                  AND doc NOT LIKE '%infrastructure%' AND doc NOT LIKE '%\"lacked\":\"disk\"%'";
    assert_eq!(rows(failed), Vec::<Vec<String>>::new(), "only lost agents, stores and full disks fail jobs here");
    // An upload that is not there is begun anew, and fails nothing.
    let unknown = "SELECT id FROM jobs WHERE doc LIKE '%/v1/uploads/%does not exist%'";
    assert_eq!(rows(unknown), Vec::<Vec<String>>::new(), "an attempt failed for an upload that another leader took");
    // One artifact per key; its bytes are there, and no object has other bytes than its name says.
    let twice = "SELECT engine_key, COUNT(*) FROM engines GROUP BY engine_key HAVING COUNT(*) > 1";
    assert_eq!(rows(twice), Vec::<Vec<String>>::new(), "a key has two artifacts");
    let mut objects = BTreeSet::new();
    for key in world.s3.keys(BUCKET) {
        if let Some(hex) = key.strip_prefix("blobs/sha256/").and_then(|rest| rest.split('/').nth(1)) {
            let bytes = fs::read(world.s3.object(BUCKET, &key)).expect("an object");
            assert_eq!(hex::encode(Sha256::digest(&bytes)), hex, "{key}");
            objects.insert(hex.to_owned());
        }
    }
    let plans = rows("SELECT DISTINCT plan_digest FROM engines");
    assert!(plans.iter().all(|row| objects.contains(&row[0])), "a plan is gone");
    // Events count from one without a gap.
    assert_eq!(rows("SELECT MIN(seq) = 1, MAX(seq) = COUNT(*) FROM events"), [["t", "t"]], "a gap in the events");
    // No attempt was given twice, and no device to two jobs at a time. A lease that ran out may be revived until the job is
    // given to somebody else.
    let mut held: BTreeMap<String, String> = BTreeMap::new();
    let mut leases = BTreeSet::new();
    let events = rows("SELECT seq, job, attempt, what, detail FROM events WHERE what <> 'phase' ORDER BY seq");
    for row in &events {
        let [seq, job, attempt, what, detail] = &row[..] else { continue };
        if matches!(what.as_str(), "leased" | "requeued" | "succeeded" | "failed" | "cancelled") {
            held.retain(|_, holder| holder != job);
        }
        if what == "leased" {
            assert!(leases.insert((job, attempt)), "event {seq}: attempt {attempt} of {job} is given again");
            let before = held.insert(detail.clone(), job.clone());
            assert!(before.is_none(), "event {seq}: {detail} is held for {before:?} already: {events:#?}");
        }
    }
    println!("{} leases, {} objects", leases.len(), objects.len());
}

/// Who watched all the while saw every event that stands in the database, once and in order.
pub fn check_watch(world: &World, watched: &Path) {
    let stored = world.number("SELECT MAX(seq) FROM events").expect("the database answers");
    eventually("the watch has seen all of it", || {
        let lines = fs::read_to_string(watched).map_err(|error| error.to_string())?;
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let seen: Vec<u64> =
            events.filter(|event| event["what"] != "progress").filter_map(|e| e["seq"].as_u64()).collect();
        match seen.iter().copied().eq(1..=stored) {
            true => Ok(()),
            false => {
                let missing: Vec<u64> = (1..=stored).filter(|seq| !seen.contains(seq)).collect();
                Err(format!("{} of {stored} events, without {missing:?}", seen.len()))
            }
        }
    });
    println!("{stored} events");
}
