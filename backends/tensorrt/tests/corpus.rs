//! The fuzzing corpora of the readers, replayed: nothing panics, and what is kept stays within its bounds.

use planforge_tensorrt::fuzzing;
use std::{fs, path::Path};

/// Runs `target` over every file of its committed corpus.
fn replay(corpus: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(corpus);
    let mut files = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is committed") {
        target(&fs::read(entry.expect("an entry can be read").path()).expect("a file can be read"));
        files += 1;
    }
    assert!(files >= 8, "{} has only {files} files", folder.display());
}

#[test]
fn logs() {
    replay("trtexec_log", fuzzing::log);
}

#[test]
fn exports() {
    replay("trtexec_exports", fuzzing::exports);
}

#[test]
fn headers() {
    replay("trtexec_headers", fuzzing::headers);
}
