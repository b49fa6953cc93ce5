//! ViT-B/16 for 224x224 pixels: 196 patches and a class token through twelve pre-normalised layers.
//!
//! Queries, keys and values come from one product and are told apart by a reshape, a transpose and three gathers, as
//! exporters of packed projections write it. Names are torchvision's.

use crate::{
    Batch, Style,
    builder::{BATCH, Graph, Value, int, ints},
    cnn::{Linear, linear},
    transformer::{GELU_GAIN, GeluConstants, LayerNorm, gelu, layer_norm, projection},
    weights::{Init, Outputs},
};
use planforge_onnx::proto::tensor_proto::DataType;

const LAYERS: usize = 12;
const HEADS: i64 = 12;
const HEAD: i64 = 64;
const HIDDEN: i64 = HEADS * HEAD;
const INNER: i64 = 3072;
const PATCH: i64 = 16;
const PATCHES: i64 = 14 * 14;
const TOKENS: i64 = PATCHES + 1;
const CLASSES: i64 = 1000;
const EPSILON: f32 = 1e-6;
/// `1 / sqrt(HEAD)`.
const SCORE_SCALE: f32 = 0.125;

/// Standard deviation of queries, keys and values: scores then vary by two, so that attention picks a few tokens of
/// many.
const PACKED_GAIN: f64 = std::f64::consts::SQRT_2;
/// Gain of what a layer adds to its input: twelve layers grow the sum gently.
const BRANCH_GAIN: f64 = 0.5;

/// Constants that every layer uses.
struct Constants {
    gelu: GeluConstants,
    score_scale: Value,
    pack: Value,
    join_heads: Value,
    parts: [Value; 3],
}

impl Constants {
    fn new(graph: &mut Graph) -> Self {
        let batch = graph.batch_or_copy();
        Self {
            gelu: GeluConstants {
                one: graph.scalar("one", 1.0),
                half: graph.scalar("half", 0.5),
                sqrt_two: graph.scalar("sqrt_two", std::f32::consts::SQRT_2),
            },
            score_scale: graph.scalar("score_scale", SCORE_SCALE),
            pack: graph.integers("packed_shape", &[5], &[batch, TOKENS, 3, HEADS, HEAD]),
            join_heads: graph.integers("join_heads_shape", &[3], &[batch, TOKENS, HIDDEN]),
            parts: [("query_index", 0), ("key_index", 1), ("value_index", 2)]
                .map(|(name, index)| graph.integers(name, &[], &[index])),
        }
    }
}

/// The graph; input `input` [batch, 3, 224, 224], output `logits` [batch, 1000].
pub fn vit_b_16(style: &Style) -> Graph {
    let mut graph = Graph::new("vit_b_16", style);
    let image = graph.input("input", DataType::Float, &[BATCH, 3, 224, 224]);
    let constants = Constants::new(&mut graph);
    let mut hidden = embedded(&mut graph, &image);
    for layer in 0..LAYERS {
        hidden = encoder_layer(&mut graph, &hidden, &constants, layer);
    }
    let hidden = normalised(&mut graph, "encoder.ln", &hidden);
    let first = graph.integers("class_index", &[], &[0]);
    let class = graph.node("/Gather", "Gather", &[&hidden, &first], vec![int("axis", 1)]);
    let head = Linear { name: "heads.head", from: HIDDEN, to: CLASSES, variance: 1.0, output: Some("logits") };
    let logits = linear(&mut graph, &class, &head);
    graph.output(&logits, &[BATCH, CLASSES]);
    graph
}

/// Patches behind the class token, each with its position.
fn embedded(graph: &mut Graph, image: &Value) -> Value {
    let fan_in = 3 * PATCH * PATCH;
    let init =
        Init::Centred { std: (fan_in as f64).sqrt().recip(), outputs: Outputs::Rows { length: fan_in as usize } };
    let weight = graph.parameter("conv_proj.weight", &[HIDDEN, 3, PATCH, PATCH], init);
    let bias = graph.parameter("conv_proj.bias", &[HIDDEN], Init::Bell { std: 0.1 });
    let attributes = vec![
        ints("dilations", &[1, 1]),
        int("group", 1),
        ints("kernel_shape", &[PATCH, PATCH]),
        ints("pads", &[0; 4]),
        ints("strides", &[PATCH, PATCH]),
    ];
    let patches = graph.node("/conv_proj/Conv", "Conv", &[image, &weight, &bias], attributes);
    let batch = graph.batch_or_copy();
    let flat = graph.integers("flat_shape", &[3], &[batch, HIDDEN, PATCHES]);
    let patches = graph.node("/Reshape", "Reshape", &[&patches, &flat], vec![]);
    let patches = graph.node("/Transpose", "Transpose", &[&patches], vec![ints("perm", &[0, 2, 1])]);
    let token = graph.parameter("class_token", &[1, 1, HIDDEN], Init::Bell { std: 1.0 });
    let shape = match graph.batch() {
        Batch::Fixed(size) => graph.integers("class_token_shape", &[3], &[size.into(), 1, HIDDEN]),
        Batch::Dynamic => {
            let shape = graph.node("/Shape", "Shape", &[image], vec![int("start", 0), int("end", 1)]);
            let rest = graph.integers("class_token_shape", &[2], &[1, HIDDEN]);
            graph.node("/Concat", "Concat", &[&shape, &rest], vec![int("axis", 0)])
        }
    };
    let token = graph.node("/Expand", "Expand", &[&token, &shape], vec![]);
    let tokens = graph.node("/Concat_1", "Concat", &[&token, &patches], vec![int("axis", 1)]);
    let positions = graph.parameter("encoder.pos_embedding", &[1, TOKENS, HIDDEN], Init::Bell { std: 0.3 });
    graph.node("/encoder/Add", "Add", &[&tokens, &positions], vec![])
}

fn encoder_layer(graph: &mut Graph, input: &Value, constants: &Constants, layer: usize) -> Value {
    let name = |part: &str| format!("encoder.layers.encoder_layer_{layer}.{part}");
    let path = |part: &str| format!("/encoder/layers/encoder_layer_{layer}/{part}");
    let normal = normalised(graph, &name("ln_1"), input);
    let context = attention(graph, &normal, constants, layer);
    let dense = name("self_attention.out_proj");
    let dense = projection(graph, &dense, &context, [HIDDEN, HIDDEN], BRANCH_GAIN);
    let sum = graph.node(&path("Add"), "Add", &[&dense, input], vec![]);
    let normal = normalised(graph, &name("ln_2"), &sum);
    let wide = projection(graph, &name("mlp.0"), &normal, [HIDDEN, INNER], 1.0);
    let activated = gelu(graph, &path("mlp/1"), &wide, &constants.gelu);
    let narrow = projection(graph, &name("mlp.3"), &activated, [INNER, HIDDEN], GELU_GAIN * BRANCH_GAIN);
    graph.node(&path("Add_1"), "Add", &[&sum, &narrow], vec![])
}

fn normalised(graph: &mut Graph, name: &str, input: &Value) -> Value {
    layer_norm(graph, input, &LayerNorm { name, size: HIDDEN, epsilon: EPSILON, output: None })
}

fn attention(graph: &mut Graph, input: &Value, constants: &Constants, layer: usize) -> Value {
    let path = |part: &str| format!("/encoder/layers/encoder_layer_{layer}/self_attention/{part}");
    let name = format!("encoder.layers.encoder_layer_{layer}.self_attention.in_proj");
    let packed = projection(graph, &name, input, [HIDDEN, 3 * HIDDEN], PACKED_GAIN);
    let packed = graph.node(&path("Reshape"), "Reshape", &[&packed, &constants.pack], vec![]);
    let order = vec![ints("perm", &[2, 0, 3, 1, 4])];
    let packed = graph.node(&path("Transpose"), "Transpose", &[&packed], order);
    let mut part = |node: &str, index: usize| {
        graph.node(&path(node), "Gather", &[&packed, &constants.parts[index]], vec![int("axis", 0)])
    };
    let (query, key, value) = (part("Gather", 0), part("Gather_1", 1), part("Gather_2", 2));
    let query = graph.node(&path("Mul"), "Mul", &[&query, &constants.score_scale], vec![]);
    let key = graph.node(&path("Transpose_1"), "Transpose", &[&key], vec![ints("perm", &[0, 1, 3, 2])]);
    let scores = graph.node(&path("MatMul"), "MatMul", &[&query, &key], vec![]);
    let weights = graph.node(&path("Softmax"), "Softmax", &[&scores], vec![int("axis", -1)]);
    let context = graph.node(&path("MatMul_1"), "MatMul", &[&weights, &value], vec![]);
    let context = graph.node(&path("Transpose_2"), "Transpose", &[&context], vec![ints("perm", &[0, 2, 1, 3])]);
    graph.node(&path("Reshape_1"), "Reshape", &[&context, &constants.join_heads], vec![])
}
