//! Request-time resolution: from what is asked to what exactly goes into the engine key.

use super::{BuildSpec, Sku, Toolchain, ToolchainConstraint, toolchain::compare_versions};
use std::cmp::Ordering;

/// When a request names no backend, the first of these that is offered is taken: what shops deploy, then what always
/// works, then the rest by name.
const BACKEND_PREFERENCE: [&str; 3] = ["tensorrt", "native", "onnxruntime"];

/// A request that no known device could ever satisfy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("no known device offers a toolchain that satisfies '{constraint}'; offered: {}", list(.offered))]
    NoToolchain {
        constraint: String,
        /// Everything that is offered, newest first.
        offered: Vec<Toolchain>,
    },
    #[error("the spec asks for {threads} CPU threads, but {sku} is no CPU")]
    ThreadsOnGpu { sku: Sku, threads: u32 },
    #[error("no known device offers {sku}, so its number of threads cannot be chosen")]
    NoDevice { sku: Sku },
}

fn list(offered: &[Toolchain]) -> String {
    if offered.is_empty() {
        return "nothing".into();
    }
    offered.iter().map(Toolchain::to_string).collect::<Vec<_>>().join("; ")
}

/// Newest first; a total order, so that every coordinator resolves alike.
fn newest_first(left: &Toolchain, right: &Toolchain) -> Ordering {
    let rank = |t: &Toolchain| BACKEND_PREFERENCE.iter().position(|b| *b == t.backend).unwrap_or(usize::MAX);
    rank(left)
        .cmp(&rank(right))
        .then_with(|| left.backend.cmp(&right.backend))
        .then_with(|| compare_versions(&right.version, &left.version))
        .then_with(|| {
            let names = left.components.keys().chain(right.components.keys());
            let version = |t: &'_ Toolchain, name: &String| t.components.get(name).cloned().unwrap_or_default();
            names
                .map(|n| compare_versions(&version(right, n), &version(left, n)))
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        })
        .then_with(|| right.cmp(left))
}

/// The newest of `offers` that satisfies `constraint`.
///
/// # Errors
/// [`ResolveError::NoToolchain`] when none does; it lists what exists.
pub fn resolve_toolchain(constraint: &ToolchainConstraint, offers: &[Toolchain]) -> Result<Toolchain, ResolveError> {
    let mut known = offers.to_vec();
    known.sort_by(newest_first);
    known.dedup();
    match known.iter().find(|toolchain| constraint.matches(toolchain)) {
        Some(toolchain) => Ok(toolchain.clone()),
        None => Err(ResolveError::NoToolchain { constraint: constraint.to_string(), offered: known }),
    }
}

/// Completes `spec` for `sku`: a CPU spec that names no threads gets the cores of the smallest known device, so that
/// every device which offers the SKU can run the job. `device_threads` holds the cores of the devices offering `sku`.
///
/// # Errors
/// When a spec for a GPU names threads, or no known device offers the CPU whose threads are to be chosen.
pub fn resolve_spec(
    spec: &BuildSpec,
    sku: &Sku,
    device_threads: impl IntoIterator<Item = u32>,
) -> Result<BuildSpec, ResolveError> {
    let mut resolved = spec.clone().canonical();
    if !sku.is_cpu() {
        return match resolved.threads {
            Some(threads) => Err(ResolveError::ThreadsOnGpu { sku: sku.clone(), threads }),
            None => Ok(resolved),
        };
    }
    if resolved.threads.is_none() {
        let smallest = device_threads.into_iter().min().ok_or_else(|| ResolveError::NoDevice { sku: sku.clone() })?;
        resolved.threads = Some(smallest.max(1));
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn toolchain(backend: &str, version: &str, cuda: Option<&str>) -> Toolchain {
        let components = cuda.map(|v| ("cuda".to_owned(), v.to_owned()));
        Toolchain { backend: backend.into(), version: version.into(), components: BTreeMap::from_iter(components) }
    }

    #[test]
    fn the_newest_match_wins_whatever_the_order_of_offers() {
        let mut offers = vec![
            toolchain("native", "3", None),
            toolchain("tensorrt", "10.3.0", Some("12.4")),
            toolchain("tensorrt", "10.13.2", Some("12.4")),
            toolchain("tensorrt", "10.13.2", Some("12.10")),
            toolchain("tensorrt", "11.0", None),
        ];
        for _ in 0..offers.len() {
            let pick = |text: &str| resolve_toolchain(&text.parse().unwrap(), &offers).unwrap();
            assert_eq!(pick("tensorrt<11"), toolchain("tensorrt", "10.13.2", Some("12.10")));
            assert_eq!(pick(""), toolchain("tensorrt", "11.0", None));
            assert_eq!(pick("native"), toolchain("native", "3", None));
            offers.rotate_left(1);
        }
    }

    #[test]
    fn a_refusal_says_what_exists() {
        let offers = [toolchain("native", "3", None)];
        let error = resolve_toolchain(&"tensorrt>=10.3,<11".parse().unwrap(), &offers).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no known device offers a toolchain that satisfies 'tensorrt>=10.3,<11'; offered: native 3"
        );
    }

    #[test]
    fn threads_are_the_smallest_devices_cores() {
        let cpu: Sku = "cpu-x86-64-v3".parse().unwrap();
        let gpu: Sku = "t4".parse().unwrap();
        let spec = BuildSpec::default();
        assert_eq!(resolve_spec(&spec, &cpu, [8, 2, 4]).unwrap().threads, Some(2));
        assert_eq!(resolve_spec(&spec, &cpu, []), Err(ResolveError::NoDevice { sku: cpu.clone() }));
        assert_eq!(resolve_spec(&spec, &gpu, [0]).unwrap().threads, None);
        let asked = BuildSpec { threads: Some(6), ..BuildSpec::default() };
        assert_eq!(resolve_spec(&asked, &cpu, [2]).unwrap().threads, Some(6));
        assert!(resolve_spec(&asked, &gpu, []).is_err());
    }
}
