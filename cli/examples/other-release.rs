//! The whole program as another release, for tests of releases that work together: what it says of itself, and works with,
//! is what `OTHER_RELEASE` says: release, oldest release, oldest and newest protocol, such as `0.2.0 0.1 2 4`. Protocols 0
//! to 0 are of before they were numbered. Nothing of the product leads here.

use planforge_proto::protocol::{Spoken, speak_as};
use std::{env, process::ExitCode};

const WORDS: &str = "OTHER_RELEASE is RELEASE OLDEST-RELEASE OLDEST-PROTOCOL NEWEST-PROTOCOL, such as 0.2.0 0.1 2 4";

fn read(text: &str) -> Option<Spoken> {
    let words: Vec<&str> = text.split(' ').collect();
    let [release, oldest_release, oldest, newest] = words[..] else { return None };
    let (major, minor) = oldest_release.split_once('.')?;
    Some(Spoken {
        release: release.to_owned().leak(),
        oldest_release: (major.parse().ok()?, minor.parse().ok()?),
        oldest: oldest.parse().ok()?,
        newest: newest.parse().ok()?,
    })
}

fn main() -> ExitCode {
    // A worker speaks to nobody, and inherits nothing.
    if let Ok(text) = env::var("OTHER_RELEASE") {
        assert!(read(&text).is_some_and(speak_as), "{WORDS}");
    }
    planforge_cli::main()
}
