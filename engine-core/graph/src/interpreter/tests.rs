//! Reference operators against definitions written out index by index, and numbers worked out by hand.

use super::*;
use crate::{
    infer::infer,
    ir::{
        Activation, Binary, Conv, ConvTranspose, ElementType, Epilogue, MatMul, PadMode, Pool, PoolKind, Resize,
        ResizeCoordinates, ResizeMode, ResizeNearest, Unary,
    },
    shape::window_outputs,
};
use proptest::prelude::*;
use std::ops::ControlFlow;

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_vec(shape.to_vec(), values.to_vec()).expect("values fill the shape")
}

fn counted(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    floats(shape, &(0..count).map(|index| (index * 37 % 23) as f32 - 11.0).collect::<Vec<_>>())
}

/// Runs one operator whose output shape it determines itself, or that is given.
fn apply(op: &Op, inputs: &[&Tensor], wanted: &[usize]) -> Result<Tensor, OpError> {
    let types: Vec<TensorType> = inputs.iter().map(|tensor| TensorType::of(tensor)).collect();
    let types: Vec<Option<&TensorType>> = types.iter().map(Some).collect();
    let outputs = infer(op, &types, &[wanted.to_vec()]).expect("the operator fits its inputs");
    let inputs: Vec<Option<&Tensor>> = inputs.iter().map(|&tensor| Some(tensor)).collect();
    let result = run(op, &inputs, &outputs)?.remove(0);
    assert_eq!(TensorType::of(&result), outputs[0]);
    Ok(result)
}

fn values(op: &Op, inputs: &[&Tensor], wanted: &[usize]) -> Vec<f64> {
    apply(op, inputs, wanted).expect("the operator runs").to_f64s()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn convolution_is_its_definition(
        (height, width) in (1usize..8, 1usize..8),
        (kernel_h, kernel_w) in (1usize..4, 1usize..4),
        strides in proptest::collection::vec(1usize..4, 2),
        dilations in proptest::collection::vec(1usize..3, 2),
        pads in proptest::collection::vec(0usize..3, 4),
        (groups, per_group, filters_per_group) in (1usize..3, 1usize..3, 1usize..3),
    ) {
        let (channels, filters) = (groups * per_group, groups * filters_per_group);
        let out = window_outputs(&[height, width], &[kernel_h, kernel_w], &strides, &pads, &dilations, false);
        prop_assume!(out.is_some());
        let out = out.unwrap_or_default();
        let (x, w) = (counted(&[2, channels, height, width]), counted(&[filters, per_group, kernel_h, kernel_w]));
        let op = Op::Conv(Conv {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            groups,
            epilogue: Epilogue::default(),
        });
        let actual = values(&op, &[&x, &w], &[]);
        let (x, w) = (x.to_f64s(), w.to_f64s());
        let mut index = 0;
        for image in 0..2 {
            for filter in 0..filters {
                for (row, column) in (0..out[0]).flat_map(|row| (0..out[1]).map(move |column| (row, column))) {
                    let mut sum = 0.0;
                    for channel in 0..per_group {
                        for (i, j) in (0..kernel_h).flat_map(|i| (0..kernel_w).map(move |j| (i, j))) {
                            let at_row = (row * strides[0] + i * dilations[0]) as i64 - pads[0] as i64;
                            let at_column = (column * strides[1] + j * dilations[1]) as i64 - pads[1] as i64;
                            if (0..height as i64).contains(&at_row) && (0..width as i64).contains(&at_column) {
                                let from = filter / filters_per_group * per_group + channel;
                                let plane = (image * channels + from) * height;
                                let pixel = x[(plane + at_row as usize) * width + at_column as usize];
                                sum += pixel * w[((filter * per_group + channel) * kernel_h + i) * kernel_w + j];
                            }
                        }
                    }
                    prop_assert_eq!(actual[index], sum);
                    index += 1;
                }
            }
        }
    }

    #[test]
    fn pooling_is_its_definition(
        (height, width) in (1usize..8, 1usize..8),
        kernel in proptest::collection::vec(1usize..4, 2),
        strides in proptest::collection::vec(1usize..4, 2),
        dilations in proptest::collection::vec(1usize..3, 2),
        pads in proptest::collection::vec(0usize..3, 4),
        (ceil, count_pad) in (any::<bool>(), any::<bool>()),
    ) {
        let image = [height, width];
        let out = window_outputs(&image, &kernel, &strides, &pads, &dilations, ceil);
        let reaches = [0, 1].map(|axis| (kernel[axis] - 1) * dilations[axis]);
        prop_assume!(out.is_some() && (0..4).all(|at| pads[at] <= reaches[at % 2]));
        let out = out.unwrap_or_default();
        let x = counted(&[2, 3, height, width]);
        let pooled = |kind| {
            let (kernel, strides) = (kernel.clone(), strides.clone());
            let op = Op::Pool(Pool { kind, kernel, strides, pads: pads.clone(), dilations: dilations.clone() });
            values(&op, &[&x], &[2, 3, out[0], out[1]])
        };
        let (largest, mean) = (pooled(PoolKind::Max), pooled(PoolKind::Average { count_pad }));
        for (plane, x) in x.to_f64s().chunks(height * width).enumerate() {
            for (row, column) in (0..out[0]).flat_map(|row| (0..out[1]).map(move |column| (row, column))) {
                let (mut top, mut sum, mut inside, mut padded) = (f64::NEG_INFINITY, 0f64, 0u32, 0u32);
                for (i, j) in (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| (i, j))) {
                    let at = [row * strides[0] + i * dilations[0], column * strides[1] + j * dilations[1]];
                    if (0..2).all(|axis| at[axis] < pads[axis] + image[axis] + pads[2 + axis]) {
                        padded += 1;
                    }
                    if (0..2).all(|axis| (pads[axis]..pads[axis] + image[axis]).contains(&at[axis])) {
                        let pixel = x[(at[0] - pads[0]) * width + at[1] - pads[1]];
                        (top, sum, inside) = (f64::max(top, pixel), sum + pixel, inside + 1);
                    }
                }
                let index = (plane * out[0] + row) * out[1] + column;
                prop_assert_eq!(largest[index], top);
                let expected = sum / f64::from(if count_pad { padded } else { inside });
                prop_assert!(inside == 0 || (mean[index] - expected).abs() < 1e-5, "{} not {expected}", mean[index]);
            }
        }
    }

    #[test]
    fn matrix_product_is_its_definition(
        (lead, m, k, n) in (1usize..3, 1usize..20, 1usize..6, 1usize..6),
        (trans_a, trans_b, broadcast) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let a = counted(&if trans_a { [lead, k, m] } else { [lead, m, k] });
        let b = counted(&[&[lead][..], &if trans_b { [n, k] } else { [k, n] }].concat()[usize::from(broadcast)..]);
        let op = Op::MatMul(MatMul { alpha: 0.5, trans_a, trans_b, epilogue: Epilogue::default() });
        let actual = values(&op, &[&a, &b], &[]);
        let (a, b) = (a.to_f64s(), b.to_f64s());
        for (index, actual) in actual.into_iter().enumerate() {
            let (at, row, column) = (index / (m * n), index / n % m, index % n);
            let left = |i: usize| a[at * m * k + if trans_a { i * m + row } else { row * k + i }];
            let matrix = if broadcast { 0 } else { at * k * n };
            let right = |i: usize| b[matrix + if trans_b { column * k + i } else { i * n + column }];
            prop_assert_eq!(actual, 0.5 * (0..k).map(|i| left(i) * right(i)).sum::<f64>());
        }
    }

    /// A transposed convolution is the adjoint of the convolution: <conv(x), y> = <x, transposed(y)>.
    #[test]
    fn transposed_convolution_is_the_adjoint(
        size in 3usize..8,
        kernel in 1usize..4,
        stride in 1usize..4,
        pad in 0usize..2,
        groups in 1usize..3,
    ) {
        let out = window_outputs(&[size], &[kernel], &[stride], &[pad, pad], &[1], false);
        prop_assume!(out.is_some());
        let out = out.unwrap_or_default()[0];
        let (x, w, y) =
            (counted(&[1, 2 * groups, size]), counted(&[3 * groups, 2, kernel]), counted(&[1, 3 * groups, out]));
        let (strides, dilations) = (vec![stride], vec![1]);
        let conv = Op::Conv(Conv {
            strides: strides.clone(),
            pads: vec![pad, pad],
            dilations: dilations.clone(),
            groups,
            epilogue: Epilogue::default(),
        });
        let transposed = Op::ConvTranspose(ConvTranspose { strides, pads: vec![pad], dilations, groups });
        let forward = values(&conv, &[&x, &w], &[]);
        let back = values(&transposed, &[&y, &w], &[1, 2 * groups, size]);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        prop_assert_eq!(dot(&forward, &y.to_f64s()), dot(&x.to_f64s(), &back));
    }
}

#[test]
fn epilogues_add_bias_and_residual_before_the_activation() {
    let epilogue = Epilogue { activation: Some(Activation::Relu) };
    let x = floats(&[1, 1, 2], &[1.0, -1.0]);
    let w = floats(&[1, 1, 1], &[2.0]);
    let (bias, residual) = (floats(&[1], &[0.5]), floats(&[1, 1, 2], &[-1.0, -1.0]));
    let conv = Op::Conv(Conv { strides: vec![1], pads: vec![0, 0], dilations: vec![1], groups: 1, epilogue });
    assert_eq!(values(&conv, &[&x, &w, &bias, &residual], &[]), [1.5, 0.0]);
    let product = Op::MatMul(MatMul { epilogue, ..MatMul::default() });
    let (a, b) = (floats(&[2, 1], &[1.0, -1.0]), floats(&[1, 1], &[2.0]));
    assert_eq!(values(&product, &[&a, &b, &bias, &floats(&[2, 1], &[-1.0, -1.0])], &[]), [1.5, 0.0]);
}

#[test]
fn vectors_are_rows_on_the_left_and_columns_on_the_right() {
    let op = Op::MatMul(MatMul::default());
    let (vector, matrix) = (floats(&[2], &[1.0, 10.0]), floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(values(&op, &[&vector, &matrix], &[]), [31.0, 42.0]);
    assert_eq!(values(&op, &[&matrix, &vector], &[]), [21.0, 43.0]);
    assert_eq!(apply(&op, &[&vector, &vector], &[]), Ok(Tensor::scalar(101f32)));
}

#[test]
fn pooling_counts_padding_only_when_asked() {
    let x = floats(&[1, 1, 3], &[1.0, 2.0, 4.0]);
    let pool = |kind| Op::Pool(Pool { kind, kernel: vec![2], strides: vec![2], pads: vec![1, 0], dilations: vec![1] });
    assert_eq!(values(&pool(PoolKind::Max), &[&x], &[1, 1, 2]), [1.0, 4.0]);
    assert_eq!(values(&pool(PoolKind::Average { count_pad: false }), &[&x], &[1, 1, 2]), [1.0, 3.0]);
    assert_eq!(values(&pool(PoolKind::Average { count_pad: true }), &[&x], &[1, 1, 2]), [0.5, 3.0]);
}

#[test]
fn nan_is_not_lost() {
    let nan = floats(&[2], &[f32::NAN, 1.0]);
    for op in [
        Op::Activation(Activation::Relu),
        Op::Activation(Activation::Clip { min: Some(0.0), max: Some(2.0) }),
        Op::Softmax { axis: 0, log: false },
    ] {
        assert!(values(&op, &[&nan], &[])[0].is_nan(), "{op:?}");
    }
    for op in [Binary::Max, Binary::Min] {
        assert!(values(&Op::Binary(op), &[&nan, &floats(&[1], &[0.0])], &[])[0].is_nan(), "{op:?}");
    }
}

#[test]
fn softmax_neither_overflows_nor_vanishes() {
    let x = floats(&[3], &[1000.0, 1000.0, -1000.0]);
    assert_eq!(values(&Op::Softmax { axis: 0, log: false }, &[&x], &[]), [0.5, 0.5, 0.0]);
    let log = values(&Op::Softmax { axis: 0, log: true }, &[&x], &[]);
    assert!((log[2] + 2000.0 + 2f64.ln()).abs() < 1e-3, "{log:?}");
}

#[test]
fn integers_wrap_and_division_by_zero_is_an_error() {
    let long = |values: &[i64]| Tensor::from_vec(vec![values.len()], values.to_vec()).expect("one dimension");
    let add = apply(&Op::Binary(Binary::Add), &[&long(&[i64::MAX]), &long(&[1])], &[]);
    assert_eq!(add, Ok(long(&[i64::MIN])));
    let power = apply(&Op::Binary(Binary::Pow), &[&long(&[3, -2]), &long(&[40, 63])], &[]);
    assert_eq!(power, Ok(long(&[3i64.wrapping_pow(40), i64::MIN])));
    let modulo = apply(&Op::Binary(Binary::Mod), &[&long(&[-7, 7]), &long(&[3, -3])], &[]);
    assert_eq!(modulo, Ok(long(&[2, -2])));
    let zero = apply(&Op::Binary(Binary::Div), &[&long(&[1]), &long(&[0])], &[]);
    assert_eq!(zero, Err(OpError::DivisionByZero));
}

#[test]
fn casts_truncate_and_saturate_floats_and_wrap_integers() {
    let x = floats(&[4], &[-1.9, 1.9, 1e30, f32::NAN]);
    assert_eq!(values(&Op::Cast { to: ElementType::I32 }, &[&x], &[]), [-1.0, 1.0, f64::from(i32::MAX), 0.0]);
    let wide = Tensor::from_vec(vec![2], vec![300i64, -1]).expect("one dimension");
    assert_eq!(values(&Op::Cast { to: ElementType::U8 }, &[&wide], &[]), [44.0, 255.0]);
}

#[test]
fn an_index_outside_of_its_axis_is_an_error() {
    let x = floats(&[3], &[1.0, 2.0, 3.0]);
    let index = |index: i64| Tensor::scalar(index);
    assert_eq!(values(&Op::Gather { axis: 0 }, &[&x, &index(-1)], &[]), [3.0]);
    for wrong in [3, -4, i64::MIN, i64::MAX] {
        let error = apply(&Op::Gather { axis: 0 }, &[&x, &index(wrong)], &[]);
        assert_eq!(error, Err(OpError::Index { op: "gather", index: wrong, size: 3 }));
    }
}

#[test]
fn padding_mirrors_wraps_and_cuts() {
    let x = floats(&[3], &[1.0, 2.0, 3.0]);
    let pad = |mode, begin| values(&Op::Pad { mode, begins: vec![begin] }, &[&x], &[7]);
    assert_eq!(pad(PadMode::Constant, 2), [0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    assert_eq!(pad(PadMode::Edge, 2), [1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
    assert_eq!(pad(PadMode::Reflect, 2), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    assert_eq!(pad(PadMode::Wrap, 2), [2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    assert_eq!(pad(PadMode::Constant, -1), [2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn resizing_doubles_and_interpolates() {
    let x = floats(&[2], &[0.0, 4.0]);
    let resize = |mode, coordinates| values(&Op::Resize(Resize { mode, coordinates, scales: vec![2.0] }), &[&x], &[4]);
    let nearest = ResizeMode::Nearest(ResizeNearest::Floor);
    assert_eq!(resize(nearest, ResizeCoordinates::Asymmetric), [0.0, 0.0, 4.0, 4.0]);
    assert_eq!(resize(ResizeMode::Linear, ResizeCoordinates::HalfPixel), [0.0, 1.0, 3.0, 4.0]);
    assert_eq!(resize(ResizeMode::Linear, ResizeCoordinates::Asymmetric), [0.0, 2.0, 4.0, 4.0]);
}

#[test]
fn a_graph_runs_on_exactly_its_inputs_and_can_be_stopped() {
    let mut graph = Graph::default();
    let x = graph.add_value("x", ElementType::F32, &[2]);
    let y = graph.add_value("y", ElementType::F32, &[2]);
    graph.inputs.push(x);
    graph.nodes.push(Node {
        op: Op::Unary(Unary::Neg),
        inputs: vec![Some(x)],
        outputs: vec![y],
        origins: vec!["negate".into()],
    });
    graph.outputs.push(crate::ir::Output { name: "y".into(), value: y });
    let given = |name: &str, tensor: Tensor| BTreeMap::from([(name.to_owned(), tensor)]);
    let good = given("x", floats(&[2], &[1.0, -2.0]));
    assert_eq!(execute(&graph, &good).map(|outputs| outputs["y"].to_f64s()), Ok(vec![-1.0, 2.0]));
    assert!(matches!(execute(&graph, &BTreeMap::new()), Err(OpError::InputNotGiven { .. })));
    assert!(matches!(execute(&graph, &given("x", floats(&[1], &[1.0]))), Err(OpError::InputDiffers { .. })));
    let mut more = good.clone();
    more.extend(given("z", floats(&[1], &[1.0])));
    assert!(matches!(execute(&graph, &more), Err(OpError::InputUnknown { .. })));
    let mut seen = Vec::new();
    let stopped = execute_observed(&graph, &good, &mut |id, _| {
        seen.push(id);
        ControlFlow::Break(())
    });
    assert_eq!((stopped, seen), (Err(OpError::Stopped), vec![y]));
}
