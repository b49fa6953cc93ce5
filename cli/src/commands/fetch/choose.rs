//! Which of a model's engines is the answer where no lock names one.

use crate::declared::Fleet;
use planforge_fleet::cell::{is_of_spec, spec_difference};
use planforge_proto::v1;
use planforge_types::{BuildSpec, Sku, Toolchain, ToolchainConstraint, resolve_toolchain};

/// An engine with what decides about it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub engine: v1::Engine,
    toolchain: Toolchain,
    spec: BuildSpec,
}

/// A candidate that is not the answer, and why.
#[derive(Debug)]
pub(super) struct Rejected {
    pub engine: v1::Engine,
    pub why: String,
}

/// What came of looking at every engine.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub taken: Option<v1::Engine>,
    pub rejected: Vec<Rejected>,
    /// Why none can be taken although some would do; empty where none would.
    pub undecided: String,
}

/// Chooses among `engines`, all of one model and for `sku`: of the spec (the default one where none is named, completed as
/// the farm would complete it), by the best of the toolchains in the order in which requests are resolved.
pub(super) fn choose(
    engines: Vec<v1::Engine>,
    sku: &Sku,
    (spec, constraint): (Option<&BuildSpec>, &ToolchainConstraint),
    fleet: &Fleet,
    allow_inaccurate: bool,
) -> Choice {
    let mut choice = Choice::default();
    let usual = BuildSpec::default();
    let asked = spec.unwrap_or(&usual);
    let mut fits: Vec<Candidate> = Vec::new();
    for engine in engines {
        let reject = |why: String| Rejected { engine: engine.clone(), why };
        let (Ok(toolchain), Ok(built)) =
            (serde_json::from_str::<Toolchain>(&engine.toolchain_json), BuildSpec::parse(&engine.spec_json))
        else {
            choice.rejected.push(reject("its toolchain or spec cannot be read by this release".into()));
            continue;
        };
        if !constraint.matches(&toolchain) {
            choice.rejected.push(reject(format!("{toolchain} is not '{constraint}'")));
        } else if !is_of_spec(asked, &built) {
            let threads = BuildSpec { threads: asked.threads.or(built.threads), ..asked.clone() };
            let whose =
                if spec.is_some() { "not the spec that is asked for" } else { "an experiment beside the default spec" };
            choice.rejected.push(reject(format!("{whose}: {}", spec_difference(&threads, &built).join(", "))));
        } else if !engine.accurate && !allow_inaccurate {
            choice
                .rejected
                .push(reject("its outputs are too far from the reference's (--allow-inaccurate takes it)".into()));
        } else {
            fits.push(Candidate { engine, toolchain, spec: built });
        }
    }
    if sku.is_cpu() && asked.threads.is_none() {
        keep_usual_threads(&mut fits, &mut choice, sku, asked, fleet);
    }
    let toolchains: Vec<Toolchain> = fits.iter().map(|candidate| candidate.toolchain.clone()).collect();
    let Ok(best) = resolve_toolchain(&ToolchainConstraint::default(), &toolchains) else { return choice };
    fits.sort_by_key(|candidate| std::cmp::Reverse(candidate.engine.created_ms));
    for candidate in fits {
        if candidate.toolchain != best {
            let why = format!("{} comes after {best}", candidate.toolchain);
            choice.rejected.push(Rejected { engine: candidate.engine, why });
        } else if choice.taken.is_some() {
            choice
                .rejected
                .push(Rejected { engine: candidate.engine, why: "a newer one of the same key is there".into() });
        } else {
            choice.taken = Some(candidate.engine);
        }
    }
    choice
}

/// Where a spec leaves threads to the farm, an engine of other threads than it would choose is somebody's experiment.
fn keep_usual_threads(fits: &mut Vec<Candidate>, choice: &mut Choice, sku: &Sku, asked: &BuildSpec, fleet: &Fleet) {
    let usual = |toolchain: &Toolchain| {
        let exact = format!("{}={}", toolchain.backend, toolchain.version).parse().unwrap_or_default();
        // What nobody offers any more was built for the same devices as what is.
        let resolved =
            fleet.resolve(sku, &exact, asked).or_else(|| fleet.resolve(sku, &ToolchainConstraint::default(), asked));
        resolved.and_then(|(_, spec)| spec.threads)
    };
    let mut unknown: Vec<u32> = Vec::new();
    let mut kept = Vec::with_capacity(fits.len());
    for candidate in fits.drain(..) {
        match (usual(&candidate.toolchain), candidate.spec.threads) {
            (Some(usual), Some(threads)) if usual != threads => {
                let why =
                    format!("an experiment beside the default spec: {threads} threads, where the farm chooses {usual}");
                choice.rejected.push(Rejected { engine: candidate.engine, why });
            }
            (None, Some(threads)) => {
                unknown.push(threads);
                kept.push(candidate);
            }
            _ => kept.push(candidate),
        }
    }
    unknown.sort_unstable();
    unknown.dedup();
    if unknown.len() > 1 {
        // Nothing says which of them the default spec means.
        let threads = unknown.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        choice.undecided =
            format!("no known device says how many threads are usual for {sku}; there are engines of {threads}");
        let why = "nothing says how many threads are usual".to_owned();
        choice.rejected.extend(kept.drain(..).map(|candidate| Rejected { engine: candidate.engine, why: why.clone() }));
    }
    *fits = kept;
}
