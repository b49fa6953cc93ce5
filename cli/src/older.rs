//! Engines of an older compiler: the native compiler's revision went up since one was built.
//!
//! Such an engine has a key of its own and stays as it is; whoever asks for the newest of a model is told that building
//! it again would give another one.

use crate::{farm::Farm, printer::Printer};
#[cfg(feature = "local")]
use planforge_cpu::COMPILER_REVISION;
#[cfg(feature = "local")]
use planforge_cuda::versions::CUDA_REVISION;
use planforge_plan::BACKEND;
use planforge_proto::v1;
use planforge_types::{Sku, Toolchain};
use serde::Serialize;

/// Revisions of the native compiler: what built an engine, and what would build it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OlderCompiler {
    pub built_by: u64,
    pub newest: u64,
    /// Agents with such a device offer the newest; otherwise only this program is known to hold it.
    pub offered: bool,
}

/// What agents last offered; nothing where that cannot be asked, for then this program's own revisions are known.
pub async fn devices(farm: &Farm) -> Vec<v1::Device> {
    let reply = farm.rpc().list_devices(v1::ListDevicesRequest::default()).await;
    reply.map(|reply| reply.into_inner().devices).unwrap_or_default()
}

/// The revision of the native compiler in a toolchain's document.
fn revision(toolchain_json: &str) -> Option<u64> {
    let toolchain: Toolchain = serde_json::from_str(toolchain_json).ok()?;
    (toolchain.backend == BACKEND).then(|| toolchain.version.parse().ok())?
}

/// The revision of this program's own compiler for such a device.
#[cfg(feature = "local")]
fn own(sku: &Sku) -> Option<u64> {
    Some(u64::from(if sku.is_cpu() { COMPILER_REVISION } else { CUDA_REVISION }))
}

/// The small client holds none.
#[cfg(not(feature = "local"))]
fn own(_: &Sku) -> Option<u64> {
    None
}

impl OlderCompiler {
    /// Of an engine that the native compiler built before its revision went up.
    pub fn of(engine: &v1::Engine, devices: &[v1::Device]) -> Option<Self> {
        let built_by = revision(&engine.toolchain_json)?;
        // What an agent that is away offered before says nothing of what it will offer.
        let alike = devices.iter().filter(|device| device.online && device.skus.contains(&engine.sku));
        let offered = alike.flat_map(|device| &device.offers).filter_map(|offer| revision(&offer.toolchain_json)).max();
        let newest = offered.or_else(|| own(&engine.sku.parse().ok()?))?;
        (newest > built_by).then_some(Self { built_by, newest, offered: offered.is_some() })
    }

    /// Says it of an engine that was asked for by its model, and how to get at either.
    pub fn tell(&self, engine: &v1::Engine, printer: &Printer) {
        let who = if self.offered { format!("agents for {} offer", engine.sku) } else { "this program holds".into() };
        printer.warn(&format!(
            "older compiler: revision {} of {BACKEND} built this engine; {who} revision {}",
            self.built_by, self.newest
        ));
        printer.hint(&format!(
            "planforge submit MODEL --sku {} builds it anew; this one stays fetchable by its key {}",
            engine.sku, engine.engine_key
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(backend: &str, version: &str) -> String {
        serde_json::json!({"backend": backend, "version": version, "components": {}}).to_string()
    }

    fn engine(sku: &str, backend: &str, version: &str) -> v1::Engine {
        v1::Engine { sku: sku.into(), toolchain_json: toolchain(backend, version), ..v1::Engine::default() }
    }

    fn device(sku: &str, backend: &str, version: &str) -> v1::Device {
        let offers = vec![v1::Offer { toolchain_json: toolchain(backend, version), ..v1::Offer::default() }];
        v1::Device { skus: vec![sku.into()], offers, online: true, ..v1::Device::default() }
    }

    #[test]
    fn an_engine_is_older_than_what_agents_of_its_kind_offer() {
        let devices =
            [device("h200-sxm", "native", "10"), device("t4", "native", "99"), device("h200-sxm", "tensorrt", "10.3")];
        let older = |of: &v1::Engine| OlderCompiler::of(of, &devices).map(|older| (older.built_by, older.newest));
        assert_eq!(older(&engine("h200-sxm", "native", "9")), Some((9, 10)), "compared as numbers");
        assert_eq!(older(&engine("h200-sxm", "native", "10")), None);
        assert_eq!(older(&engine("h200-sxm", "native", "11")), None, "what is offered would build an older one");
        assert_eq!(older(&engine("h200-sxm", "tensorrt", "8.6")), None, "its versions are no revisions");
    }

    #[test]
    fn what_was_offered_before_an_upgrade_does_not_count() {
        let before = v1::Device { online: false, ..device("h200-sxm", "native", &(CUDA_REVISION - 1).to_string()) };
        let built = engine("h200-sxm", "native", &(CUDA_REVISION - 1).to_string());
        let found = OlderCompiler::of(&built, &[before]).expect("this program's own revision counts");
        assert_eq!((found.newest, found.offered), (u64::from(CUDA_REVISION), false));
    }

    #[test]
    fn where_nobody_offers_it_the_program_knows_its_own_revisions() {
        let older = |sku: &str, version: u32| OlderCompiler::of(&engine(sku, "native", &version.to_string()), &[]);
        for (sku, newest) in [("cpu-x86-64-v3", COMPILER_REVISION), ("h200-sxm", CUDA_REVISION)] {
            let found = older(sku, newest - 1).expect("it is older");
            assert_eq!((found.newest, found.offered), (u64::from(newest), false), "{sku}");
            assert_eq!(older(sku, newest), None, "{sku}");
        }
    }
}
