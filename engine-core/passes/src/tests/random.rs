//! Random graphs: what the passes make of them equals what they were, within the bound of their precision.
//!
//! A seed decides everything: shapes, operators, element type, which values are outputs. `PLANFORGE_GRAPH_SEEDS` asks
//! for more graphs than usual, `PLANFORGE_GRAPH_SEED` for one alone, as a failure names it.
//!
//! The bound: the same graph in double precision says how far rounding takes the graph as it was imported. The
//! optimised graph rounds elsewhere, so it may be a few times as far, and a few roundings of the result more.

use super::*;
use half::f16;
use planforge_graph::ir::ElementType;

/// Graphs per run, unless the environment asks for more.
const SEEDS: u64 = 300;
/// Steps per graph, and elements per value: reference operators are slow.
const STEPS_MAX: u64 = 16;
const ELEMENTS_MAX: usize = 3000;

/// How many times as far from the exact result as the imported graph.
const TIMES_AS_FAR: f64 = 8.0;
/// Roundings of the result that are allowed beyond that.
const ROUNDINGS: f64 = 32.0;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct Made {
    model: TestModel,
    random: Random,
    element: ElementType,
    /// Names and shapes of the values so far; the inputs first.
    values: Vec<(String, Vec<usize>)>,
    inputs: usize,
    names: usize,
}

impl Made {
    fn name(&mut self, stem: &str) -> String {
        self.names += 1;
        format!("{stem}{}", self.names)
    }

    fn tensor(&self, shape: &[usize], values: &[f32]) -> Tensor {
        match self.element {
            ElementType::F16 => {
                Tensor::from_vec(shape.to_vec(), values.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>())
            }
            _ => Tensor::from_vec(shape.to_vec(), values.to_vec()),
        }
        .expect("values fill the shape")
    }

    /// A constant between -scale and scale; its name.
    fn constant(&mut self, shape: &[usize], scale: f32) -> String {
        let name = self.name("c");
        let shift = self.random.below(97) as usize;
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = numbers(count + shift)[shift..].iter().map(|value| value * scale).collect();
        self.add_constant(name, shape, &values)
    }

    fn positive(&mut self, shape: &[usize]) -> String {
        let name = self.name("c");
        let values: Vec<f32> = numbers(shape.iter().product()).iter().map(|value| 1.5 + value).collect();
        self.add_constant(name, shape, &values)
    }

    fn number(&mut self, value: f32) -> String {
        let name = self.name("c");
        self.add_constant(name, &[], &[value])
    }

    fn add_constant(&mut self, name: String, shape: &[usize], values: &[f32]) -> String {
        let tensor = self.tensor(shape, values);
        self.model = self.model.clone().constant(&name, &tensor);
        name
    }

    fn longs(&mut self, values: &[usize]) -> String {
        let name = self.name("l");
        let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        self.model = self.model.clone().longs(&name, &values);
        name
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<planforge_onnx::proto::AttributeProto>) -> String {
        let name = self.name("v");
        self.model = self.model.clone().node(op, inputs, &name, attributes);
        name
    }

    fn give(&mut self, name: String, shape: &[usize]) {
        if shape.iter().product::<usize>() <= ELEMENTS_MAX {
            self.values.push((name, shape.to_vec()));
        }
    }

    fn any(&mut self) -> (String, Vec<usize>) {
        // Later values more often, so that chains grow.
        let count = self.values.len() as u64;
        let at = self.random.below(count).max(self.random.below(count));
        self.values[at as usize].clone()
    }

    fn of_rank(&mut self, rank: usize) -> Option<(String, Vec<usize>)> {
        let fitting: Vec<_> = self.values.iter().filter(|(_, shape)| shape.len() == rank).cloned().collect();
        (!fitting.is_empty()).then(|| self.random.one_of(&fitting))
    }

    /// A shape that broadcasts to the given one.
    fn narrower(&mut self, shape: &[usize]) -> Vec<usize> {
        let kept = self.random.below(shape.len() as u64 + 1) as usize;
        let from = shape.len() - kept;
        shape[from..].iter().map(|&size| if self.random.chance(30) { 1 } else { size }).collect()
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 | 1 => self.convolution(),
            2 | 3 => self.product(),
            4 | 5 => self.with_constant(),
            6 => self.with_value(),
            7 | 8 => self.unary(),
            9 => self.gated(),
            10 => self.gelu(),
            11 => self.layer_norm(),
            12 => self.attention(),
            13 => self.pool(),
            14 => self.transpose(),
            15 => self.reshape(),
            16 => self.concat(),
            17 => self.split(),
            18 => self.slice(),
            19 => self.reduce(),
            20 => self.resize(),
            21 => self.gather(),
            22 => self.quantize(),
            _ => self.softmax(),
        }
    }

    fn convolution(&mut self) {
        let Some((x, shape)) = self.of_rank(4) else { return };
        let channels = shape[1];
        let kernel = self.random.one_of(&[1usize, 1, 3]);
        let groups = if self.random.chance(25) { channels } else { 1 };
        let filters = if groups == 1 { self.random.one_of(&[2usize, 4]) } else { channels };
        let stride = if self.random.chance(25) { 2 } else { 1 };
        let pad = kernel / 2;
        let scale = 1.0 / ((channels / groups * kernel * kernel) as f32).sqrt();
        let w = self.constant(&[filters, channels / groups, kernel, kernel], scale);
        let attributes =
            vec![int("group", groups as i64), ints("pads", &[pad as i64; 4]), ints("strides", &[stride as i64; 2])];
        let mut inputs = vec![x, w];
        if self.random.chance(40) {
            inputs.push(self.constant(&[filters], 0.5));
        }
        let mut y = self.node("Conv", &inputs.iter().map(String::as_str).collect::<Vec<_>>(), attributes);
        if self.random.chance(40) {
            let [scale, shift, mean] = [(); 3].map(|()| self.constant(&[filters], 1.0));
            let variance = self.positive(&[filters]);
            y = self.node("BatchNormalization", &[&y, &scale, &shift, &mean, &variance], vec![float("epsilon", 1e-3)]);
        }
        let size = |size: usize| (size + 2 * pad - kernel) / stride + 1;
        self.give(y, &[shape[0], filters, size(shape[2]), size(shape[3])]);
    }

    fn product(&mut self) {
        let (x, shape) = self.any();
        let Some((&depth, lead)) = shape.split_last().filter(|(_, lead)| !lead.is_empty()) else { return };
        // Sometimes several of the same value, which can be computed together.
        for _ in 0..self.random.one_of(&[1, 1, 2, 3]) {
            let columns = self.random.one_of(&[3usize, 4, 6]);
            let w = self.constant(&[depth, columns], 1.0 / (depth as f32).sqrt());
            let mut y = self.node("MatMul", &[&x, &w], vec![]);
            if self.random.chance(60) {
                let b = self.constant(&[columns], 0.5);
                y = self.node("Add", &[&b, &y], vec![]);
            }
            self.give(y, &[lead, &[columns]].concat());
        }
    }

    fn with_constant(&mut self) {
        let (x, shape) = self.any();
        let narrow = self.narrower(&shape);
        let c = match self.random.below(4) {
            0 => self.number(1.0),
            1 => self.number(0.5),
            _ => self.constant(&narrow, 1.0),
        };
        let op = self.random.one_of(&["Add", "Mul", "Sub", "Max"]);
        let inputs = if self.random.chance(50) { [x, c] } else { [c, x] };
        let y = self.node(op, &[&inputs[0], &inputs[1]], vec![]);
        self.give(y, &shape);
    }

    fn with_value(&mut self) {
        let (a, shape) = self.any();
        let fits = |other: &[usize]| planforge_graph::shape::broadcast(&shape, other).is_some_and(|to| to == shape);
        let fitting: Vec<_> = self.values.iter().filter(|(_, other)| fits(other)).cloned().collect();
        let (b, _) = self.random.one_of(&fitting);
        let op = self.random.one_of(&["Add", "Add", "Sub", "Min"]);
        let y = self.node(op, &[&a, &b], vec![]);
        self.give(y, &shape);
    }

    fn unary(&mut self) {
        let (x, shape) = self.any();
        let op = self.random.one_of(&["Relu", "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "Softplus", "Erf"]);
        let y = self.node(op, &[&x], vec![]);
        self.give(y, &shape);
    }

    fn gated(&mut self) {
        let (x, shape) = self.any();
        let gate = if self.random.chance(50) {
            self.node("Sigmoid", &[&x], vec![])
        } else {
            self.node("HardSigmoid", &[&x], vec![float("alpha", 1.0 / 6.0)])
        };
        let y = self.node("Mul", &[&x, &gate], vec![]);
        self.give(y, &shape);
    }

    fn gelu(&mut self) {
        let (x, shape) = self.any();
        let (one, half) = (self.number(1.0), self.number(0.5));
        let core = if self.random.chance(50) {
            let root = self.number(std::f32::consts::SQRT_2);
            let scaled = self.node("Div", &[&x, &root], vec![]);
            self.node("Erf", &[&scaled], vec![])
        } else {
            let (three, share, scale) = (self.number(3.0), self.number(0.044_715), self.number(0.797_884_6));
            let cube = self.node("Pow", &[&x, &three], vec![]);
            let part = self.node("Mul", &[&cube, &share], vec![]);
            let sum = self.node("Add", &[&x, &part], vec![]);
            let argument = self.node("Mul", &[&sum, &scale], vec![]);
            self.node("Tanh", &[&argument], vec![])
        };
        let gate = self.node("Add", &[&core, &one], vec![]);
        let product = self.node("Mul", &[&x, &gate], vec![]);
        let y = self.node("Mul", &[&product, &half], vec![]);
        self.give(y, &shape);
    }

    fn layer_norm(&mut self) {
        let (x, shape) = self.any();
        let Some(&last) = shape.last().filter(|&&last| last > 1) else { return };
        let (scale, shift) = (self.constant(&[last], 1.0), self.constant(&[last], 1.0));
        let y = if self.random.chance(50) {
            let attributes = vec![int("axis", -1), float("epsilon", 0.1)];
            self.node("LayerNormalization", &[&x, &scale, &shift], attributes)
        } else {
            let (two, epsilon) = (self.number(2.0), self.number(0.1));
            let mean = self.node("ReduceMean", &[&x], vec![ints("axes", &[-1])]);
            let centred = self.node("Sub", &[&x, &mean], vec![]);
            let squares = self.node("Pow", &[&centred, &two], vec![]);
            let variance = self.node("ReduceMean", &[&squares], vec![ints("axes", &[-1])]);
            let shifted = self.node("Add", &[&variance, &epsilon], vec![]);
            let deviation = self.node("Sqrt", &[&shifted], vec![]);
            let normal = self.node("Div", &[&centred, &deviation], vec![]);
            let scaled = self.node("Mul", &[&normal, &scale], vec![]);
            self.node("Add", &[&scaled, &shift], vec![])
        };
        self.give(y, &shape);
    }

    fn attention(&mut self) {
        let Some((x, shape)) = self.of_rank(3) else { return };
        let [batch, rows, width] = shape[..] else { return };
        let heads = if width % 2 == 0 && self.random.chance(70) { 2 } else { 1 };
        let split = self.longs(&[batch, rows, heads, width / heads]);
        let join = self.longs(&[batch, rows, width]);
        let operand = |made: &mut Self, perm: &[i64]| {
            let w = made.constant(&[width, width], 1.0 / (width as f32).sqrt());
            let flat = made.node("MatMul", &[&x, &w], vec![]);
            let heads = made.node("Reshape", &[&flat, &split], vec![]);
            made.node("Transpose", &[&heads], vec![ints("perm", perm)])
        };
        let (q, k) = (operand(self, &[0, 2, 1, 3]), operand(self, &[0, 2, 3, 1]));
        let v = operand(self, &[0, 2, 1, 3]);
        let mut scores = self.node("MatMul", &[&q, &k], vec![]);
        if self.random.chance(50) {
            let scale = self.number(0.5);
            scores = self.node("Mul", &[&scores, &scale], vec![]);
        }
        if self.random.chance(50) {
            let mask = self.constant(&[batch, 1, 1, rows], 2.0);
            scores = self.node("Add", &[&scores, &mask], vec![]);
        }
        let weights = self.node("Softmax", &[&scores], vec![]);
        let context = self.node("MatMul", &[&weights, &v], vec![]);
        let turned = self.node("Transpose", &[&context], vec![ints("perm", &[0, 2, 1, 3])]);
        let y = self.node("Reshape", &[&turned, &join], vec![]);
        self.give(y, &shape);
    }

    fn pool(&mut self) {
        let Some((x, shape)) = self.of_rank(4) else { return };
        if self.random.chance(30) {
            let y = self.node("GlobalAveragePool", &[&x], vec![]);
            self.give(y, &[shape[0], shape[1], 1, 1]);
            return;
        }
        let op = self.random.one_of(&["MaxPool", "AveragePool"]);
        let y = self.node(op, &[&x], vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])]);
        self.give(y, &shape);
    }

    fn transpose(&mut self) {
        let (x, shape) = self.any();
        let mut perm: Vec<usize> = (0..shape.len()).collect();
        for at in (1..perm.len()).rev() {
            perm.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        let wide: Vec<i64> = perm.iter().map(|&axis| axis as i64).collect();
        let y = self.node("Transpose", &[&x], vec![ints("perm", &wide)]);
        self.give(y, &perm.iter().map(|&axis| shape[axis]).collect::<Vec<_>>());
    }

    fn reshape(&mut self) {
        let (x, shape) = self.any();
        let count: usize = shape.iter().product();
        let to = match self.random.below(4) {
            0 => shape.clone(),
            1 => vec![count],
            2 if count.is_multiple_of(4) => vec![1, 4, count / 4],
            _ if count.is_multiple_of(16) => vec![1, 4, 4, count / 16],
            _ => vec![1, 1, count],
        };
        let sizes = self.longs(&to);
        let y = self.node("Reshape", &[&x, &sizes], vec![]);
        self.give(y, &to);
    }

    fn concat(&mut self) {
        let (x, shape) = self.any();
        if shape.is_empty() {
            return;
        }
        let axis = self.random.below(shape.len() as u64) as usize;
        let fits = |other: &[usize]| {
            other.len() == shape.len() && (0..shape.len()).all(|at| at == axis || other[at] == shape[at])
        };
        let fitting: Vec<_> = self.values.iter().filter(|(_, other)| fits(other)).cloned().collect();
        let (other, other_shape) = self.random.one_of(&fitting);
        let y = self.node("Concat", &[&x, &other], vec![int("axis", axis as i64)]);
        let mut to = shape.clone();
        to[axis] += other_shape[axis];
        self.give(y, &to);
    }

    fn split(&mut self) {
        let (x, shape) = self.any();
        let Some(axis) = (0..shape.len()).rev().find(|&axis| shape[axis] > 1) else { return };
        let first = 1 + self.random.below(shape[axis] as u64 - 1) as usize;
        let parts = self.longs(&[first, shape[axis] - first]);
        let (a, b) = (self.name("v"), self.name("v"));
        self.model = self.model.clone().node_of("Split", &[&x, &parts], &[&a, &b], vec![int("axis", axis as i64)]);
        for (name, size) in [(a, first), (b, shape[axis] - first)] {
            let mut part = shape.clone();
            part[axis] = size;
            self.give(name, &part);
        }
    }

    fn slice(&mut self) {
        let (x, shape) = self.any();
        if shape.is_empty() {
            return;
        }
        let starts: Vec<usize> = shape.iter().map(|&size| self.random.below(size as u64) as usize).collect();
        let ends: Vec<usize> = shape
            .iter()
            .zip(&starts)
            .map(|(&size, &start)| start + 1 + self.random.below((size - start) as u64) as usize)
            .collect();
        let (first, last) = (self.longs(&starts), self.longs(&ends));
        let y = self.node("Slice", &[&x, &first, &last], vec![]);
        self.give(y, &starts.iter().zip(&ends).map(|(start, end)| end - start).collect::<Vec<_>>());
    }

    fn reduce(&mut self) {
        let (x, shape) = self.any();
        if shape.is_empty() {
            return;
        }
        let axis = self.random.below(shape.len() as u64) as usize;
        let keep = self.random.chance(50);
        let op = self.random.one_of(&["ReduceMean", "ReduceMax", "ReduceMin"]);
        let y = self.node(op, &[&x], vec![ints("axes", &[axis as i64]), int("keepdims", keep.into())]);
        let mut to = shape.clone();
        if keep {
            to[axis] = 1;
        } else {
            to.remove(axis);
        }
        self.give(y, &to);
    }

    fn resize(&mut self) {
        let Some((x, shape)) = self.of_rank(4) else { return };
        let scales = Tensor::from_vec(vec![4], vec![1f32, 1.0, 2.0, 2.0]).expect("four scales");
        let name = self.name("c");
        self.model = self.model.clone().constant(&name, &scales);
        let attributes = vec![
            planforge_import::testing::text("coordinate_transformation_mode", "asymmetric"),
            planforge_import::testing::text("nearest_mode", "floor"),
        ];
        let y = self.node("Resize", &[&x, "", &name], attributes);
        self.give(y, &[shape[0], shape[1], shape[2] * 2, shape[3] * 2]);
    }

    fn gather(&mut self) {
        let (x, shape) = self.any();
        if shape.is_empty() {
            return;
        }
        let axis = self.random.below(shape.len() as u64) as usize;
        let name = self.name("l");
        let index = Tensor::scalar(self.random.below(shape[axis] as u64) as i64);
        self.model = self.model.clone().constant(&name, &index);
        let y = self.node("Gather", &[&x, &name], vec![int("axis", axis as i64)]);
        let mut to = shape.clone();
        to.remove(axis);
        self.give(y, &to);
    }

    /// Of inputs alone: anything computed may be rounded to the other side of a step.
    fn quantize(&mut self) {
        if self.element != ElementType::F32 {
            return;
        }
        let at = self.random.below(self.inputs as u64) as usize;
        let (x, shape) = self.values[at].clone();
        let (scale, zero) = (self.number(1.0 / 64.0), self.name("c"));
        self.model = self.model.clone().constant(&zero, &Tensor::scalar(3i8));
        let integers = self.node("QuantizeLinear", &[&x, &scale, &zero], vec![]);
        let y = self.node("DequantizeLinear", &[&integers, &scale, &zero], vec![]);
        self.give(y, &shape);
    }

    fn softmax(&mut self) {
        let (x, shape) = self.any();
        if shape.is_empty() {
            return;
        }
        let axis = if self.random.chance(70) { shape.len() - 1 } else { 0 };
        let y = self.node("Softmax", &[&x], vec![int("axis", axis as i64)]);
        self.give(y, &shape);
    }
}

/// The graph of a seed, as imported.
fn graph_of(seed: u64) -> Graph {
    let mut random = Random(seed);
    let element = if random.chance(30) { ElementType::F16 } else { ElementType::F32 };
    let inputs: [Vec<usize>; 2] = [
        vec![random.one_of(&[1, 2]), random.one_of(&[2, 4]), random.one_of(&[4, 5]), 4],
        vec![random.one_of(&[1, 2]), random.one_of(&[3, 5]), random.one_of(&[4, 6])],
    ];
    let mut made =
        Made { model: TestModel::new(17), random, element, values: Vec::new(), inputs: inputs.len(), names: 0 };
    for (index, shape) in inputs.iter().enumerate() {
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let name = format!("x{index}");
        made.model = made.model.clone().input_of(&name, element, &sizes);
        made.give(name, shape);
    }
    for _ in 0..1 + made.random.below(STEPS_MAX) {
        made.step();
    }
    // The last value, and perhaps some in the middle, so that fusion meets values it must keep.
    let last = made.values.len() - 1;
    let mut outputs = vec![last];
    while made.random.chance(40) {
        outputs.push(made.random.below(last as u64 + 1) as usize);
    }
    outputs.sort_unstable();
    outputs.dedup();
    let mut model = made.model;
    for at in outputs {
        model = model.output(&made.values[at].0);
    }
    model.import()
}

/// The same graph with every float in double precision.
pub fn in_double(graph: &Graph) -> Graph {
    let mut wide = graph.clone();
    let float = |element: ElementType| planforge_graph::shape::is_float(element);
    wide.values.iter_mut().filter(|value| float(value.element)).for_each(|value| value.element = ElementType::F64);
    for tensor in wide.constants.values_mut().filter(|tensor| float(tensor.element())) {
        *tensor = Tensor::from_vec(tensor.shape().to_vec(), tensor.to_f64s()).expect("as many elements");
    }
    wide
}

fn inputs_of(graph: &Graph) -> BTreeMap<String, Tensor> {
    let each = graph.inputs.iter().map(|&id| {
        let shape = graph.static_shape(id).expect("tests have static shapes");
        let values: Vec<f16> = numbers(shape.iter().product()).into_iter().map(f16::from_f32).collect();
        let halves = Tensor::from_vec(shape.clone(), values).expect("values fill the shape");
        let to = planforge_graph::shape::TensorType::new(graph.value(id).element, shape);
        let tensor =
            interpreter::run(&Op::Cast { to: to.element }, &[Some(&halves)], &[to]).expect("floats convert").remove(0);
        (graph.value(id).name.clone(), tensor)
    });
    each.collect()
}

/// Runs the graph of a seed before and after the passes; says what differs by more than the bound.
fn compare(seed: u64, target: Target) -> Result<(), String> {
    let before = graph_of(seed);
    let after = pipeline(before.clone(), target).map_err(|error| error.to_string())?.graph;
    let run = |graph: &Graph| interpreter::execute(graph, &inputs_of(graph)).map_err(|error| error.to_string());
    let (exact, imported, optimised) = (run(&in_double(&before))?, run(&before)?, run(&after)?);
    for (name, exact) in exact {
        let (exact, imported) = (exact.to_f64s(), imported[&name].to_f64s());
        let scale = exact.iter().fold(1e-3f64, |scale, value| scale.max(value.abs()));
        let far = exact.iter().zip(&imported).fold(0f64, |far, (exact, value)| far.max((exact - value).abs()));
        let half =
            before.outputs.iter().any(|out| out.name == name && before.value(out.value).element == ElementType::F16);
        let rounding = if half { f64::from(f16::EPSILON) } else { f64::from(f32::EPSILON) };
        let bound = TIMES_AS_FAR * far + ROUNDINGS * rounding * scale;
        for (index, (value, exact)) in optimised[&name].to_f64s().iter().zip(&exact).enumerate() {
            // A value that is no number is as wrong as one that is far off.
            let near = (value - exact).abs() <= bound;
            if !near {
                return Err(format!(
                    "{name}[{index}] is {value} instead of {exact} within {bound}\nbefore {before}\nafter {after}"
                ));
            }
        }
    }
    Ok(())
}

/// A number from the environment.
fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn optimised_graphs_mean_what_they_meant() {
    let seeds = match asked("PLANFORGE_GRAPH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..asked("PLANFORGE_GRAPH_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let every = Target {
            integer_products: true,
            channel_slices: true,
            halves: true,
            exact_f32: false,
            integer_steps: true,
            unfused: false,
        };
        for target in [
            Target::default(),
            every,
            Target { exact_f32: true, integer_steps: true, ..Target::default() },
            Target { unfused: true, ..Target::default() },
        ] {
            if let Err(difference) = compare(seed, target) {
                panic!("PLANFORGE_GRAPH_SEED={seed} ({target:?}): {difference}");
            }
        }
    }
}
