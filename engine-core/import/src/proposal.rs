//! Shapes that a model with open dimensions can be built at, in the words of `--shapes`.
//!
//! A size is what was given, else what the graph says of the dimension, else what is usual for one of its name and place.
//! Where the model does not take the sizes, a few others are tried; what is proposed was imported whenever one of them
//! could be.

use crate::{
    declared::{element_number, inputs, open_dims},
    element_type,
    solve::Solution,
};
use planforge_graph::shape::{DeclaredDim, is_float, sum};
use planforge_onnx::{Model, proto::ValueInfoProto};
use planforge_types::{DimRange, OptimizationProfile};
use std::collections::BTreeMap;

/// Sizes that are tried for everything that is neither given nor said by the graph nor a batch.
const OTHERS: [u64; 9] = [224, 32, 28, 64, 256, 512, 640, 16_000, 1];
/// Nodes that all trials together may import; a model of half as many is tried twice.
const MAX_TRIED_NODES: usize = 50_000;
/// Most dimensions that `--shapes` takes.
const MAX_RANK: usize = 8;
/// What stands in a name of an input that no shell changes.
const PLAIN: &str = "_./:-,";

/// An input and its dimensions with the sizes that are proposed.
struct Sized<'a> {
    name: &'a str,
    dims: Vec<(DeclaredDim, u64)>,
}

impl Sized<'_> {
    fn is_open(&self) -> bool {
        self.dims.iter().any(|(dim, _)| !matches!(dim, DeclaredDim::Size(_)))
    }
}

/// One line for `--shapes`, if the model can be proposed any. `fits` tries a profile.
pub fn propose(
    model: &Model,
    solution: &Solution,
    given: Option<&OptimizationProfile>,
    fits: &mut dyn FnMut(&OptimizationProfile) -> bool,
) -> Option<String> {
    let nodes = model.graph().node.len().max(1);
    let tries = (MAX_TRIED_NODES / nodes).min(2 * (1 + OTHERS.len()));
    let others = || std::iter::once(None).chain(OTHERS.iter().copied().map(Some));
    // Given sizes may be what does not fit.
    let kept = given.into_iter().flat_map(|given| others().map(move |other| (Some(given), other)));
    let mut first = None;
    for (given, other) in kept.chain(others().map(|other| (None, other))).take(tries.max(1)) {
        let sized = sizes(model, solution, given, other)?;
        let shapes = sized.iter().filter(|input| input.is_open());
        let range = |size: u64| DimRange { min: size, opt: size, max: size };
        let dims = |input: &Sized<'_>| input.dims.iter().map(|(_, size)| range(*size)).collect();
        let profile =
            OptimizationProfile { inputs: shapes.map(|input| (input.name.to_owned(), dims(input))).collect() };
        let text = words(&sized)?;
        if fits(&profile) {
            return Some(text);
        }
        first.get_or_insert(text);
    }
    first
}

/// Sizes of all inputs; `None` where an input has no rank, or one that cannot be given.
fn sizes<'a>(
    model: &'a Model,
    solution: &Solution,
    given: Option<&OptimizationProfile>,
    other: Option<u64>,
) -> Option<Vec<Sized<'a>>> {
    let mut symbols: BTreeMap<String, u64> = BTreeMap::new();
    let mut classes: BTreeMap<usize, u64> = BTreeMap::new();
    let inputs: Vec<(&ValueInfoProto, Vec<DeclaredDim>)> =
        inputs(model.graph()).into_iter().map(|info| Some((info, open_dims(info)?))).collect::<Option<_>>()?;
    let given = |name: &str, axis: usize, rank: usize| {
        let ranges = given.and_then(|given| given.inputs.get(name)).filter(|ranges| ranges.len() == rank)?;
        Some(ranges[axis].opt)
    };
    // What is given decides for all dimensions of its name.
    for (info, dims) in &inputs {
        for (axis, dim) in dims.iter().enumerate() {
            if let (DeclaredDim::Symbol(symbol), Some(size)) = (dim, given(&info.name, axis, dims.len())) {
                symbols.entry(symbol.clone()).or_insert(size);
            }
        }
    }
    let mut sized: Vec<Sized<'a>> = Vec::new();
    // Sums of other names come when those are known.
    for sums in [false, true] {
        for (place, (info, dims)) in inputs.iter().enumerate() {
            if dims.len() > MAX_RANK {
                return None;
            }
            if !sums {
                sized.push(Sized { name: &info.name, dims: dims.iter().map(|dim| (dim.clone(), 0)).collect() });
            }
            for (axis, dim) in dims.iter().enumerate() {
                let symbol = match dim {
                    DeclaredDim::Size(size) => {
                        sized[place].dims[axis].1 = u64::try_from(*size).ok()?;
                        continue;
                    }
                    DeclaredDim::Symbol(symbol) => Some(symbol.as_str()),
                    DeclaredDim::Unknown => None,
                };
                if symbol.is_some_and(|symbol| symbol.contains('+')) != sums {
                    continue;
                }
                let class = solution.class(&info.name, axis);
                let likely = solution.likely(&info.name, axis).and_then(|size| u64::try_from(size).ok());
                let known = given(&info.name, axis, dims.len())
                    .or_else(|| symbols.get(symbol?).copied())
                    .or(likely)
                    .or_else(|| sum(symbol?, &symbols))
                    .or_else(|| classes.get(&class?).copied());
                let size = known.unwrap_or_else(|| {
                    let element = element_type(element_number(info)).ok();
                    let usual = usual(symbol.unwrap_or_default(), element.is_some_and(is_float), dims.len(), axis);
                    if usual == 1 { 1 } else { other.unwrap_or(usual) }
                });
                if size == 0 {
                    return None;
                }
                symbols.extend(symbol.map(|symbol| (symbol.to_owned(), size)));
                classes.extend(class.map(|class| (class, size)));
                sized[place].dims[axis].1 = size;
            }
        }
    }
    Some(sized)
}

/// What is usual for a dimension of this name, in an input of this rank.
fn usual(symbol: &str, is_float: bool, rank: usize, axis: usize) -> u64 {
    let name = symbol.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if has(&["batch"]) || ["n", "b", "bs"].contains(&name.as_str()) {
        1
    } else if has(&["channel"]) {
        3
    } else if has(&["height", "width"]) || ["h", "w"].contains(&name.as_str()) {
        224
    } else if has(&["seq", "len", "token", "time", "frame", "step"]) {
        128
    } else {
        match (axis, rank) {
            (0, _) => 1,
            (1, 4 | 5) if is_float => 3,
            (_, 4) if is_float => 224,
            (2, 5) => 16,
            (_, 5) => 112,
            _ => 128,
        }
    }
}

/// The open inputs in the words of `--shapes`. One whose every open dimension has a name that stands before follows.
fn words(sized: &[Sized<'_>]) -> Option<String> {
    let mut said: Vec<&str> = Vec::new();
    let mut parts = Vec::new();
    for input in sized.iter().filter(|input| input.is_open()) {
        let follows = input.dims.iter().all(|(dim, _)| match dim {
            DeclaredDim::Size(_) => true,
            DeclaredDim::Symbol(symbol) => said.contains(&symbol.as_str()),
            DeclaredDim::Unknown => false,
        });
        if follows {
            continue;
        }
        if input.name.is_empty() || input.name.contains([',', '\'']) || input.name.chars().any(char::is_control) {
            return None;
        }
        let sizes: Vec<String> = input.dims.iter().map(|(_, size)| size.to_string()).collect();
        parts.push(format!("{}:{}", input.name, sizes.join("x")));
        said.extend(input.dims.iter().filter_map(|(dim, _)| match dim {
            DeclaredDim::Symbol(symbol) => Some(symbol.as_str()),
            _ => None,
        }));
    }
    let text = parts.join(",");
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || PLAIN.contains(letter));
    match (text.is_empty(), is_plain) {
        (true, _) => None,
        (_, true) => Some(text),
        (_, false) => Some(format!("'{text}'")),
    }
}
