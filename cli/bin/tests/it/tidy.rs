//! What builds on one machine leave behind: the farm in the data folder is tidied, its agent's cache bounded.

use crate::{
    farm::digits,
    support::{World, transcript},
};
use std::{fs, path::Path};

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_farm_that_only_builds_is_tidied_and_its_agents_cache_is_bounded() {
    let world = World::new();
    let model = digits();
    let build = |threads: &str, cache: &str| {
        let mut command = world.command(&["build", model.to_str().unwrap(), "--data", "data", "--threads", threads]);
        let output = command.env("PLANFORGE_AGENT_CACHE", cache).output().unwrap();
        assert!(output.status.success(), "{}", transcript(world.root(), &output));
    };
    build("1", "8");
    let (mark, models) = (world.path("data/tidied"), world.path("data/agent/models"));
    assert_eq!(files(&models), 1);
    let first = fs::read_to_string(&mark).expect("a build tidies");
    build("2", "0");
    assert_eq!((files(&models), files(&world.path("data/agent/caches"))), (0, 0), "no room, nothing kept");
    assert_eq!(fs::read_to_string(&mark).unwrap(), first, "once a day");
    fs::write(&mark, "1").unwrap();
    // Whatever hosts the farm for a moment will do.
    assert!(world.run(&["jobs", "--data", "data"]).status.success());
    assert_ne!(fs::read_to_string(&mark).unwrap(), "1");

    let output = world.run(&["build", model.to_str().unwrap(), "--data", "data", "--agent-cache", "much"]);
    assert_eq!(output.status.code(), Some(2), "{}", transcript(world.root(), &output));
}
