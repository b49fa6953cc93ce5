//! Computes the operators of what follows a program: large ones by an engine of one step each, kept for the next run
//! of the same sizes; small ones, and those that no kernel computes, by their reference implementation.
//!
//! Constants stay where they are, so what is known of them (weights turned and packed) is worked out once.

use crate::{
    assemble::{WeightPlan, assemble},
    engine::Engine,
    lower::lower,
    memory::{AlignedBytes, Weights},
    program::{Program, StepKind},
    specialize::follow,
};
use bytes::Bytes;
use planforge_graph::{
    interpreter,
    ir::{Computer, ElementType, Graph, NamedOp, Node, Op, Output, Sized, Tensor},
    shape::TensorType,
};
use planforge_import::Fragment;
use planforge_kernels_cpu::{
    isa::Isa,
    pool::ThreadPool,
    regions::{RoiAlign, roi_align},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Cursor,
    sync::{Arc, Mutex, PoisonError},
};

/// Elements, of inputs and outputs together, from which on an engine is worth its copies.
const LARGE_ELEMENTS: usize = 1 << 14;
/// The same of products and convolutions.
const LARGE_PRODUCT_ELEMENTS: usize = 1 << 11;
/// Memory of the engines that are kept.
const KEPT_BYTES: u64 = 512 << 20;
/// Most engines that are kept.
const KEPT_ENGINES: usize = 256;
/// Memory of results that follow from constants alone.
const MEMO_BYTES: u64 = 1 << 30;

/// An engine of one operator; absent where no kernel computes it.
struct Kept {
    engine: Option<Engine>,
    bytes: u64,
    used: u64,
}

#[derive(Default)]
struct Inner {
    engines: BTreeMap<String, Kept>,
    engine_bytes: u64,
    /// Results of constants.
    memo: BTreeMap<String, Vec<Tensor>>,
    memo_bytes: u64,
    /// Where constants lie.
    stable: BTreeSet<(usize, usize)>,
    /// Holds them there.
    constants: Vec<Tensor>,
    clock: u64,
}

/// See the module.
pub(crate) struct TailKernels {
    isa: Isa,
    pool: Arc<ThreadPool>,
    inner: Mutex<Inner>,
}

fn place(tensor: &Tensor) -> (usize, usize) {
    (tensor.bytes().as_ptr() as usize, tensor.bytes().len())
}

fn types(outputs: &[Sized]) -> Vec<TensorType> {
    outputs.iter().map(|(element, shape)| TensorType::new(*element, shape.clone())).collect()
}

fn plainly(op: &Op, inputs: &[Option<&Tensor>], outputs: &[Sized]) -> Result<Vec<Tensor>, String> {
    interpreter::run(op, inputs, &types(outputs)).map_err(|error| error.to_string())
}

/// Operators that the reference computes as fast as anything.
fn is_free(op: &Op) -> bool {
    matches!(op, Op::Identity | Op::Reshape)
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_))
}

impl TailKernels {
    pub(crate) fn new(isa: Isa, pool: Arc<ThreadPool>, fragment: &Fragment) -> Self {
        let kernels = Self { isa, pool, inner: Mutex::default() };
        kernels.know(fragment);
        kernels
    }

    /// Takes note of a fragment's constants.
    pub(crate) fn know(&self, fragment: &Fragment) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for tensor in fragment.constants() {
            if inner.stable.insert(place(tensor)) {
                inner.constants.push(tensor.clone());
            }
        }
    }

    fn large(&self, op: &Op, inputs: &[Option<&Tensor>], outputs: &[Sized]) -> Result<Vec<Tensor>, String> {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let stable: Vec<bool> =
            inputs.iter().map(|tensor| tensor.is_none_or(|tensor| inner.stable.contains(&place(tensor)))).collect();
        let mut key = format!("{op:?} {outputs:?}");
        for (tensor, stable) in inputs.iter().zip(&stable) {
            match tensor {
                Some(tensor) => {
                    key.push_str(&format!("|{} {:?}", tensor.element(), tensor.shape()));
                    if *stable {
                        key.push_str(&format!("@{:?}", place(tensor)));
                    }
                }
                None => key.push('|'),
            }
        }
        if stable.iter().all(|stable| *stable) && !inputs.is_empty() {
            return inner.known(key, || plainly(op, inputs, outputs));
        }
        inner.clock += 1;
        let clock = inner.clock;
        if !inner.engines.contains_key(&key) {
            let engine = engine(op, inputs, &stable, outputs, self.isa, &self.pool)?;
            inner.keep(key.clone(), Kept { bytes: engine.as_ref().map_or(0, Engine::held_bytes), engine, used: clock });
        }
        let Some(kept) = inner.engines.get_mut(&key) else { return plainly(op, inputs, outputs) };
        kept.used = clock;
        let Some(engine) = &mut kept.engine else {
            drop(guard);
            return plainly(op, inputs, outputs);
        };
        let varying = inputs.iter().zip(&stable).filter(|(_, stable)| !**stable).filter_map(|(tensor, _)| *tensor);
        for (index, tensor) in varying.enumerate() {
            engine.set_input(index, tensor.bytes());
        }
        engine.run().map_err(|error| planforge_types::failure::chain(&error))?;
        let made = outputs.iter().enumerate().map(|(index, (element, shape))| {
            let bytes = Bytes::copy_from_slice(engine.output(index));
            Tensor::new(*element, shape.clone(), bytes).map_err(|error| error.to_string())
        });
        made.collect()
    }
}

impl Inner {
    /// The result of constants, computed once.
    fn known(
        &mut self,
        key: String,
        compute: impl FnOnce() -> Result<Vec<Tensor>, String>,
    ) -> Result<Vec<Tensor>, String> {
        if let Some(known) = self.memo.get(&key) {
            return Ok(known.clone());
        }
        let made = compute()?;
        let bytes: u64 = made.iter().map(|tensor| tensor.bytes().len() as u64).sum();
        if self.memo_bytes + bytes <= MEMO_BYTES {
            self.memo_bytes += bytes;
            self.stable.extend(made.iter().map(place));
            self.memo.insert(key, made.clone());
        }
        Ok(made)
    }

    /// Keeps an engine; those that were used longest ago make room.
    fn keep(&mut self, key: String, kept: Kept) {
        self.engine_bytes += kept.bytes;
        while !self.engines.is_empty()
            && (self.engine_bytes > KEPT_BYTES || self.engines.len() >= KEPT_ENGINES)
            && let Some(oldest) = self.engines.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone())
            && let Some(gone) = self.engines.remove(&oldest)
        {
            self.engine_bytes -= gone.bytes;
        }
        self.engines.insert(key, kept);
    }
}

impl Computer for TailKernels {
    fn compute(&self, op: &Op, inputs: &[Option<&Tensor>], outputs: &[Sized]) -> Result<Vec<Tensor>, String> {
        let made = outputs.iter().map(|(_, shape)| shape.iter().product::<usize>());
        let elements = inputs.iter().flatten().map(|tensor| tensor.len()).chain(made).fold(0, usize::saturating_add);
        let least = if is_product(op) { LARGE_PRODUCT_ELEMENTS } else { LARGE_ELEMENTS };
        if elements < least || is_free(op) || outputs.iter().all(|(_, shape)| shape.contains(&0)) {
            return plainly(op, inputs, outputs);
        }
        if let Op::Named(named) = op
            && let Some(made) = regions(named, inputs, outputs, &self.pool)
        {
            return made.map(|tensor| vec![tensor]);
        }
        self.large(op, inputs, outputs)
    }
}

/// RoiAlign of f32; `None` where it is something else.
fn regions(
    named: &NamedOp,
    inputs: &[Option<&Tensor>],
    outputs: &[Sized],
    pool: &ThreadPool,
) -> Option<Result<Tensor, String>> {
    let [Some(x), Some(regions), Some(images)] = inputs[..] else { return None };
    let is_float = |tensor: &Tensor| tensor.element() == ElementType::F32;
    let [batch, channels, height, width] = x.shape()[..] else { return None };
    if named.name != "roi_align" || !is_float(x) || !is_float(regions) {
        return None;
    }
    let (_, shape) = outputs.first()?;
    let sizes = RoiAlign {
        batch,
        channels,
        image: [height, width],
        grid: [shape[2], shape[3]],
        samples: usize::try_from(named.int("samples", 0)).ok()?,
        scale: named.float("scale", 1.0) as f32,
        half_pixel: named.flag("half_pixel"),
        largest: named.flag("largest"),
    };
    let (values, regions, images) = (x.values::<f32>().ok()?, regions.values::<f32>().ok()?, images.to_i64s()?);
    let mut made = vec![0f32; shape.iter().product()];
    Some(match roi_align(pool, &sizes, &values, &regions, &images, &mut made) {
        Ok(()) => Tensor::from_vec(shape.clone(), made).map_err(|error| error.to_string()),
        Err(error) => Err(format!("roi_align: {error}")),
    })
}

/// An engine of one operator; `None` where it would run by reference, or no kernel takes it.
fn engine(
    op: &Op,
    inputs: &[Option<&Tensor>],
    stable: &[bool],
    outputs: &[Sized],
    isa: Isa,
    pool: &Arc<ThreadPool>,
) -> Result<Option<Engine>, String> {
    let mut graph = Graph::default();
    let mut ids = Vec::with_capacity(inputs.len());
    for (at, (tensor, stable)) in inputs.iter().zip(stable).enumerate() {
        ids.push(match tensor {
            None => None,
            Some(tensor) if *stable => Some(graph.add_constant(format!("c{at}"), (*tensor).clone())),
            Some(tensor) => {
                let id = graph.add_value(format!("x{at}"), tensor.element(), tensor.shape());
                graph.inputs.push(id);
                Some(id)
            }
        });
    }
    let made: Vec<_> = outputs
        .iter()
        .enumerate()
        .map(|(at, (element, shape))| graph.add_value(format!("y{at}"), *element, shape))
        .collect();
    graph.outputs = made.iter().map(|&value| Output { name: format!("y{}", value.0), value }).collect();
    graph.nodes.push(Node { op: op.clone(), inputs: ids, outputs: made, origins: vec![op.kind().to_owned()] });
    let Ok(mut draft) = lower(&graph) else { return Ok(None) };
    if draft.steps.iter().any(|of| matches!(of.step.kind, StepKind::Reference { .. })) {
        return Ok(None);
    }
    follow(&mut draft, &Program::default(), isa, pool.threads());
    let mut weights = WeightPlan::default();
    let program = assemble(draft, &mut weights);
    if program.check().is_err() {
        return Ok(None);
    }
    let mut data = AlignedBytes::zeroed(weights.bytes() as usize).map_err(|error| error.to_string())?;
    weights.write(&mut Cursor::new(data.bytes_mut())).map_err(|error| error.to_string())?;
    let engine = Engine::new(program, Weights::owned(data), isa, Arc::clone(pool));
    Ok(engine.ok())
}
