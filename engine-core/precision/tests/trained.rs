//! Three networks that `tests/trained/train.py` trained: what 8-bit integers cost of what each is good for.

#![expect(clippy::print_stdout, reason = "what was lost is shown: in CI, and with --no-capture")]

use planforge_identity::npz;
use planforge_onnx::Model;
use planforge_precision::{Kind, Method, Options, Reference, Runner as _, Samples, Seen, Target, ports, prepare};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use prost::Message as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/trained").join(name)
}

/// What a run of the training script measured of a network.
fn measured_there(network: &str, what: &str) -> f64 {
    let text = std::fs::read_to_string(file("training.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_str(&text).unwrap();
    facts[network][what].as_f64().unwrap()
}

fn floats(tensor: &HostTensor) -> Vec<f32> {
    tensor.bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// A network with what it is tested on.
struct Network {
    name: &'static str,
    model: Model,
    /// The input alone.
    given: NamedTensors,
    known: HostTensor,
}

impl Network {
    fn open(name: &'static str, known: &str) -> Self {
        let mut given = npz::read(&file(&format!("{name}-test.npz"))).unwrap();
        let known = given.remove(known).unwrap();
        Self { name, model: Model::open(&file(&format!("{name}.onnx"))).unwrap(), given, known }
    }

    /// In 8 bits, calibrated on 100 rows of other data than it is tested on.
    fn in_int8(&self) -> Model {
        let rows = npz::read(&file(&format!("{}-calibration.npz", self.name))).unwrap();
        let samples = Samples::fit(rows, &ports(&self.model)).unwrap();
        let options = Options::new(Kind::Int8, Target::Any);
        let prepared = prepare(&self.model, Some(&samples), None, &options, &Reference).unwrap();
        let coverage = &prepared.report.coverage;
        assert!(coverage.layers_lowered * 10 >= coverage.layers * 9, "{coverage:?}");
        Model::from_bytes(prepared.proto.encode_to_vec().into()).unwrap()
    }

    /// What the model tells of each row.
    fn told_by(&self, model: &Model) -> Vec<Vec<f32>> {
        let mut session = Reference.open(model, None, &BTreeSet::new(), 1).unwrap();
        let (name, given) = self.given.iter().next().unwrap();
        let rows = given.shape[0];
        let row_bytes = given.bytes.len() / rows;
        let told = given.bytes.chunks_exact(row_bytes).map(|row| {
            let mut shape = given.shape.clone();
            shape[0] = 1;
            let row = HostTensor { element: given.element, shape, bytes: row.to_vec() };
            let outputs = session.run(&[(name.clone(), row)].into(), &mut |_| {}).unwrap();
            floats(outputs.values().next().unwrap())
        });
        told.collect()
    }

    fn labels(&self) -> Vec<usize> {
        self.known.bytes.chunks_exact(8).map(|eight| i64::from_le_bytes(eight.try_into().unwrap()) as usize).collect()
    }
}

fn best(scores: &[f32]) -> usize {
    (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap()
}

#[test]
fn scales_are_those_of_the_model_as_it_was_though_another_was_looked_at() {
    for name in ["shapes", "boxes", "letters"] {
        let model = Model::open(&file(&format!("{name}.onnx"))).unwrap();
        let mut rows = npz::read(&file(&format!("{name}-calibration.npz"))).unwrap();
        for tensor in rows.values_mut() {
            let row = tensor.bytes.len() / tensor.shape[0];
            tensor.shape[0] = 8;
            tensor.bytes.truncate(8 * row);
        }
        let samples = Samples::fit(rows, &ports(&model)).unwrap();
        let options = Options { method: Method::MinMax, ..Options::new(Kind::Int8, Target::Any) };
        let prepared = prepare(&model, Some(&samples), None, &options, &Reference).unwrap();
        let changed = (prepared.report.folded.len(), prepared.report.equalized.len());
        assert!(name != "shapes" || changed.0 > 0 && changed.1 > 0, "{name}: {changed:?}");
        let values = model.proto.graph.as_ref().unwrap().node.iter().flat_map(|node| node.output.clone());
        let watched: BTreeSet<String> = values.collect();
        let mut session = Reference.open(&model, samples.profile().as_ref(), &watched, samples.batches()).unwrap();
        let mut largest = BTreeMap::new();
        for batch in 0..samples.batches() {
            let see = &mut |all: &[Seen<'_>]| {
                for seen in all.iter().filter(|seen| seen.element == ElementType::F32) {
                    let most = largest.entry(seen.name.to_owned()).or_insert(0.0_f32);
                    *most = seen.values().iter().fold(*most, |most, value| most.max(value.abs()));
                }
            };
            session.run(&samples.inputs(batch), see).unwrap();
        }
        // What an activation alone reads may be cut as it cuts it.
        let nodes = &model.proto.graph.as_ref().unwrap().node;
        let behind = |value: &String| {
            let mut readers = nodes.iter().filter(|node| node.input.contains(value));
            let only = readers.next().filter(|_| readers.next().is_none())?;
            matches!(only.op_type.as_str(), "Relu" | "Clip").then(|| only.output[0].clone())
        };
        let (mut compared, mut cut) = (0, 0);
        for value in largest.keys() {
            let behind = behind(value);
            cut += usize::from(behind.is_some());
            let largest = largest[behind.as_ref().unwrap_or(value)];
            let Some(scale) = prepared.scales.get(value) else { continue };
            assert!((scale * 127.0 / largest - 1.0).abs() < 1e-3, "{name}: {value}: {} of {largest}", scale * 127.0);
            compared += 1;
        }
        assert!(compared > 10 && (cut > 0 || name == "letters"), "{name}: {compared}, {cut}");
        println!("{name}: {compared} scales, {} folded, {} evened out", changed.0, changed.1);
    }
}

#[test]
fn a_residual_network_stays_as_often_right() {
    let network = Network::open("shapes", "labels");
    let labels = network.labels();
    let right = |model: &Model| {
        let told = network.told_by(model);
        told.iter().zip(&labels).filter(|(scores, label)| best(scores) == **label).count() as f64 / labels.len() as f64
    };
    let (before, after) = (right(&network.model), right(&network.in_int8()));
    println!("shapes: top-1 {before:.4} before, {after:.4} after");
    assert!((before - measured_there("shapes", "top1")).abs() < 0.005, "{before}");
    assert!(before > 0.9 && after >= 0.99 * before, "{before} before, {after} after");
}

const GRID: usize = 8;
const CELL: f32 = 4.0;
const KINDS: usize = 3;

/// A shape's kind, and left, top, right and bottom of its box in pixels.
type Drawn = (usize, [f32; 4]);

fn overlap(one: &[f32; 4], other: &[f32; 4]) -> f32 {
    let area = |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let shared = [one[0].max(other[0]), one[1].max(other[1]), one[2].min(other[2]), one[3].min(other[3])];
    area(shared) / (area(*one) + area(*other) - area(shared)).max(f32::MIN_POSITIVE)
}

/// The shapes that the cells tell of, without those that a likelier one covers.
fn found(cells: &[f32]) -> Vec<Drawn> {
    let at = |channel: usize, cell: usize| cells[channel * GRID * GRID + cell];
    let mut likely: Vec<usize> = (0..GRID * GRID).filter(|cell| at(0, *cell) > 0.5).collect();
    likely.sort_by(|one, other| at(0, *other).total_cmp(&at(0, *one)));
    let mut kept: Vec<Drawn> = Vec::new();
    for cell in likely {
        let kind = best(&(0..KINDS).map(|kind| at(1 + kind, cell)).collect::<Vec<_>>());
        let [x, y, width, height] = [0, 1, 2, 3].map(|part| at(1 + KINDS + part, cell));
        let (x, y) = ((x + (cell % GRID) as f32) * CELL, (y + (cell / GRID) as f32) * CELL);
        let (half_width, half_height) = (width * CELL / 2.0, height * CELL / 2.0);
        let here = [x - half_width, y - half_height, x + half_width, y + half_height];
        if kept.iter().all(|(_, other)| overlap(&here, other) < 0.45) {
            kept.push((kind, here));
        }
    }
    kept
}

#[test]
fn a_detector_finds_as_many_shapes() {
    let network = Network::open("boxes", "boxes");
    let per_image = network.known.shape[1] * 5;
    let drawn: Vec<Vec<Drawn>> = floats(&network.known)
        .chunks_exact(per_image)
        .map(|image| {
            let shapes = image.chunks_exact(5).filter(|shape| shape[0] >= 0.0);
            shapes.map(|shape| (shape[0] as usize, [shape[1], shape[2], shape[3], shape[4]])).collect()
        })
        .collect();
    let f1 = |model: &Model| {
        let (mut hits, mut told, mut there) = (0_usize, 0_usize, 0_usize);
        for (cells, drawn) in network.told_by(model).iter().zip(&drawn) {
            let mut left = drawn.clone();
            for (kind, here) in found(cells) {
                told += 1;
                let hit = left.iter().position(|(other, place)| kind == *other && overlap(&here, place) >= 0.5);
                hits += usize::from(hit.map(|hit| left.swap_remove(hit)).is_some());
            }
            there += drawn.len();
        }
        2.0 * hits as f64 / (told + there) as f64
    };
    let (before, after) = (f1(&network.model), f1(&network.in_int8()));
    println!("boxes: F1 {before:.4} before, {after:.4} after");
    assert!(before > 0.8 && after >= 0.99 * before, "{before} before, {after} after");
}

#[test]
fn a_language_model_needs_hardly_more_bits_for_a_character() {
    let network = Network::open("letters", "labels");
    let labels = network.labels();
    let bits = |model: &Model| {
        let of_row = |(scores, label): (&Vec<f32>, &usize)| {
            let most = f64::from(scores.iter().copied().fold(f32::MIN, f32::max));
            let sum: f64 = scores.iter().map(|score| (f64::from(*score) - most).exp()).sum();
            (sum.ln() + most - f64::from(scores[*label])) / std::f64::consts::LN_2
        };
        network.told_by(model).iter().zip(&labels).map(of_row).sum::<f64>() / labels.len() as f64
    };
    let (before, after) = (bits(&network.model), bits(&network.in_int8()));
    println!("letters: {before:.4} bits a character before, {after:.4} after");
    assert!((before - measured_there("letters", "bits_per_character")).abs() < 0.01, "{before}");
    assert!(before < 3.0 && after <= 1.01 * before, "{before} before, {after} after");
}
