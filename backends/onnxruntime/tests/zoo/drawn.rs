//! The zoo's files: graphs without weights, whose weights are drawn as they are read.
//!
//! A tensor that is drawn lies in a file of the name `drawn`, which there is not; `low` and `high` say between which
//! numbers. Of the n-th tensor drawn in a model (from 1, initializers before tensors of nodes, graphs within after their
//! nodes), element i is `low + u (high - low)`, with u the upper 24 bits of the i-th number that splitmix64 gives from
//! the state `n * 0x9e3779b97f4a7c15`, over 2^24.

use planforge_onnx::proto::{
    GraphProto, ModelProto, TensorProto,
    tensor_proto::{DataLocation, DataType},
};
use planforge_types::{DimRange, ElementType, HostTensor, NamedTensors, OptimizationProfile};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The number that makes the next state, and keeps seeds apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A line of `zoo.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    pub name: String,
    /// `ts` or `dynamo`.
    pub exporter: String,
    pub library: String,
    pub opset: i64,
    /// Whether the model leaves dimensions open.
    pub dynamic: bool,
    pub inputs: Vec<Input>,
    /// Whether it is run at every push.
    pub fast: bool,
}

/// Name, element type as numpy has it, shape, and the numbers it is drawn between.
#[derive(Clone, Debug, Deserialize)]
pub struct Input(pub String, pub String, pub Vec<usize>, pub f64, pub f64);

impl Entry {
    /// Name and exporter.
    pub fn title(&self) -> String {
        format!("{}.{}", self.name, self.exporter)
    }
}

/// Folder of the files.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/zoo/graphs")
}

/// Every model of the zoo.
pub fn entries() -> Vec<Entry> {
    let text = fs::read_to_string(folder().join("zoo.jsonl")).expect("the zoo has a list");
    text.lines().map(|line| serde_json::from_str(line).expect("a line names a model")).collect()
}

/// Numbers between nothing and one, by splitmix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn part(&mut self) -> f64 {
        (self.next() >> 40) as f64 / f64::from(1 << 24)
    }
}

fn draw(tensor: &mut TensorProto, count: &mut u64) {
    let value =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    if value("location") != Some("drawn") {
        return;
    }
    let bound = |key: &str| value(key).and_then(|text| text.parse::<f64>().ok()).expect("a drawn tensor has bounds");
    let (low, high) = (bound("low"), bound("high"));
    *count += 1;
    let mut draw = Draw(count.wrapping_mul(STEP));
    let elements: i64 = tensor.dims.iter().product();
    let numbers = (0..elements).map(|_| (low + draw.part() * (high - low)) as f32);
    let bytes: Vec<u8> = match tensor.data_type == DataType::Float16 as i32 {
        true => numbers.flat_map(|number| half::f16::from_f32(number).to_le_bytes()).collect(),
        false => numbers.flat_map(f32::to_le_bytes).collect(),
    };
    tensor.external_data.clear();
    tensor.data_location = DataLocation::Default as i32;
    tensor.raw_data = bytes.into();
}

fn draw_graph(graph: &mut GraphProto, count: &mut u64) {
    for tensor in &mut graph.initializer {
        draw(tensor, count);
    }
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            if let Some(tensor) = &mut attribute.t {
                draw(tensor, count);
            }
        }
    }
    let nested = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    for attribute in nested {
        for graph in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
            draw_graph(graph, count);
        }
    }
}

/// Writes the model of an entry with its weights, and says which of its inputs have open dimensions.
pub fn write(entry: &Entry, to: &Path) -> Result<BTreeMap<String, Vec<bool>>, Box<dyn Error>> {
    let packed = fs::File::open(folder().join(format!("{}.onnx.zst", entry.title())))?;
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(packed)?.read_to_end(&mut bytes)?;
    let mut model = <ModelProto as prost::Message>::decode(bytes.as_slice())?;
    let graph = model.graph.as_mut().ok_or("a model has a graph")?;
    draw_graph(graph, &mut 0);
    let open = graph.input.iter().map(|input| {
        use planforge_onnx::proto::{tensor_shape_proto::dimension::Value, type_proto};
        let shape = match input.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
            Some(type_proto::Value::TensorType(tensor)) => tensor.shape.clone().unwrap_or_default(),
            _ => Default::default(),
        };
        let dims = shape.dim.iter().map(|dim| !matches!(dim.value, Some(Value::DimValue(_)))).collect();
        (input.name.clone(), dims)
    });
    let open = open.collect();
    fs::write(to, prost::Message::encode_to_vec(&model))?;
    Ok(open)
}

/// Which inputs of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// Of the sizes that the model was exported with.
    Small,
    /// With every open dimension twice as large.
    Larger,
    /// Small ones that differ from the first, and from each other: other whole numbers, and floats of the lower half of their range, for what
    /// a network makes of noise depends on little more than its mean.
    Others(u8),
}

/// Inputs of an entry.
pub fn inputs(entry: &Entry, open: &BTreeMap<String, Vec<bool>>, draws: Draws) -> NamedTensors {
    let others = if let Draws::Others(which) = draws { u64::from(which) } else { 0 };
    let mut draw = Draw(1 + others);
    let mut tensors = NamedTensors::new();
    for Input(name, dtype, shape, low, high) in &entry.inputs {
        let is_open = |axis: usize| open.get(name).is_some_and(|open| open.get(axis) == Some(&true));
        let shape: Vec<usize> = shape
            .iter()
            .enumerate()
            .map(|(axis, &size)| if draws == Draws::Larger && is_open(axis) { 2 * size } else { size })
            .collect();
        let count: usize = shape.iter().product();
        let part = if others > 0 && dtype == "float32" { 0.5 } else { 1.0 };
        let mut number = || low + draw.part() * part * (high - low);
        let (element, bytes): (_, Vec<u8>) = match dtype.as_str() {
            "float32" => (ElementType::F32, (0..count).flat_map(|_| (number() as f32).to_le_bytes()).collect()),
            "int64" => (ElementType::I64, (0..count).flat_map(|_| (number().floor() as i64).to_le_bytes()).collect()),
            "int32" => (ElementType::I32, (0..count).flat_map(|_| (number().floor() as i32).to_le_bytes()).collect()),
            "bool" => (ElementType::Bool, (0..count).map(|_| u8::from(number() >= 1.0)).collect()),
            other => panic!("{}: an input of {other}", entry.title()),
        };
        tensors.insert(name.clone(), HostTensor { element, shape, bytes });
    }
    tensors
}

/// A profile in which open dimensions go from what an entry's inputs have to twice as much; `None` where none is open.
pub fn profile(entry: &Entry, open: &BTreeMap<String, Vec<bool>>) -> Option<OptimizationProfile> {
    let inputs = entry.inputs.iter().map(|Input(name, _, shape, ..)| {
        let dims = shape.iter().enumerate().map(|(axis, &size)| {
            let is_open = open.get(name).is_some_and(|open| open.get(axis) == Some(&true));
            let size = size as u64;
            DimRange { min: size, opt: size, max: if is_open { 2 * size } else { size } }
        });
        (name.clone(), dims.collect())
    });
    let profile = OptimizationProfile { inputs: inputs.collect() };
    profile.varies().then_some(profile)
}
