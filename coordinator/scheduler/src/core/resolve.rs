//! From what is asked for to one exact toolchain and spec, and the refusal when nothing known could run it.

use super::{
    ask::Asked,
    fallback::{Tried, named},
    preparation,
    queue::Target,
    state::State,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_tensorrt_rules::{Refusal, hardware::Board, preflight};
use planforge_types::{
    BuildSpec, Sku, Toolchain,
    fingerprint::GpuFacts,
    resolve::{ResolveError, resolve_spec, resolve_toolchain},
    toolchain::compare_versions,
};
use std::collections::BTreeSet;

/// SKUs or toolchains that one refusal lists.
const LISTED_MAX: usize = 40;

/// What a request comes to on one SKU.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
}

/// Why nothing known can run it.
#[derive(Clone, Debug)]
pub(super) enum Unresolved {
    /// Another device or toolchain could change it.
    NothingOffers(ApiError),
    /// It can never be.
    Never(ApiError),
}

impl State {
    /// Resolves against everything that known agents last offered, offline ones too, but for the backends of what was tried.
    pub(super) fn resolve(&self, asked: &Asked, tried: &[Tried]) -> Result<Resolved, Unresolved> {
        let Asked { sku, matches: constraint, spec, from, require, .. } = asked;
        let offers: Vec<Toolchain> =
            self.offers.keys().filter(|target| target.sku == *sku).map(|target| target.toolchain.clone()).collect();
        if offers.is_empty() {
            return Err(Unresolved::NothingOffers(self.unknown_sku(asked)));
        }
        // Another version of a backend knows much the same.
        let untried = |offer: &Toolchain| tried.iter().all(|one| one.toolchain.backend != offer.backend);
        let offers: Vec<Toolchain> = offers.into_iter().filter(untried).collect();
        if offers.is_empty() {
            let error =
                ApiError::new(ErrorCode::Refused, format!("{}, and {sku} has no other toolchain", named(tried)));
            return Err(Unresolved::NothingOffers(error));
        }
        let gpu = self.gpu(sku);
        let board = gpu.as_ref().and_then(Board::of);
        let mut spec = spec.clone();
        let allow_unknown = preflight::take_permission(&mut spec);
        // The newest that is of use on such a GPU; else the newest there is, which is refused with the reason.
        let usable: Vec<Toolchain> =
            offers.iter().filter(|offer| preflight::usable(offer, board.as_ref(), allow_unknown)).cloned().collect();
        // Best of all one that a device has which meets what is asked for.
        let has =
            |offer: &&Toolchain| self.somebody_has(&Target { sku: sku.clone(), toolchain: (*offer).clone() }, require);
        let met: Vec<Toolchain> = usable.iter().filter(has).cloned().collect();
        let resolved = resolve_toolchain(constraint, &met)
            .or_else(|_| resolve_toolchain(constraint, &usable))
            .or_else(|_| resolve_toolchain(constraint, &offers));
        let toolchain = resolved.map_err(|error| {
            let error = ApiError::new(ErrorCode::Refused, format!("nothing known can build for {sku}: {error}"));
            Unresolved::NothingOffers(error.with_hint(format!(
                "ask for one of the listed toolchains, start an agent that has it, or wait with {}",
                asked.waits_with()
            )))
        })?;
        if let Some(from) = from {
            spec.precision = preparation::told_precision(&toolchain, from, spec.precision);
            // Stands for what is not made yet: whoever takes no calibration says so before anything is prepared.
            if from.as_calibration && spec.calibration.is_none() {
                spec.calibration = Some(from.source);
            }
        }
        let target = Target { sku: sku.clone(), toolchain: toolchain.clone() };
        let devices = self.offers.get(&target).into_iter().flatten();
        // Counted only where the spec of a processor says nothing.
        let threads = devices.filter_map(|key| self.device(key)).map(|device| device.threads);
        let spec = resolve_spec(&spec, sku, threads).map_err(|error| match error {
            ResolveError::ThreadsOnGpu { .. } => {
                Unresolved::Never(ApiError::new(ErrorCode::InvalidArgument, error.to_string()))
            }
            _ => Unresolved::NothingOffers(ApiError::new(ErrorCode::Refused, error.to_string())),
        })?;
        let admit = |toolchain: &Toolchain| preflight::admit(toolchain, &spec, board.as_ref(), allow_unknown);
        if let Err(refusal) = admit(&toolchain) {
            let able = |offer: &&Toolchain| offer.backend == planforge_tensorrt_rules::BACKEND && admit(offer).is_ok();
            return Err(Unresolved::Never(cannot_build(sku, &refusal, offers.iter().filter(able))));
        }
        if let Some(what) = self.lacking(&target, &spec) {
            let message = format!("{sku} cannot have this engine: {toolchain} does not do {what}");
            let hint = "leave it out of the spec, or ask for another toolchain ('planforge devices' shows them)";
            return Err(Unresolved::Never(ApiError::new(ErrorCode::Refused, message).with_hint(hint)));
        }
        Ok(Resolved { toolchain, spec })
    }

    /// With what it would be made now, for people and for what is foretold.
    pub(super) fn likely_toolchain(&self, asked: &Asked) -> Option<Toolchain> {
        if asked.prepare.is_some() {
            return self.preparer().ok();
        }
        self.resolve(asked, &asked.tried).ok().map(|resolved| resolved.toolchain)
    }

    /// What is known of the GPUs of this kind; `None` for processors, and where nobody tells.
    fn gpu(&self, sku: &Sku) -> Option<GpuFacts> {
        if sku.is_cpu() {
            return None;
        }
        let mut devices = self.offers.iter().filter(|(target, _)| target.sku == *sku).flat_map(|(_, devices)| devices);
        devices.find_map(|key| self.gpus.get(key)).cloned()
    }

    /// SKUs that known devices have, the first `most` of them.
    pub fn offered_skus(&self, most: usize) -> BTreeSet<Sku> {
        let mut skus = BTreeSet::new();
        for target in self.offers.keys().filter(|target| target.is_a_device()) {
            if skus.len() == most {
                break;
            }
            skus.insert(target.sku.clone());
        }
        skus
    }

    fn unknown_sku(&self, asked: &Asked) -> ApiError {
        let (sku, waits) = (&asked.sku, asked.waits_with());
        let known: BTreeSet<&Sku> =
            self.offers.keys().filter(|target| target.is_a_device()).map(|target| &target.sku).collect();
        if known.is_empty() {
            let message = format!("no known agent has a {sku}: no agent has registered yet");
            return ApiError::new(ErrorCode::Refused, message)
                .with_hint(format!("start an agent on a machine with that device, or wait for one with {waits}"));
        }
        let mut lines = Vec::new();
        for one in known.iter().take(LISTED_MAX) {
            let toolchains: Vec<String> = self
                .offers
                .keys()
                .filter(|target| target.sku == **one)
                .take(LISTED_MAX)
                .map(|target| target.toolchain.to_string())
                .collect();
            lines.push(format!("{one} ({})", toolchains.join("; ")));
        }
        if known.len() > LISTED_MAX {
            lines.push(format!("and {} more", known.len() - LISTED_MAX));
        }
        ApiError::new(ErrorCode::Refused, format!("no known agent has a {sku}; known are: {}", lines.join(", ")))
            .with_hint(format!("pick a listed SKU ('planforge devices' shows them), or wait for one with {waits}"))
    }

    /// Toolchains that are offered for `sku`, newest forms last, for messages.
    pub(super) fn alternatives(&self, sku: &Sku) -> String {
        let offered: Vec<String> = self
            .offers
            .keys()
            .filter(|target| target.sku == *sku)
            .take(LISTED_MAX)
            .map(|target| target.toolchain.to_string())
            .collect();
        if offered.is_empty() { format!("nobody offers {sku}") } else { format!("{sku} has {}", offered.join("; ")) }
    }
}

/// The toolchain that was resolved cannot do what the spec asks; what else is offered perhaps can.
fn cannot_build<'a>(sku: &Sku, refusal: &Refusal, able: impl Iterator<Item = &'a Toolchain>) -> ApiError {
    let mut able: Vec<&str> = able.map(|offer| offer.version.as_str()).take(LISTED_MAX).collect();
    able.sort_by(|left, right| compare_versions(left, right));
    able.dedup();
    let hint = match able.last() {
        Some(version) => {
            let all = able.join(", ");
            format!("{sku} is also offered by TensorRT {all}, which can: ask with --toolchain tensorrt={version}")
        }
        None => refusal.hint().to_owned(),
    };
    ApiError::new(ErrorCode::Refused, format!("{sku} cannot have this engine: {refusal}")).with_hint(hint)
}
