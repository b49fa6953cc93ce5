//! Whether an engine of one device kind may stand in for one of another, by what was measured of other models.

use super::{LEAST_MODELS, Matrix, classes::evidence};
use crate::format::percent;
use planforge_types::{BuildSpec, Sku};
use serde::{Deserialize, Serialize};

/// What is known of engines for one device kind on another, which was shown to be interchangeable with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandIn {
    pub built_for: Sku,
    /// The least and the most that engines of `built_for` lose there, over the intervals of all models: 0.02 is 2 %
    /// slower.
    pub loss_low: f64,
    pub loss_high: f64,
    /// Models that it rests on.
    pub models: usize,
    /// Boards of `built_for` and of the other kind on which it was measured.
    pub boards: [usize; 2],
}

impl StandIn {
    /// As people read it.
    pub fn words(&self) -> String {
        let Self { built_for, loss_low, loss_high, models, boards: [own, other] } = self;
        format!(
            "built for {built_for}, which was shown to be interchangeable by {models} models on {own} and {other} boards; \
             they lose {} to {} (95 % intervals)",
            percent(*loss_low),
            percent(*loss_high)
        )
    }
}

/// What a matrix calls a spec.
pub fn spec_words(spec: &BuildSpec) -> String {
    let threads = spec.threads.map(|threads| format!(", {threads} threads")).unwrap_or_default();
    format!("{}{threads}", spec.precision)
}

/// What `matrices` say of engines for `built_for`, of that toolchain and spec, on `wanted`. Matrices of others are no
/// evidence.
///
/// # Errors
/// Why such an engine may not stand in.
pub fn stand_in(
    matrices: &[Matrix],
    (toolchain, spec): (&str, &str),
    built_for: &Sku,
    wanted: &Sku,
) -> Result<StandIn, String> {
    let alike = |matrix: &&Matrix| matrix.toolchain == toolchain && matrix.spec == spec;
    let alike: Vec<Matrix> = matrices.iter().filter(alike).cloned().collect();
    if alike.is_empty() {
        return Err(format!("none of {} matrices is of {toolchain}, {spec}; it takes {LEAST_MODELS}", matrices.len()));
    }
    let pair = evidence(&alike, built_for, wanted);
    if !pair.interchangeable {
        return Err(pair.words());
    }
    let losses: Vec<_> = alike.iter().filter_map(|matrix| matrix.cell(built_for, wanted)?.loss.as_ref()).collect();
    if losses.is_empty() {
        return Err(format!("no matrix says what engines for {built_for} lose on {wanted}"));
    }
    Ok(StandIn {
        built_for: built_for.clone(),
        loss_low: losses.iter().map(|loss| loss.low).fold(f64::INFINITY, f64::min),
        loss_high: losses.iter().map(|loss| loss.high).fold(f64::NEG_INFINITY, f64::max),
        models: pair.models,
        boards: pair.boards,
    })
}
