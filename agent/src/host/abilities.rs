//! What a toolchain can do at all on a device, as its compiler's own check says: asked with one wish at a time.
//!
//! A coordinator refuses by it what no build of the toolchain could ever do, before anybody waits for a device. A compiler
//! that does not answer without a model (TensorRT's looks into it) says nothing here, and everything is tried.

use planforge_backend::{CompileRequest, Compiler};
use planforge_proto::v1;
use planforge_types::{BuildSpec, Digest, FailureClass, Precision, Sku, Toolchain, fingerprint::DiscoveredDevice};
use std::{collections::BTreeMap, path::PathBuf};

const PRECISIONS: [Precision; 7] = [
    Precision::Fp32,
    Precision::Tf32,
    Precision::Fp16,
    Precision::Bf16,
    Precision::Int8,
    Precision::Fp8,
    Precision::Best,
];
/// The compiler looks at the names of options itself.
const ANY_OPTION: &str = "*";

/// Wishes beside precision, by the field of a build spec that they stand in.
fn wishes() -> [(&'static str, BuildSpec); 6] {
    let digest = Digest::of(b"any");
    [
        (
            "hardware_compatibility",
            BuildSpec { hardware_compatibility: Some("ampere+".into()), ..BuildSpec::default() },
        ),
        ("version_compatible", BuildSpec { version_compatible: true, ..BuildSpec::default() }),
        ("approximate_gelu", BuildSpec { approximate_gelu: true, ..BuildSpec::default() }),
        ("strict", BuildSpec { strict: true, ..BuildSpec::default() }),
        ("calibration", BuildSpec { calibration: Some(digest), ..BuildSpec::default() }),
        ("plugins", BuildSpec { plugins: vec![digest], ..BuildSpec::default() }),
    ]
}

/// What the compiler refuses nothing of; `None` where it cannot say without a model.
pub(crate) fn abilities(
    compiler: &dyn Compiler,
    device: &DiscoveredDevice,
    sku: &Sku,
    toolchain: &Toolchain,
) -> Option<v1::Abilities> {
    let request = |spec: BuildSpec| CompileRequest {
        model: PathBuf::new(),
        model_digest: Digest::of(b""),
        sku: sku.clone(),
        device: device.fingerprint.clone(),
        toolchain: toolchain.clone(),
        // Resolved, as a worker gets it.
        spec: BuildSpec { threads: sku.is_cpu().then_some(device.threads.max(1)), ..spec },
        scratch: PathBuf::new(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    compiler.check(&request(BuildSpec::default())).ok()?;
    // What this host lacks just now is nothing that the toolchain cannot do.
    let can =
        |spec: BuildSpec| compiler.check(&request(spec)).err().is_none_or(|error| error.class != FailureClass::Model);
    let precisions =
        PRECISIONS.iter().filter(|precision| can(BuildSpec { precision: **precision, ..BuildSpec::default() }));
    Some(v1::Abilities {
        precisions: precisions.map(ToString::to_string).collect(),
        features: wishes().into_iter().filter(|(_, spec)| can(spec.clone())).map(|(name, _)| name.into()).collect(),
        options: compiler.options(sku).unwrap_or(&[ANY_OPTION]).iter().map(|name| (*name).to_owned()).collect(),
        never_measures: compiler.never_measures(sku).iter().map(|name| (*name).to_owned()).collect(),
    })
}

/// Abilities that were asked for before: a compiler is not asked a dozen questions at every heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<(String, Toolchain), Option<v1::Abilities>>);

impl Known {
    pub fn get(
        &mut self,
        device: &DiscoveredDevice,
        toolchain: &Toolchain,
        ask: impl FnOnce() -> Option<v1::Abilities>,
    ) -> Option<v1::Abilities> {
        self.0.entry((device.id.clone(), toolchain.clone())).or_insert_with(ask).clone()
    }
}
