//! The layers whose weights are stored: convolutions and products, and how their weights lie.

use crate::net::{Net, int_attribute, is_standard};

/// A convolution or product with stored single-precision weights.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Index of its node.
    pub node: usize,
    pub name: String,
    pub op_type: String,
    /// The value it reads.
    pub input: String,
    pub output: String,
    /// Its stored weights, and their shape.
    pub weight: String,
    pub dims: Vec<usize>,
    /// Axis of the weights along which its outputs lie.
    pub out_axis: usize,
    pub groups: usize,
    /// Axis of the input along which its channels lie.
    pub channel_axis: usize,
    /// Stored bias, where it has one: its own, or that of the sum behind a product.
    pub bias: Option<Bias>,
    /// Multiplications of one execution.
    pub macs: u64,
}

/// Where a layer's bias is read.
#[derive(Clone, Debug)]
pub struct Bias {
    pub name: String,
    /// The node that reads it, and as which input.
    pub node: usize,
    pub position: usize,
}

impl Layer {
    pub fn outputs(&self) -> usize {
        self.dims[self.out_axis]
    }

    /// Channels of the input.
    pub fn inputs(&self) -> usize {
        match self.op_type.as_str() {
            "Conv" => self.dims[1] * self.groups,
            _ => self.dims[1 - self.out_axis],
        }
    }

    pub fn weights(&self) -> usize {
        self.dims.iter().product()
    }

    /// Tells of every weight its place, its output and its input channel, in order.
    pub fn each_weight(&self, mut each: impl FnMut(usize, usize, usize)) {
        let (rows, columns) = (self.dims[0], self.dims[1]);
        let (is_conv, outputs_are_rows) = (self.op_type == "Conv", self.out_axis == 0);
        let taps: usize = self.dims[2..].iter().product();
        let of_group = (rows / self.groups).max(1);
        for row in 0..rows {
            for column in 0..columns {
                let (out, channel) = match (is_conv, outputs_are_rows) {
                    (true, _) => (row, row / of_group * columns + column),
                    (false, true) => (row, column),
                    (false, false) => (column, row),
                };
                let first = (row * columns + column) * taps;
                (first..first + taps).for_each(|at| each(at, out, channel));
            }
        }
    }

    /// Hands over the weights slice by slice, each with its outputs: one of all in it, or one of each.
    pub fn by_output<'a, W>(&self, weights: &'a [W], mut each: impl FnMut(Outputs, &'a [W])) {
        let (rows, columns) = (self.dims[0], self.dims[1]);
        match self.out_axis {
            0 => weights
                .chunks_exact((weights.len() / rows).max(1))
                .enumerate()
                .for_each(|(out, weights)| each(Outputs::One(out), weights)),
            _ => weights.chunks_exact(columns).for_each(|weights| each(Outputs::Each, weights)),
        }
    }

    /// Largest magnitude of the weights of each output.
    pub fn largest_by_output(&self, weights: &[f32]) -> Vec<f32> {
        let mut largest = vec![0.0_f32; self.outputs()];
        self.by_output(weights, |outputs, weights| match outputs {
            Outputs::One(out) => largest[out] = largest_of(weights),
            Outputs::Each => largest.iter_mut().zip(weights).for_each(|(largest, weight)| {
                *largest = largest.max(weight.abs());
            }),
        });
        largest
    }
}

/// Whose weights a slice holds.
#[derive(Clone, Copy, Debug)]
pub enum Outputs {
    One(usize),
    /// Every output's, in order.
    Each,
}

/// The greatest magnitude of numbers.
fn largest_of(values: &[f32]) -> f32 {
    const LANES: usize = 8;
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut largest = [0.0_f32; LANES];
    for values in whole {
        for (largest, value) in largest.iter_mut().zip(values) {
            let size = value.abs();
            *largest = if size > *largest { size } else { *largest };
        }
    }
    largest.into_iter().chain(rest.iter().map(|value| value.abs())).fold(0.0, f32::max)
}

/// Every layer, in the model's order.
pub fn layers(net: &Net) -> Vec<Layer> {
    (0..net.graph().node.len()).filter_map(|at| layer(net, at)).collect()
}

fn layer(net: &Net, at: usize) -> Option<Layer> {
    let node = &net.graph().node[at];
    if !is_standard(&node.domain) || node.input.len() < 2 {
        return None;
    }
    let int = |name: &str, default: i64| int_attribute(node, name).unwrap_or(default);
    let one = |name: &str| node.attribute.iter().find(|of| of.name == name).is_none_or(|of| of.f == 1.0);
    let weight = net.initializer(&node.input[1])?;
    if weight.data_type != planforge_onnx::proto::tensor_proto::DataType::Float as i32 {
        return None;
    }
    let dims: Vec<usize> = weight.dims.iter().map(|size| *size as usize).collect();
    if dims.contains(&0) {
        return None;
    }
    let rank = net.shape(&node.input[0])?.len();
    let (out_axis, groups, channel_axis) = match node.op_type.as_str() {
        "Conv" if dims.len() >= 3 => (0, usize::try_from(int("group", 1)).ok()?, 1),
        "Gemm" if dims.len() == 2 && int("transA", 0) == 0 && one("alpha") && one("beta") => {
            (usize::from(int("transB", 0) == 0), 1, 1)
        }
        "MatMul" if dims.len() == 2 && rank >= 2 => (1, 1, rank - 1),
        _ => return None,
    };
    let output = node.output[0].clone();
    let positions: usize = net.shape(&output)?.iter().product::<usize>() / dims[out_axis];
    let layer = Layer {
        node: at,
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        input: node.input[0].clone(),
        weight: node.input[1].clone(),
        out_axis,
        groups,
        channel_axis,
        bias: None,
        macs: positions as u64 * dims.iter().product::<usize>() as u64,
        output,
        dims,
    };
    Some(Layer { bias: bias(net, &layer), ..layer })
}

fn bias(net: &Net, layer: &Layer) -> Option<Bias> {
    let is_row = |name: &str| {
        let stored = net.floats(name)?;
        let flat = net.initializer(name)?.dims.iter().filter(|size| **size != 1).count() <= 1;
        (flat && stored.len() == layer.outputs()).then_some(())
    };
    let node = &net.graph().node[layer.node];
    if let Some(name) = node.input.get(2).filter(|name| !name.is_empty()) {
        is_row(name)?;
        return Some(Bias { name: name.clone(), node: layer.node, position: 2 });
    }
    if layer.op_type != "MatMul" {
        return None;
    }
    let mut readers = net.graph().node.iter().enumerate().filter(|(_, node)| node.input.contains(&layer.output));
    let (at, sum) = readers.next()?;
    if readers.next().is_some() || sum.op_type != "Add" {
        return None;
    }
    let position = usize::from(sum.input[0] == layer.output);
    is_row(&sum.input[position])?;
    Some(Bias { name: sum.input[position].clone(), node: at, position })
}
