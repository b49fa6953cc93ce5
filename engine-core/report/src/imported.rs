//! Figures that were measured elsewhere and are brought along as baselines: a vendor's table, a paper, another farm.
//!
//! Nobody here knows how they came about: there are no samples, so there is no interval and no verdict, and wherever one is
//! shown it is marked *imported*, with its source. Gates never look at them.

use crate::{Report, format::milliseconds};
use planforge_types::{Precision, Sku};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Figures that one file may hold.
pub const MAX_FIGURES: usize = 10_000;

/// Longest text of a figure.
const MAX_TEXT_BYTES: usize = 256;

/// What a file of figures has in every figure.
const REQUIRED: [&str; 6] = ["name", "device", "precision", "batch", "median_ms", "source"];

/// What it may have besides.
const MODEL: &str = "model";

/// A figure that somebody else measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Imported {
    /// Of what it is the figure: a runtime, a product.
    pub name: String,
    /// Device kind that it was measured on.
    pub device: Sku,
    pub precision: Precision,
    pub batch: u64,
    pub median_ms: f64,
    /// Where it is from, for people.
    pub source: String,
    /// Name of the model; absent: of whatever it is held against, at the word of who brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Why a text holds no figures. Figures and lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("it is neither JSON nor CSV: {0}")]
    Json(String),
    #[error("it holds no figure")]
    Nothing,
    #[error("it holds more than {MAX_FIGURES} figures")]
    TooMany,
    #[error("{place} lacks {field}")]
    Missing { place: String, field: &'static str },
    #[error("{place} has '{field}', which no figure has")]
    Unknown { place: String, field: String },
    #[error("{place}: {reason}")]
    Wrong { place: String, reason: String },
    #[error("{place} is the same as {first}")]
    Twice { place: String, first: String },
}

impl ImportError {
    /// What to do next.
    pub fn hint(&self) -> String {
        format!(
            "a figure has {} and may have {MODEL}: as a list of JSON objects, or as CSV with these names in the first line",
            REQUIRED.join(", ")
        )
    }
}

/// How a report stands to an imported figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    pub batch: u64,
    /// The figure's median over the report's: 2 is twice as fast. Absent where it would mean nothing.
    pub times: Option<f64>,
    pub reason: String,
}

/// Reads the figures of a file: a list of JSON objects, or CSV.
///
/// # Errors
/// What is wrong, and with which figure.
pub fn parse(text: &str) -> Result<Vec<Imported>, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let found = if text.trim_start().starts_with(['[', '{']) { of_json(text)? } else { of_csv(text)? };
    if found.is_empty() {
        return Err(ImportError::Nothing);
    }
    for (index, (place, figure)) in found.iter().enumerate() {
        let like = |other: &&(String, Imported)| other.1.is_of_the_same(figure);
        if let Some((first, _)) = found[..index].iter().find(like) {
            return Err(ImportError::Twice { place: place.clone(), first: first.clone() });
        }
    }
    Ok(found.into_iter().map(|(_, figure)| figure).collect())
}

fn of_json(text: &str) -> Result<Vec<(String, Imported)>, ImportError> {
    let document: Value = serde_json::from_str(text).map_err(|error| ImportError::Json(error.to_string()))?;
    let objects = match document {
        Value::Array(objects) => objects,
        one => vec![one],
    };
    bounded(objects.len())?;
    let read = |(index, object): (usize, Value)| {
        let place = format!("figure {}", index + 1);
        match object {
            Value::Object(fields) => Ok((place.clone(), figure(place, &fields)?)),
            _ => Err(ImportError::Wrong { place, reason: "it is no object".into() }),
        }
    };
    objects.into_iter().enumerate().map(read).collect()
}

fn of_csv(text: &str) -> Result<Vec<(String, Imported)>, ImportError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, head)) = lines.next() else { return Err(ImportError::Nothing) };
    let names = cells(head).ok_or_else(|| ImportError::Wrong { place: "line 1".into(), reason: UNCLOSED.into() })?;
    if names.iter().all(|name| !REQUIRED.contains(&name.as_str())) {
        return Err(ImportError::Json(format!("its first line is '{}'", head.chars().take(80).collect::<String>())));
    }
    let mut found = Vec::new();
    for (index, line) in lines {
        bounded(found.len() + 1)?;
        let place = format!("line {}", index + 1);
        let wrong = |reason: String| ImportError::Wrong { place: place.clone(), reason };
        let cells = cells(line).ok_or_else(|| wrong(UNCLOSED.into()))?;
        if cells.len() > names.len() {
            return Err(wrong(format!("it has {} cells, and there are {} names", cells.len(), names.len())));
        }
        let fields: Map<String, Value> = names
            .iter()
            .zip(&cells)
            .filter(|(_, cell)| !cell.is_empty())
            .map(|(name, cell)| {
                let number = ["batch", "median_ms"].contains(&name.as_str()).then(|| serde_json::from_str(cell).ok());
                (name.clone(), number.flatten().unwrap_or_else(|| Value::String(cell.clone())))
            })
            .collect();
        found.push((place.clone(), figure(place, &fields)?));
    }
    Ok(found)
}

const UNCLOSED: &str = "a quoted cell does not end on its line";

/// The cells of a line; `None` where a quote does not end.
fn cells(line: &str) -> Option<Vec<String>> {
    let (mut found, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim_end_matches('\r').chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => cell.extend(letters.next()),
            '"' if quoted || cell.trim().is_empty() => {
                quoted = !quoted;
                if quoted {
                    cell.clear();
                }
            }
            ',' if !quoted => found.push(std::mem::take(&mut cell).trim().to_owned()),
            letter => cell.push(letter),
        }
    }
    found.push(cell.trim().to_owned());
    (!quoted).then_some(found)
}

fn bounded(count: usize) -> Result<(), ImportError> {
    if count > MAX_FIGURES { Err(ImportError::TooMany) } else { Ok(()) }
}

fn figure(place: String, fields: &Map<String, Value>) -> Result<Imported, ImportError> {
    if let Some(field) = fields.keys().find(|field| !REQUIRED.contains(&field.as_str()) && *field != MODEL) {
        return Err(ImportError::Unknown { place, field: field.chars().take(80).collect() });
    }
    if let Some(field) = REQUIRED.into_iter().find(|field| fields.get(*field).is_none_or(Value::is_null)) {
        return Err(ImportError::Missing { place, field });
    }
    let wrong = |reason: String| ImportError::Wrong { place: place.clone(), reason };
    let text = |field: &str| {
        let text =
            fields[field].as_str().map(str::trim).filter(|text| !text.is_empty() && text.len() <= MAX_TEXT_BYTES);
        text.map(str::to_owned).ok_or_else(|| wrong(format!("{field} is no text of 1 to {MAX_TEXT_BYTES} bytes")))
    };
    let device = text("device")?.parse::<Sku>().map_err(|error| wrong(format!("device: {error}")))?;
    let precision = text("precision")?.to_ascii_lowercase();
    let precision = serde_json::from_value(Value::String(precision.clone()))
        .map_err(|_| wrong(format!("'{precision}' is no precision: fp32, tf32, fp16, bf16, int8, fp8 or best")))?;
    let batch = fields["batch"].as_u64().filter(|batch| *batch > 0);
    let batch = batch.ok_or_else(|| wrong(format!("batch is {}, and no number from 1", fields["batch"])))?;
    let median_ms = fields["median_ms"].as_f64().filter(|ms| ms.is_finite() && *ms > 0.0);
    let median_ms =
        median_ms.ok_or_else(|| wrong(format!("median_ms is {}, and no time in milliseconds", fields["median_ms"])))?;
    let model = fields.get(MODEL).filter(|model| !model.is_null()).map(|_| text(MODEL)).transpose()?;
    Ok(Imported { name: text("name")?, device, precision, batch, median_ms, source: text("source")?, model })
}

impl Imported {
    fn is_of_the_same(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.name.clone(), one.device.clone(), one.precision, one.batch, one.model.clone());
        of(self) == of(other)
    }

    /// As it is named beside what was measured; the mark is part of it.
    pub fn label(&self) -> String {
        format!("{} {} [imported: {}]", self.name, self.precision, self.source)
    }

    /// As people read it.
    pub fn words(&self) -> String {
        let model = self.model.as_ref().map(|model| format!(" of {model}")).unwrap_or_default();
        format!("{} for {} b{}{model}, {}", self.label(), self.device, self.batch, milliseconds(self.median_ms))
    }

    /// Whether it is a figure of the report's model and device kind.
    pub fn fits(&self, report: &Report) -> bool {
        let measured_on = report.foreign.as_ref().map_or(&report.sku, |foreign| &foreign.measured_on);
        self.device == *measured_on && self.model.as_ref().is_none_or(|model| *model == report.model.name)
    }

    /// How `report` stands to it, at its batch; `None` where the report has no figure to hold against it.
    pub fn against(&self, report: &Report) -> Option<Against> {
        if !self.fits(report) {
            return None;
        }
        let swept = report.batches.iter().flat_map(|batches| &batches.points);
        let swept = swept.filter(|point| u64::from(point.batch) == self.batch && !point.headline);
        let swept = swept.filter_map(|point| Some((point.latency_ms.as_ref()?.median, point.disturbed))).next();
        let headline =
            (report.batch == self.batch).then_some((report.latency_ms.median, report.wholly_disturbed().is_some()));
        let (median_ms, disturbed) = headline.or(swept)?;
        let hindrance = match () {
            () if report.simulated => Some("the report is simulated: its numbers are made up"),
            () if !report.accurate => Some("the engine's outputs are wrong, so its speed means nothing"),
            () if disturbed => Some("every window of the measurement was disturbed"),
            () => None,
        };
        let figure = format!(
            "{} against {}, imported from {}",
            milliseconds(median_ms),
            milliseconds(self.median_ms),
            self.source
        );
        let reason = match hindrance {
            Some(why) => format!("{why} ({figure})"),
            None => {
                format!("{figure}: how that was measured is not known here, so there is no interval and no verdict")
            }
        };
        let times = hindrance.is_none().then(|| self.median_ms / median_ms).filter(|times| times.is_finite());
        Some(Against { batch: self.batch, times, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disturbed, sample_report, with_ceilings_and_batches};

    const CSV: &str = "name,device,precision,batch,median_ms,source\n";

    fn one(batch: u64, median_ms: f64) -> Imported {
        let line = format!("{CSV}TensorRT,cpu-x86-64-v3,fp16,{batch},{median_ms},\"a table, page 3\"\n");
        parse(&line).unwrap().remove(0)
    }

    #[test]
    fn figures_are_read_from_csv_and_json_alike() {
        let figure = one(1, 2.5);
        assert_eq!(
            (figure.name.as_str(), figure.median_ms, figure.source.as_str()),
            ("TensorRT", 2.5, "a table, page 3")
        );
        assert_eq!(figure.model, None);
        let json = serde_json::to_string(&[&figure]).unwrap();
        assert_eq!(parse(&json).unwrap(), [figure]);
        let with_model = parse(&json.replace("\"batch\":1", "\"batch\":1,\"model\":\"net.onnx\"")).unwrap();
        assert_eq!(with_model[0].model.as_deref(), Some("net.onnx"));
        let quoted = parse(&format!("\u{feff}{CSV}\r\n\"a \"\"b\"\"\",t4,FP32,8,1,x\r\n")).unwrap();
        assert_eq!((quoted[0].name.as_str(), quoted[0].precision), ("a \"b\"", Precision::Fp32));
    }

    #[test]
    fn what_is_missing_or_wrong_is_said_with_its_place() {
        let line = |line: &str| format!("{CSV}{line}\n");
        let json = |fields: &str| format!("[{{{fields}}}]");
        for (text, said) in [
            (line("a,t4,fp32,1,,x"), "line 2 lacks median_ms"),
            (line("a,t4,fp32,1,2.0"), "line 2 lacks source"),
            (line("a,t4,fp33,1,2.0,x"), "'fp33' is no precision"),
            (line("a,t4,fp32,0,2.0,x"), "batch is 0"),
            (line("a,t4,fp32,1,-2,x"), "median_ms is -2"),
            (line("a,t4,fp32,1,fast,x"), "median_ms is \"fast\""),
            (line("a,t4,fp32,1,2.0,x,y"), "7 cells"),
            (line("a,t4,fp32,1,2.0,\"x"), "does not end"),
            (line("a,no sku,fp32,1,2.0,x"), "device: "),
            (line("a,t4,fp32,1,2.0,x\na,t4,fp32,1,3.0,y"), "line 3 is the same as line 2"),
            (
                "name,device,precision,batch,median_ms,source,p99\na,t4,fp32,1,2,x,3".into(),
                "'p99', which no figure has",
            ),
            (CSV.into(), "no figure"),
            ("nothing of it".into(), "neither JSON nor CSV"),
            ("[1]".into(), "it is no object"),
            ("[".into(), "neither JSON nor CSV"),
            (json(r#""name":"a","device":"t4","precision":"fp32","batch":1,"source":"x""#), "figure 1 lacks median_ms"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.to_string().contains(said), "{text}: {error}");
            assert!(error.hint().contains("median_ms, source"));
        }
    }

    #[test]
    fn a_figure_has_a_ratio_and_a_mark_and_no_verdict() {
        let report = sample_report(1.0);
        let figure = one(report.batch, report.latency_ms.median * 2.0);
        let against = figure.against(&report).unwrap();
        assert!((against.times.unwrap() - 2.0).abs() < 1e-9, "{against:?}");
        assert!(against.reason.contains("imported from a table, page 3") && against.reason.contains("no verdict"));
        assert!(figure.label().contains("[imported: a table, page 3]"));
        assert_eq!(one(7, 1.0).against(&report), None, "nothing was measured at that batch");
        let swept = with_ceilings_and_batches(sample_report(1.0));
        assert_eq!(one(8, 1.0).against(&swept).map(|against| against.batch), Some(8));
        let mut other = figure.clone();
        other.model = Some("another".into());
        assert_eq!(other.against(&report), None);
        other = figure.clone();
        other.device = "t4".parse().unwrap();
        assert_eq!(other.against(&report), None);
        let mut simulated = sample_report(1.0);
        simulated.simulated = true;
        for odd in [simulated, disturbed(sample_report(1.0))] {
            assert_eq!(figure.against(&odd).unwrap().times, None);
        }
    }
}
