//! The timing cache file: a header as seen on real ones, and behind it which layers were timed.

use super::{Stop, console::Console, scenario::Gpu, version::Version};
use planforge_types::Digest;
use std::{collections::BTreeSet, fs};

const MAGIC: &[u8; 4] = b"ptrt";
/// Bytes that the length in the header does not count.
const UNCOUNTED: usize = 20;
const FINGERPRINT_AT: usize = 46;
const ENTRIES_AT: usize = 104;

/// Layers that were timed before.
pub type Entries = BTreeSet<String>;

/// Reads the cache that a build was given; says what the tool says.
pub fn load(console: &Console, version: Version, gpu: &Gpu, path: &str) -> Result<Entries, Stop> {
    let Ok(bytes) = fs::read(path) else {
        let what = if version >= Version::new(10, 13, 0) { "cache" } else { "timing cache" };
        console.warning(&format!("Could not read {what} from: {path}. A new cache will be generated and written."));
        return Ok(Entries::new());
    };
    if version >= Version::new(10, 13, 0) {
        console.library(&format!("Loaded {} bytes of cache from file: {path}", bytes.len()));
    } else {
        console.library(&format!("Loaded {} bytes of timing cache from {path}", bytes.len()));
    }
    match decode(version, gpu, &bytes) {
        Some(entries) => Ok(entries),
        None if version < Version::new(10, 1, 0) => {
            console.error("TimingCache creation failed");
            Err(Stop::Failed)
        }
        None if version < Version::new(10, 10, 0) => {
            console.error("TimingCache creation failed");
            Ok(Entries::new())
        }
        None => {
            console.error(&format!("Failed to create ITimingCache from file {path}"));
            Ok(Entries::new())
        }
    }
}

/// Writes the cache in place, as the tool does.
pub fn save(console: &Console, version: Version, gpu: &Gpu, path: &str, entries: &Entries) {
    let bytes = encode(version, gpu, entries);
    if fs::write(path, &bytes).is_ok() {
        console.library(&format!("Saved {} bytes of timing cache to {path}", bytes.len()));
    }
}

fn fingerprint(version: Version, gpu: &Gpu) -> [u8; 16] {
    let text = format!("{} {:?} {version}", gpu.name, gpu.compute_capability);
    let mut out = [0; 16];
    out.copy_from_slice(&Digest::of(text.as_bytes()).as_raw()[..16]);
    out
}

pub fn encode(version: Version, gpu: &Gpu, entries: &Entries) -> Vec<u8> {
    let body = serde_json::to_vec(entries).expect("names are JSON");
    let mut bytes = vec![0; ENTRIES_AT];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..8].copy_from_slice(&version.serialization().to_le_bytes());
    let counted = (ENTRIES_AT + body.len() - UNCOUNTED) as u64;
    bytes[8..16].copy_from_slice(&counted.to_le_bytes());
    bytes[FINGERPRINT_AT..FINGERPRINT_AT + 16].copy_from_slice(&fingerprint(version, gpu));
    bytes[88..104].copy_from_slice(format!("{:016x}", version.code()).as_bytes());
    bytes.extend(body);
    bytes
}

/// `None`: damaged, or another device's where the version minds.
fn decode(version: Version, gpu: &Gpu, bytes: &[u8]) -> Option<Entries> {
    let counted = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    let whole = bytes.starts_with(MAGIC) && counted + UNCOUNTED as u64 == bytes.len() as u64;
    let same_build = *bytes.get(88..104)? == *format!("{:016x}", version.code()).as_bytes();
    let same_device = *bytes.get(FINGERPRINT_AT..FINGERPRINT_AT + 16)? == fingerprint(version, gpu);
    // From 10.1 the tool takes another device's cache without a word.
    if !whole || !same_build || (!same_device && version < Version::new(10, 1, 0)) {
        return None;
    }
    serde_json::from_slice(bytes.get(ENTRIES_AT..)?).ok()
}
