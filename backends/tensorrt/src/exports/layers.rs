//! `--exportLayerInfo`: the engine inspector's list of layers.
//!
//! A plan built without detailed verbosity lists names alone, which is said plainly. Up to 10.x tensors carry
//! `Format/Datatype` and the file ends with `Bindings`; 11 splits format from type and ends with `I/O Tensors`.

use super::{
    ExportError,
    lexer::{Lexer, Token},
    names,
    types::{element_bits, element_of, format_of},
};
use std::{
    collections::BTreeMap,
    io::{self, Read},
};

/// More layers than any engine has.
const MAX_LAYERS: usize = 100_000;
/// Texts of all layers together.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Deepest nesting of a layer's description.
const MAX_DEPTH: usize = 32;
/// Values of one layer's description.
const MAX_VALUES: usize = 1 << 16;
/// Texts of one layer's description.
const MAX_LAYER_BYTES: usize = 4 << 20;
/// Tensors at one side of a layer, and of the engine.
const MAX_TENSORS: usize = 4096;
/// Longest text that is kept of a layer.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// How much the plan's builder wrote down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// No layer at all.
    #[default]
    Nothing,
    /// Names, so that neither precision nor format nor tactic is known.
    NamesOnly,
    Detailed,
}

/// An engine's layers and edges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerInfo {
    pub detail: Detail,
    pub layers: Vec<Layer>,
    /// Inputs and outputs of the engine; names alone up to 10.x.
    pub edges: Vec<IoTensor>,
    /// Layers beyond what is kept, or of which a part was.
    pub left_out: u64,
}

impl LayerInfo {
    /// Bytes of the weights that layers list, by element type. Fused kernels list none, so this is a lower bound.
    pub fn weight_bytes(&self) -> BTreeMap<String, u64> {
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        for weights in self.layers.iter().flat_map(|layer| &layer.weights) {
            let sum = bytes.entry(weights.element.clone()).or_default();
            *sum = sum.saturating_add(weights.bytes.unwrap_or(0));
        }
        bytes
    }
}

/// One layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    pub name: String,
    /// What runs it: `CaskConvolution`, `kgen`, `Reformat`, ...
    pub kind: Option<String>,
    /// What it does: `Convolution`, `Pooling`, ...
    pub parameter: Option<String>,
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// Name of the tactic, or its number where it has none.
    pub tactic: Option<String>,
    /// Stream it runs on beside the main one.
    pub stream: Option<u32>,
    /// The model's nodes that it computes: from its metadata, or else from its name.
    pub nodes: Vec<String>,
    pub weights: Vec<Weights>,
    /// Type it computes in, as far as the description tells.
    pub precision: Option<String>,
}

impl Layer {
    /// `fp16:NHWC8 -> fp16:NHWC8`; `None` where nothing is known.
    pub fn formats(&self) -> Option<String> {
        // Fused kernels have many tensors; the distinct formats tell enough.
        const MOST: usize = 4;
        let side = |tensors: &[TensorInfo]| {
            let mut seen: Vec<String> = Vec::new();
            for text in tensors.iter().filter_map(TensorInfo::short) {
                if !seen.contains(&text) {
                    seen.push(text);
                }
            }
            if seen.len() > MOST {
                seen.truncate(MOST);
                seen.push("...".to_owned());
            }
            seen.join(", ")
        };
        let (inputs, outputs) = (side(&self.inputs), side(&self.outputs));
        (!inputs.is_empty() || !outputs.is_empty()).then(|| format!("{inputs} -> {outputs}"))
    }
}

/// A tensor at a layer's side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorInfo {
    pub name: String,
    /// Dimensions that vary are -1.
    pub dimensions: Vec<i64>,
    /// `fp16`, `int8`, ...; `None` where the description has no type that is known.
    pub element: Option<&'static str>,
    /// `linear`, `NHWC8`, `CHW32`, ...; empty where only a type is told.
    pub format: String,
}

impl TensorInfo {
    fn short(&self) -> Option<String> {
        match (self.element, self.format.as_str()) {
            (None, "") => None,
            (None, format) => Some(format.to_owned()),
            (Some(element), "") => Some(element.to_owned()),
            (Some(element), format) => Some(format!("{element}:{format}")),
        }
    }
}

/// Constants of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// `Weights`, `Bias`, ...
    pub role: String,
    pub element: String,
    pub count: u64,
    /// `None` where the type's size is not known.
    pub bytes: Option<u64>,
}

/// An input or output of the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoTensor {
    pub name: String,
    /// `Some(true)` for an input; from 11 on.
    pub input: Option<bool>,
    pub element: Option<&'static str>,
    pub dimensions: Vec<i64>,
}

/// Reads the file, whatever its generation.
pub fn read_layer_info(source: impl Read) -> Result<LayerInfo, ExportError> {
    const EXPECTED: &str = "layer info";
    let mut lexer = Lexer::escaped(source);
    if lexer.next()? != Token::Open(b'{') {
        return Err(ExportError::NotJson { expected: EXPECTED });
    }
    let mut info = LayerInfo::default();
    let mut kept_bytes = 0usize;
    let mut key = String::new();
    let mut found = false;
    loop {
        match lexer.next()? {
            Token::End | Token::Close(b'}') => break,
            Token::Text(text) => key = text,
            Token::Open(b'[') if key == "Layers" => {
                found = true;
                each_value(&mut lexer, |value, cut| {
                    let layer = layer_of(&value);
                    kept_bytes = kept_bytes.saturating_add(weight_of(&layer));
                    info.left_out += u64::from(cut);
                    if info.layers.len() < MAX_LAYERS && kept_bytes <= MAX_KEPT_BYTES {
                        let detail = if matches!(value, Value::Map(_)) { Detail::Detailed } else { Detail::NamesOnly };
                        info.detail = if info.detail == Detail::Detailed { Detail::Detailed } else { detail };
                        info.layers.push(layer);
                    } else {
                        info.left_out += 1;
                    }
                })?;
                key.clear();
            }
            Token::Open(b'[') if key == "Bindings" || key == "I/O Tensors" => {
                found = true;
                each_value(&mut lexer, |value, _| {
                    if info.edges.len() < MAX_TENSORS {
                        info.edges.push(edge_of(&value));
                    }
                })?;
                key.clear();
            }
            Token::Open(_) => skip(&mut lexer)?,
            _ => {}
        }
    }
    if found { Ok(info) } else { Err(ExportError::Nothing { expected: EXPECTED }) }
}

/// A description as a tree.
#[derive(Debug)]
enum Value {
    Text(String),
    Number(f64),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    Other,
}

impl Value {
    fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(fields) => fields.iter().find_map(|(name, value)| (name == key).then_some(value)),
            _ => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Self::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    fn list(&self, key: &str) -> &[Self] {
        match self.get(key) {
            Some(Self::List(values)) => values,
            _ => &[],
        }
    }
}

/// What is left of the bounds of one layer's description.
struct Room {
    values: usize,
    bytes: usize,
    cut: bool,
}

/// Calls `take` with every value of a list after its opening bracket, and whether a part of it was left out.
fn each_value<R: Read>(lexer: &mut Lexer<R>, mut take: impl FnMut(Value, bool)) -> io::Result<()> {
    loop {
        let token = lexer.next()?;
        match token {
            Token::End | Token::Close(_) => return Ok(()),
            Token::Comma | Token::Colon => {}
            token => {
                let mut room = Room { values: MAX_VALUES, bytes: MAX_LAYER_BYTES, cut: false };
                let value = value_of(lexer, token, 0, &mut room)?;
                take(value, room.cut);
            }
        }
    }
}

/// The value that begins with `token`.
fn value_of<R: Read>(lexer: &mut Lexer<R>, token: Token, depth: usize, room: &mut Room) -> io::Result<Value> {
    let open = match token {
        Token::Text(text) => {
            room.bytes = room.bytes.saturating_sub(text.len());
            return Ok(Value::Text(text));
        }
        Token::Number(number) => return Ok(Value::Number(number)),
        Token::Open(open) => open,
        _ => return Ok(Value::Other),
    };
    if depth >= MAX_DEPTH {
        room.cut = true;
        skip(lexer)?;
        return Ok(Value::Other);
    }
    let mut list = Vec::new();
    let mut fields = Vec::new();
    let mut key: Option<String> = None;
    let mut after_colon = false;
    loop {
        let token = lexer.next()?;
        match token {
            Token::End | Token::Close(_) => break,
            Token::Comma => (key, after_colon) = (None, false),
            Token::Colon => after_colon = true,
            Token::Text(text) if open == b'{' && !after_colon => key = Some(text),
            token => {
                let value = value_of(lexer, token, depth + 1, room)?;
                if room.values == 0 || room.bytes == 0 {
                    room.cut = true;
                    continue;
                }
                room.values -= 1;
                if open == b'[' {
                    list.push(value);
                } else if let Some(key) = key.take() {
                    room.bytes = room.bytes.saturating_sub(key.len());
                    fields.push((key, value));
                }
                after_colon = false;
            }
        }
    }
    Ok(if open == b'[' { Value::List(list) } else { Value::Map(fields) })
}

/// Passes over the rest of a list or object whose opening bracket was read.
fn skip<R: Read>(lexer: &mut Lexer<R>) -> io::Result<()> {
    let mut depth = 1u64;
    while depth > 0 {
        match lexer.next()? {
            Token::End => return Ok(()),
            Token::Open(_) => depth += 1,
            Token::Close(_) => depth -= 1,
            _ => {}
        }
    }
    Ok(())
}

fn layer_of(value: &Value) -> Layer {
    if let Value::Text(name) = value {
        return Layer { name: cut(name), nodes: names::nodes_of_name(name), ..Layer::default() };
    }
    let text = |key: &str| value.text(key).map(cut);
    let name = text("Name").unwrap_or_default();
    let tensors = |key: &str| value.list(key).iter().take(MAX_TENSORS).map(tensor_of).collect::<Vec<_>>();
    let mut nodes = value.text("Metadata").map(names::nodes_of_metadata).unwrap_or_default();
    if nodes.is_empty() {
        nodes = names::nodes_of_name(&name);
    }
    let mut layer = Layer {
        kind: text("LayerType"),
        parameter: text("ParameterType"),
        inputs: tensors("Inputs"),
        outputs: tensors("Outputs"),
        tactic: text("TacticName").or_else(|| text("TacticValue")),
        stream: match value.get("StreamId") {
            Some(Value::Number(stream)) if *stream >= 0.0 => Some(*stream as u32),
            _ => None,
        },
        weights: weights_of(value),
        nodes,
        name,
        precision: None,
    };
    layer.precision = value.text("Precision").and_then(element_of).map(str::to_owned).or_else(|| precision_of(&layer));
    layer
}

fn tensor_of(value: &Value) -> TensorInfo {
    let both = value.text("Format/Datatype");
    let element = value.text("DataType").or(value.text("Datatype")).or(both).and_then(element_of);
    let format = value.text("Format").or(both).unwrap_or_default();
    TensorInfo {
        name: value.text("Name").map(cut).unwrap_or_default(),
        dimensions: dimensions_of(value),
        element: element.or_else(|| element_of(format)),
        format: cut(&format_of(format)),
    }
}

fn edge_of(value: &Value) -> IoTensor {
    match value {
        Value::Text(name) => IoTensor { name: cut(name), ..IoTensor::default() },
        value => IoTensor {
            name: value.text("Name").map(cut).unwrap_or_default(),
            input: value.text("IOMode").map(|mode| mode.to_ascii_lowercase().contains("input")),
            element: value.text("DataType").and_then(element_of),
            dimensions: dimensions_of(value),
        },
    }
}

fn dimensions_of(value: &Value) -> Vec<i64> {
    // More than TensorRT has.
    const MOST: usize = 64;
    let sizes = value.list("Dimensions").iter().take(MOST).filter_map(|size| match size {
        Value::Number(size) if size.is_finite() => Some(*size as i64),
        _ => None,
    });
    sizes.collect()
}

/// Every `{"Type": ..., "Count": ...}` of a layer.
fn weights_of(value: &Value) -> Vec<Weights> {
    let Value::Map(fields) = value else { return Vec::new() };
    let weights = fields.iter().filter_map(|(role, value)| {
        let described = value.text("Type")?;
        let Some(Value::Number(count)) = value.get("Count") else { return None };
        if !(*count > 0.0 && *count < 1e15) {
            return None;
        }
        let element = element_of(described).map_or_else(|| described.to_ascii_lowercase(), str::to_owned);
        let count = *count as u64;
        let bytes = element_bits(&element).map(|bits| (count * bits).div_ceil(8));
        Some(Weights { role: cut(role), element: cut(&element), count, bytes })
    });
    // Roles are few; a hostile file repeats them.
    const MOST: usize = 64;
    weights.take(MOST).collect()
}

/// The type a layer computes in: its weights', or else what it reads and writes.
fn precision_of(layer: &Layer) -> Option<String> {
    let element = match layer.weights.first() {
        Some(weights) => weights.element.as_str(),
        None => {
            let of = |tensors: &[TensorInfo]| {
                let known = tensors.iter().filter_map(|tensor| tensor.element);
                let computed = |element: &&str| !matches!(*element, "int32" | "int64" | "bool");
                known.clone().find(computed).or_else(|| known.clone().next())
            };
            let copies = layer.kind.as_deref() == Some("Reformat") || layer.parameter.as_deref() == Some("Reformat");
            let (inputs, outputs) = (of(&layer.inputs), of(&layer.outputs));
            if copies { outputs.or(inputs)? } else { inputs.or(outputs)? }
        }
    };
    let tensor_float = element == "fp32" && layer.tactic.as_deref().is_some_and(|tactic| tactic.contains("tf32"));
    Some(if tensor_float { "tf32" } else { element }.to_owned())
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

/// Bytes that a layer's texts take.
fn weight_of(layer: &Layer) -> usize {
    let tensors = layer.inputs.iter().chain(&layer.outputs);
    let tensors: usize = tensors.map(|tensor| tensor.name.len() + 8 * tensor.dimensions.len() + 96).sum();
    let nodes: usize = layer.nodes.iter().map(|node| node.len() + 24).sum();
    layer.name.len() + tensors + nodes + layer.tactic.as_deref().map_or(0, str::len) + 96 * layer.weights.len()
}
