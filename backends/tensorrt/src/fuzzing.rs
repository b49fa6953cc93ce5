//! What the fuzz targets and the replay of their corpora do with any bytes. No part of the interface.

use crate::{
    acceptance::{Exit, judge_build, judge_run},
    exports::{join, read_layer_info, read_output, read_profile, read_times, recognise},
    failure::{Ended, Step, diagnose},
    log::{LogReader, Stream},
    plan::PlanHeader,
    timing_cache::TimingCacheHeader,
};
use planforge_tensorrt_rules::version::Version;

/// A log in pieces, on one stream or several by its first byte; then everything that is made of it.
pub fn log(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let piece = usize::from(*first % 64) + 1;
    let streams = [Stream::Merged, Stream::Stdout, Stream::Stderr];
    let streams = &streams[..1 + usize::from(*first / 64 % 3)];
    let mut reader = LogReader::new();
    for (count, piece) in bytes.chunks(piece).enumerate() {
        reader.feed(streams[count % streams.len()], piece);
    }
    let facts = reader.finish();
    for exit in [
        Exit::Code(0),
        Exit::Code(1),
        Exit::Code(127),
        Exit::Signal(6),
        Exit::Signal(9),
        Exit::TimedOut { limit_ms: 1 },
        Exit::Hung { silent_ms: 1 },
        Exit::OverMemory { limit_bytes: 1 },
    ] {
        let _ = judge_run(exit, &facts);
        let _ = judge_build(exit, &facts, PlanHeader::parse(bytes, bytes.len() as u64));
        for step in [Step::Build, Step::Run] {
            let failure = diagnose(&Ended { step, exit, rejected: None, facts: &facts, file: "f", device: "d" });
            assert!(!failure.message.is_empty() && !failure.hint.is_empty());
        }
    }
}

/// A file through every reader of exports.
pub fn exports(bytes: &[u8]) {
    let _ = recognise(bytes, bytes.len() as u64);
    let _ = read_times(bytes);
    if let Ok(output) = read_output(bytes) {
        let _ = output.tensors.iter().filter(|tensor| tensor.is_whole()).count();
    }
    let info = read_layer_info(bytes).ok();
    let profile = read_profile(bytes).unwrap_or_default();
    let joined = join(profile, info);
    let _ = (joined.layer_times(), joined.findings());
}

/// A plan's and a timing cache's first bytes, in files of several lengths.
pub fn headers(bytes: &[u8]) {
    for file_bytes in [bytes.len() as u64, 0, 1, 284_092, u64::MAX] {
        if let Ok(header) = PlanHeader::parse(bytes, file_bytes) {
            let _ = (header.version_text(), header.is_of(Version::new(10, 0, 0)));
        }
        let _ = TimingCacheHeader::parse(bytes, file_bytes);
    }
}
