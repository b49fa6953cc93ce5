//! Plants outlier channels in the trained model: a few channels become 32 times as large as the others, and the layer
//! that reads them makes up for it.
//!
//! ReLU and max pooling commute with a positive factor, and a power of two rounds nothing, so the model computes the
//! same numbers bit by bit. Quantised with one scale per tensor it loses most of what the other channels say, which is
//! what calibration has to deal with.

use bytes::Bytes;
use planforge_onnx::{
    Model, OnnxError,
    proto::{GraphProto, TensorProto},
};
use prost::Message;

/// A power of two, so that nothing is rounded.
const FACTOR: f32 = 32.0;

/// A layer, the one that reads its channels, and the channels that are made large.
struct Plant {
    layer: &'static str,
    reader: &'static str,
    channels: &'static [usize],
}

const PLANTS: [Plant; 3] = [
    Plant { layer: "conv1", reader: "conv2", channels: &[3, 11] },
    Plant { layer: "conv2", reader: "fc1", channels: &[5, 20] },
    Plant { layer: "fc1", reader: "fc2", channels: &[7] },
];

/// The model with its outliers, as a file.
pub fn planted(model: &'static [u8]) -> Result<Bytes, OnnxError> {
    let mut proto = Model::from_bytes(model.into())?.proto;
    if let Some(graph) = proto.graph.as_mut() {
        PLANTS.iter().for_each(|plant| plant_in(graph, plant));
    }
    Ok(proto.encode_to_vec().into())
}

fn plant_in(graph: &mut GraphProto, plant: &Plant) {
    let mut outputs = 0;
    for part in ["weight", "bias"] {
        if let Some(tensor) = tensor(graph, &format!("{}.{part}", plant.layer)) {
            outputs = tensor.dims[0] as usize;
            let inner = tensor.dims.iter().skip(1).product::<i64>() as usize;
            scale(tensor, FACTOR, |index| plant.channels.contains(&(index / inner)));
        }
    }
    if let Some(tensor) = tensor(graph, &format!("{}.weight", plant.reader)) {
        // Each channel is so many elements of a row: kernel positions, or the pixels of a flattened image.
        let row = tensor.dims.iter().skip(1).product::<i64>() as usize;
        let per_channel = row / outputs.max(1);
        scale(tensor, 1.0 / FACTOR, |index| plant.channels.contains(&(index % row / per_channel)));
    }
}

fn tensor<'a>(graph: &'a mut GraphProto, name: &str) -> Option<&'a mut TensorProto> {
    graph.initializer.iter_mut().find(|tensor| tensor.name == name)
}

/// Multiplies the chosen elements.
fn scale(tensor: &mut TensorProto, factor: f32, chosen: impl Fn(usize) -> bool) {
    let values = tensor.raw_data.chunks_exact(4).enumerate().flat_map(|(index, four)| {
        let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        (if chosen(index) { value * factor } else { value }).to_le_bytes()
    });
    tensor.raw_data = values.collect::<Vec<u8>>().into();
}
