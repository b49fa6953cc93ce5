//! A report's document as pages read it.

use planforge_report::{
    Ceilings, LayerTime, ReadError, Report,
    check::check_document,
    figures::{Figures, LayerFigures},
};

/// A report as it can be read: whole, or as far as one of another version goes.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub whole: Option<Report>,
    pub layers: Vec<LayerTime>,
    pub ceilings: Option<Ceilings>,
}

impl Reading {
    /// Of a document; one that contradicts its samples says nothing.
    pub fn of(document: &str) -> Self {
        match Report::parse(document.as_bytes()) {
            Ok(report) => {
                Self { layers: report.layers.clone(), ceilings: report.ceilings.clone(), whole: Some(report) }
            }
            Err(ReadError::Samples(_) | ReadError::Contradiction(_)) => Self::default(),
            Err(_) if check_document(document).is_err() => Self::default(),
            Err(_) => Figures::parse(document).map(Self::in_part).unwrap_or_default(),
        }
    }

    fn in_part(figures: Figures) -> Self {
        let layer = |layer: LayerFigures| LayerTime {
            name: layer.name,
            kind: layer.kind,
            tactic: layer.tactic,
            median_ms: layer.median_ms,
            flops: layer.flops,
            bytes: layer.bytes,
            precision: layer.precision,
            ..LayerTime::default()
        };
        let ceilings = serde_json::from_value(figures.ceilings).ok();
        Self { whole: None, layers: figures.layers.into_iter().map(layer).collect(), ceilings }
    }
}
