//! The tactic cache: what was timed on devices of one class with one set of libraries, and what was compiled for it.
//!
//! A JSON file, this build's own copy, read before a build and replaced by rename after it. One that cannot be read is an
//! empty one: it only saves time. The same inputs and the same cache give the same plan, byte for byte.

use crate::{
    tune::{Streams, Timed, Times},
    versions::{CUDA_REVISION, Versions},
};
use planforge_kernels_cuda::nvrtc::Arch;
use planforge_types::{Digest, durable};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Largest cache file that is read; the farm keeps none that is larger.
const CACHE_MAX_BYTES: u64 = planforge_types::order::TUNING_CACHE_MAX_BYTES;
/// Most machine code that is kept, in bytes; what does not fit is compiled again.
const CODE_MAX_BYTES: usize = 16 << 20;
/// Candidates kept per step: what an inspection shows. More say nothing for later builds.
const KEPT_CANDIDATES: usize = 6;

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// By what must be the same for a time to mean anything; see [`TacticCache::open`].
    scopes: BTreeMap<Digest, Times>,
    /// cuDNN's own plans, by digests that name its version.
    #[serde(default)]
    library_plans: BTreeMap<String, String>,
    /// Machine code of kernels that engines use, in hexadecimal, by scope and by digest of the source.
    #[serde(default)]
    code: BTreeMap<Digest, BTreeMap<Digest, String>>,
    /// By scope: which streams the steps of a program run on.
    #[serde(default)]
    streams: BTreeMap<Digest, Streams>,
    /// What was compiled for one build elsewhere (see `ahead`), by architecture and NVRTC and by digest of the source. It
    /// is that build's alone: what it uses of it becomes `code`, the rest is kept no longer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prepared: BTreeMap<Digest, BTreeMap<Digest, String>>,
    /// Plans that cuDNN made elsewhere for that build, likewise; their keys name its version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prepared_plans: BTreeMap<String, String>,
}

/// What was compiled ahead for one build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// Machine code by digest of its source.
    pub code: BTreeMap<Digest, Vec<u8>>,
    /// cuDNN's plans by their keys.
    pub plans: BTreeMap<String, String>,
}

/// What decides machine code beside its source.
fn prepared_scope(arch: Arch, nvrtc: &str) -> Digest {
    Digest::of(format!("planforge-prepared-v1 {arch} nvrtc {nvrtc}").as_bytes())
}

/// Writes what was compiled ahead, for a build to join with its cache.
pub fn write_prepared(file: &Path, arch: Arch, nvrtc: &str, prepared: Prepared) -> io::Result<()> {
    let code = prepared.code.iter().map(|(source, code)| (*source, text_of(code))).collect();
    let mut kept = Kept {
        prepared: BTreeMap::from([(prepared_scope(arch, nvrtc), code)]),
        prepared_plans: prepared.plans,
        ..Kept::default()
    };
    kept.write(file)
}

/// Times known for one class of device, one set of libraries and one way to search.
#[derive(Debug)]
pub struct TacticCache {
    file: Option<PathBuf>,
    kept: Kept,
    scope: Digest,
}

impl TacticCache {
    /// Opens the cache in `file`, which need not exist yet; `None` keeps nothing.
    pub fn open(file: Option<&Path>, device_class: Digest, versions: &Versions, level: u8) -> Self {
        let same = (CUDA_REVISION, device_class, &versions.cudnn, &versions.cublaslt, &versions.nvrtc, level);
        let scope = Digest::of(&serde_json::to_vec(&same).unwrap_or_default());
        Self { file: file.map(Path::to_owned), kept: file.map(read).unwrap_or_default(), scope }
    }

    /// What is known, fastest first.
    pub fn times(&self) -> Times {
        self.kept.scopes.get(&self.scope).cloned().unwrap_or_default()
    }

    pub fn streams(&self) -> Streams {
        self.kept.streams.get(&self.scope).cloned().unwrap_or_default()
    }

    pub fn library_plans(&self) -> impl Iterator<Item = (String, String)> {
        self.kept.library_plans.iter().map(|(key, text)| (key.clone(), text.clone()))
    }

    /// Machine code by digest of its source; text that is none is as good as absent.
    pub fn code(&self) -> impl Iterator<Item = (Digest, Vec<u8>)> {
        let code = self.kept.code.get(&self.scope).into_iter().flatten();
        code.filter_map(|(source, text)| Some((*source, bytes_of(text)?)))
    }

    /// What was compiled ahead for such a device.
    pub fn prepared(&self, arch: Arch, nvrtc: &str) -> Prepared {
        let code = self.kept.prepared.get(&prepared_scope(arch, nvrtc)).into_iter().flatten();
        let code = code.filter_map(|(source, text)| Some((*source, bytes_of(text)?))).collect();
        Prepared { code, plans: self.kept.prepared_plans.clone() }
    }

    /// Keeps the machine code that an engine uses; of other scopes, and beyond a bound, it goes.
    pub fn keep_code(&mut self, code: &BTreeMap<Digest, Vec<u8>>) {
        self.keep_code_within(code, CODE_MAX_BYTES);
    }

    fn keep_code_within(&mut self, code: &BTreeMap<Digest, Vec<u8>>, max_bytes: usize) {
        let mut kept = self.kept.code.remove(&self.scope).unwrap_or_default();
        self.kept.code.clear();
        let mut bytes: usize = code.values().map(Vec::len).sum();
        kept.retain(|source, text| {
            bytes += if code.contains_key(source) { 0 } else { text.len() / 2 };
            bytes <= max_bytes
        });
        kept.extend(code.iter().map(|(source, code)| (*source, text_of(code))));
        self.kept.code.insert(self.scope, kept);
    }

    /// Takes over what a search learned.
    pub fn learn(&mut self, times: &Times, streams: Streams, library_plans: BTreeMap<String, String>) {
        self.kept.streams.entry(self.scope).or_default().extend(streams);
        let known = self.kept.scopes.entry(self.scope).or_default();
        for (signature, timed) in times {
            known.insert(signature.clone(), trimmed(timed));
        }
        self.kept.library_plans.extend(library_plans);
    }

    pub fn save(&mut self) -> io::Result<()> {
        self.kept.prepared.clear();
        self.kept.prepared_plans.clear();
        self.file.as_deref().map_or(Ok(()), |file| self.kept.write(file))
    }
}

/// Adds to the cache in `into` what the one in `from` knows beyond it. One that cannot be read knows nothing.
pub fn join(into: &Path, from: &Path) -> io::Result<()> {
    let mut kept = read(into);
    kept.add(read(from));
    kept.write(into)
}

impl Kept {
    fn add(&mut self, other: Self) {
        for (scope, times) in other.scopes {
            add(self.scopes.entry(scope).or_default(), times);
        }
        for (scope, streams) in other.streams {
            add(self.streams.entry(scope).or_default(), streams);
        }
        add(&mut self.library_plans, other.library_plans);
        add(&mut self.prepared_plans, other.prepared_plans);
        for (scope, code) in other.prepared {
            add(self.prepared.entry(scope).or_default(), code);
        }
        // What both use together is bounded as what one keeps.
        let mut bytes: usize = self.code.values().flat_map(BTreeMap::values).map(|text| text.len() / 2).sum();
        for (scope, code) in other.code {
            let own = self.code.entry(scope).or_default();
            for (source, text) in code {
                if !own.contains_key(&source) && bytes + text.len() / 2 <= CODE_MAX_BYTES {
                    bytes += text.len() / 2;
                    own.insert(source, text);
                }
            }
        }
    }

    /// Writes what is known. What would not be read again is not written; machine code goes first.
    fn write(&mut self, file: &Path) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(self).map_err(io::Error::other)?;
        if bytes.len() as u64 > CACHE_MAX_BYTES {
            self.code.clear();
            self.prepared.clear();
            self.prepared_plans.clear();
            bytes = serde_json::to_vec(self).map_err(io::Error::other)?;
        }
        if bytes.len() as u64 > CACHE_MAX_BYTES {
            return Err(io::Error::other(format!("{} bytes are more than {CACHE_MAX_BYTES}", bytes.len())));
        }
        durable::write_cache(file, &bytes)
    }
}

/// Adds what is new; what is known stays.
fn add<K: Ord, V>(known: &mut BTreeMap<K, V>, others: BTreeMap<K, V>) {
    for (key, value) in others {
        known.entry(key).or_insert(value);
    }
}

/// The fastest few of a step's candidates.
pub fn trimmed(timed: &[Timed]) -> Vec<Timed> {
    timed.iter().take(KEPT_CANDIDATES).cloned().collect()
}

fn text_of(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)] as char).collect()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    let whole = pairs.remainder().is_empty();
    whole.then(|| pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect())?
}

fn read(file: &Path) -> Kept {
    let fits = fs::metadata(file).is_ok_and(|facts| facts.len() <= CACHE_MAX_BYTES);
    let bytes = if fits { fs::read(file).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        if !bytes.is_empty() {
            tracing::warn!(file = %file.display(), %error, "the tactic cache cannot be read and is begun anew");
        }
        Kept::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{program::Tactic, source::Source};

    #[test]
    fn code_beyond_the_bound_goes_and_what_is_used_stays() {
        let versions = Versions::default();
        let mut cache = TacticCache::open(None, Digest::of(b"class"), &versions, 3);
        let code = |name: &[u8], bytes: usize| BTreeMap::from([(Digest::of(name), vec![1; bytes])]);
        cache.keep_code_within(&code(b"old", 50), 100);
        cache.keep_code_within(&code(b"other", 7), 100);
        assert_eq!(cache.code().count(), 2);
        cache.keep_code_within(&code(b"new", 93), 100);
        let kept: Vec<Digest> = cache.code().map(|(source, _)| source).collect();
        assert!(kept.contains(&Digest::of(b"new")) && !kept.contains(&Digest::of(b"old")), "{kept:?}");
        assert_eq!((bytes_of("0g"), bytes_of("abc"), bytes_of("00ff")), (None, None, Some(vec![0, 255])));
    }

    fn timed(us: f64) -> Timed {
        let source = Source { name: "k".into(), text: "text".into() };
        Timed {
            tactic: Tactic::Kernel { source: 3, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 },
            us,
            source: Some(source),
        }
    }

    #[test]
    fn what_was_prepared_is_given_to_one_build_and_kept_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let (own, prepared) = (folder.path().join("own"), folder.path().join("prepared"));
        let (here, other) = (Arch::of_device(9, 0), Arch::of_device(8, 0));
        let code = BTreeMap::from([(Digest::of(b"source"), vec![7, 8])]);
        let ahead = Prepared { code, plans: BTreeMap::from([("key".to_owned(), "{}".to_owned())]) };
        write_prepared(&prepared, here, "12.9", ahead.clone()).unwrap();
        join(&own, &prepared).unwrap();
        let versions = Versions::default();
        let open = || TacticCache::open(Some(&own), Digest::of(b"class"), &versions, 3);
        let mut cache = open();
        assert_eq!(cache.prepared(here, "12.9"), ahead);
        assert_eq!(cache.prepared(other, "12.9").code.len() + cache.prepared(here, "13.0").code.len(), 0);
        assert!(cache.times().is_empty() && cache.code().count() == 0, "it is no experience");
        assert_eq!(cache.library_plans().count(), 0, "nor is this");
        cache.save().unwrap();
        assert_eq!(open().prepared(here, "12.9"), Prepared::default());
        join(&prepared, &own).unwrap();
        assert!(fs::read_to_string(&prepared).unwrap().contains("prepared"), "what is joined with it loses nothing");
    }

    #[test]
    fn two_caches_are_joined_and_the_first_keeps_its_word() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let versions = Versions::default();
        let open = |file: &Path| TacticCache::open(Some(file), Digest::of(b"class"), &versions, 3);
        let learnt = |file: &Path, steps: &[(&str, f64)], source: &[u8]| {
            let mut cache = open(file);
            let times = steps.iter().map(|(step, us)| ((*step).to_owned(), vec![timed(*us)])).collect();
            let streams = Streams::from([(Digest::of(source), vec![0, 1])]);
            cache.learn(&times, streams, BTreeMap::from([(format!("{source:?}"), "{}".to_owned())]));
            cache.keep_code(&BTreeMap::from([(Digest::of(source), vec![7])]));
            cache.save().unwrap();
        };
        learnt(&one, &[("both", 1.0), ("one", 2.0)], b"a");
        learnt(&other, &[("both", 9.0), ("other", 3.0)], b"b");
        join(&one, &other).unwrap();
        let joined = open(&one);
        let us: Vec<(String, f64)> = joined.times().into_iter().map(|(step, timed)| (step, timed[0].us)).collect();
        assert_eq!(us, [("both".into(), 1.0), ("one".into(), 2.0), ("other".into(), 3.0)]);
        assert_eq!((joined.code().count(), joined.streams().len(), joined.library_plans().count()), (2, 2, 2));
        let whole = fs::read(&one).unwrap();
        fs::write(&other, b"{").unwrap();
        join(&one, &other).unwrap();
        assert_eq!(fs::read(&one).unwrap(), whole, "what cannot be read adds nothing");
    }

    #[test]
    fn what_was_learned_is_known_in_its_scope_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cache");
        let versions = Versions { cudnn: "9.19.0".into(), ..Versions::default() };
        let open = |versions: &Versions, level| TacticCache::open(Some(&file), Digest::of(b"class"), versions, level);
        let mut cache = open(&versions, 3);
        assert!(cache.times().is_empty());
        let all = Times::from([("step".to_owned(), (0..9).map(|us| timed(us.into())).collect())]);
        let streams = Streams::from([(Digest::of(b"program"), vec![0, 1, 0])]);
        cache.learn(&all, streams.clone(), BTreeMap::from([("a".to_owned(), "{}".to_owned())]));
        let code = BTreeMap::from([(Digest::of(b"source"), vec![0, 127, 255])]);
        cache.keep_code(&code);
        cache.save().unwrap();
        let again = open(&versions, 3);
        assert_eq!(again.code().collect::<BTreeMap<_, _>>(), code);
        assert_eq!(open(&versions, 4).code().count(), 0, "another search");
        assert_eq!(again.times()["step"], trimmed(&all["step"]));
        assert_eq!(again.times()["step"].len(), KEPT_CANDIDATES);
        assert_eq!((again.library_plans().count(), again.streams()), (1, streams));
        assert!(open(&versions, 4).times().is_empty(), "another search");
        assert!(open(&Versions::default(), 3).times().is_empty(), "other libraries");
        fs::write(&file, b"{").unwrap();
        assert!(open(&versions, 3).times().is_empty());
    }
}
