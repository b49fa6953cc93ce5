//! Taps of convolutions that meet nothing but padding.

use super::*;
use planforge_onnx::proto::AttributeProto;

/// A convolution of two channels to three over an image, by `attributes`.
fn conv_over(image: &[i64], kernel: &[usize], attributes: Vec<AttributeProto>) -> TestModel {
    let input = [&[1, 2], image].concat();
    let shape = [&[3, 2], kernel].concat();
    TestModel::new(17)
        .input("x", &input)
        .floats("w", &shape, &numbers(shape.iter().product()))
        .floats("b", &[3], &numbers(3))
        .node("Conv", &["x", "w", "b"], "y", attributes)
        .output("y")
}

/// The convolution that is left, and the kernel of its weights.
fn left(model: &TestModel) -> (Conv, Vec<usize>) {
    let before = model.import();
    let mut graph = before.clone();
    apply(&mut graph, "test", identity::run).expect("a pass keeps the invariants");
    assert_same_meaning(&before, &graph);
    let [node] = &graph.nodes[..] else { panic!("{graph}") };
    let Op::Conv(conv) = &node.op else { panic!("{graph}") };
    let weights = graph.constant(node.input(1).expect("it has weights")).expect("they are constant");
    (conv.clone(), weights.shape()[2..].to_vec())
}

fn padded(by: i64, apart: i64) -> Vec<AttributeProto> {
    vec![ints("pads", &[by; 4]), ints("dilations", &[apart; 2])]
}

#[test]
fn a_wide_kernel_over_a_small_image_is_its_middle() {
    let (conv, kernel) = left(&conv_over(&[6, 6], &[3, 3], padded(12, 12)));
    assert_eq!((kernel, conv.pads, conv.dilations), (vec![1, 1], vec![0; 4], vec![1, 1]));
    // Along one axis alone.
    let (conv, kernel) = left(&conv_over(&[6, 13], &[3, 3], padded(12, 12)));
    assert_eq!((kernel, conv.pads, conv.dilations), (vec![1, 3], vec![0, 12, 0, 12], vec![1, 12]));
}

#[test]
fn outer_lines_of_a_large_kernel_go() {
    let (conv, kernel) = left(&conv_over(&[2, 2], &[5, 5], padded(2, 1)));
    assert_eq!((kernel, conv.pads), (vec![3, 3], vec![1; 4]));
    let line = conv_over(&[1], &[3], vec![ints("pads", &[1, 1])]);
    assert_eq!(left(&line).1, [1]);
}

#[test]
fn strides_and_uneven_padding_keep_their_places() {
    let attributes = || vec![ints("pads", &[3, 0, 1, 2]), ints("strides", &[2, 3])];
    for image in [[1, 3], [2, 4], [3, 5], [4, 6]] {
        // The meaning is compared there.
        left(&conv_over(&image, &[4, 3], attributes()));
    }
    let (conv, kernel) = left(&conv_over(&[1, 3], &[4, 3], attributes()));
    assert_eq!((kernel, conv.pads), (vec![1, 3], vec![0; 4]));
}

#[test]
fn kernels_that_meet_the_image_everywhere_stay() {
    assert_eq!(left(&conv_over(&[7, 7], &[3, 3], padded(6, 6))).1, [3, 3]);
    assert_eq!(left(&conv_over(&[2, 2], &[3, 3], padded(1, 1))).1, [3, 3]);
    // No tap ever meets the image: what is left is the bias.
    assert_eq!(left(&conv_over(&[1, 1], &[2, 2], vec![ints("pads", &[5; 4]), ints("strides", &[3; 2])])).1, [2, 2]);
}

#[test]
fn weights_that_are_not_finite_stay() {
    let mut weights = numbers(54);
    weights[0] = f32::INFINITY;
    let model = conv_over(&[1, 1], &[3, 3], padded(1, 1)).floats("w2", &[3, 2, 3, 3], &weights);
    let mut wild = model;
    wild.graph().node[0].input[1] = "w2".into();
    let mut graph = wild.import();
    apply(&mut graph, "test", identity::run).expect("a pass keeps the invariants");
    let weights = graph.constant(graph.nodes[0].input(1).expect("it has weights")).expect("they are constant");
    assert_eq!(weights.shape(), [3, 2, 3, 3]);
}
