//! Times per layer joined with what the engine's inspector says of the layer.
//!
//! Profile and inspector name most layers alike, but sub-layers of fused regions differ between them. What has no
//! counterpart stays on its own side and is counted, never dropped or guessed.

use super::{
    layers::{Detail, Layer, LayerInfo},
    profile::{ProfileExport, ProfiledLayer},
};
use planforge_report::{Finding, LayerTime, Severity};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Every layer of the profile in order, each with its description where there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Joined {
    pub layers: Vec<JoinedLayer>,
    /// Descriptions without a time: layers that did not run, or that the profiler names otherwise.
    pub untimed: Vec<Layer>,
    pub detail: Detail,
    /// Share of the profiled time by the type computed in, 0..=1; what is not known is under `unknown`.
    pub precision_share: BTreeMap<String, f64>,
    /// Lower bound: fused kernels list no weights.
    pub weight_bytes: BTreeMap<String, u64>,
}

/// A layer of the profile.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedLayer {
    pub time: ProfiledLayer,
    pub info: Option<Layer>,
}

/// Joins by name; several layers of one name are joined in order.
pub fn join(profile: ProfileExport, info: Option<LayerInfo>) -> Joined {
    let info = info.unwrap_or_default();
    let weight_bytes = info.weight_bytes();
    let mut by_name: HashMap<String, VecDeque<usize>> = HashMap::new();
    for (at, layer) in info.layers.iter().enumerate() {
        by_name.entry(layer.name.clone()).or_default().push_back(at);
    }
    let mut described: Vec<Option<Layer>> = info.layers.into_iter().map(Some).collect();
    let mut layers = Vec::with_capacity(profile.layers.len());
    let mut precision_ms: BTreeMap<String, f64> = BTreeMap::new();
    let mut total_ms = 0.0;
    for time in profile.layers {
        let at = by_name.get_mut(&time.name).and_then(VecDeque::pop_front);
        let info = at.and_then(|at| described[at].take());
        let spent = time.average_ms;
        if spent.is_finite() && spent > 0.0 {
            let precision = info.as_ref().and_then(|layer| layer.precision.as_deref()).unwrap_or("unknown");
            *precision_ms.entry(precision.to_owned()).or_default() += spent;
            total_ms += spent;
        }
        layers.push(JoinedLayer { time, info });
    }
    let precision_share = precision_ms.into_iter().map(|(precision, spent)| (precision, spent / total_ms)).collect();
    let untimed = described.into_iter().flatten().collect();
    Joined { layers, untimed, detail: info.detail, precision_share, weight_bytes }
}

impl Joined {
    /// In the form of every backend's report.
    pub fn layer_times(&self) -> Vec<LayerTime> {
        self.layers.iter().map(layer_time).collect()
    }

    /// Layers of the profile without a description.
    pub fn undescribed(&self) -> usize {
        self.layers.iter().filter(|layer| layer.info.is_none()).count()
    }

    /// What a reader should know of the join.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut note = |code: &str, message: String| {
            findings.push(Finding { code: code.to_owned(), severity: Severity::Note, message });
        };
        if self.detail == Detail::NamesOnly {
            note(
                "layer-names-only",
                "the plan was built without detailed verbosity: layers have names, but no precision, format or tactic"
                    .to_owned(),
            );
        } else if self.detail == Detail::Detailed && self.undescribed() > 0 {
            let (lone, all) = (self.undescribed(), self.layers.len());
            note("layers-undescribed", format!("{lone} of {all} profiled layers have no description in the engine"));
        }
        if !self.layers.is_empty() && !self.untimed.is_empty() {
            let names = self.untimed.iter().take(3).map(|layer| layer.name.as_str()).collect::<Vec<_>>().join(", ");
            let count = self.untimed.len();
            note("layers-untimed", format!("{count} layers of the engine have no time in the profile: {names}"));
        }
        findings
    }
}

fn layer_time(layer: &JoinedLayer) -> LayerTime {
    let info = layer.info.as_ref();
    let kind = info.and_then(|info| info.parameter.clone().or_else(|| info.kind.clone()));
    LayerTime {
        name: layer.time.name.clone(),
        kind: kind.unwrap_or_default(),
        tactic: info.and_then(|info| info.tactic.clone()).unwrap_or_default(),
        median_ms: layer.time.typical_ms(),
        flops: 0,
        bytes: 0,
        precision: info.and_then(|info| info.precision.clone()),
        formats: info.and_then(Layer::formats),
        nodes: match info {
            Some(info) => info.nodes.clone(),
            None => super::nodes_of_name(&layer.time.name),
        },
        counters: None,
    }
}
