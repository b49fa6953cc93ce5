//! BERT-base for a sequence of 128 tokens or of any length, from primitive operators, the way exporters write it.
//!
//! Attention is left in pieces (scaling, products, mask, softmax) and so is GELU (its `Erf`), so that recovering them is
//! the compiler's work. Names are those of the usual checkpoint.

use crate::{
    Style,
    builder::{BATCH, Graph, TOKENS, Value, float, int, ints},
    transformer::{GELU_GAIN, GeluConstants, LayerNorm, gelu, layer_norm, projection},
    weights::{Init, Outputs},
};
use planforge_onnx::proto::tensor_proto::DataType;

const LAYERS: usize = 12;
const HEADS: i64 = 12;
const HEAD: i64 = 64;
const HIDDEN: i64 = HEADS * HEAD;
const INNER: i64 = 3072;
const VOCABULARY: i64 = 30522;
const POSITIONS: i64 = 512;
const SEQUENCE: i64 = 128;
const EPSILON: f32 = 1e-12;
/// Queries and keys are both multiplied by the root of `1 / sqrt(HEAD)`, as exporters do to keep scores in range.
const SCORE_SCALE: f32 = 0.353_553_4;

/// Standard deviation of queries and keys: scores then vary by two, so that attention picks a few tokens of many and
/// its output does not average out to nothing.
const QUERY_GAIN: f64 = std::f64::consts::SQRT_2;
/// Gain that makes up for what the averaging of attention takes away.
const CONTEXT_GAIN: f64 = 1.5;

/// The graph; inputs `input_ids` and `attention_mask` int64 [batch, 128], outputs `last_hidden_state` [batch, 128, 768] and
/// `pooled` [batch, 768]. An open sequence takes the place of 128 and may be up to 512.
pub fn bert_base(style: &Style) -> Graph {
    let mut graph = Graph::new("bert_base", style);
    let tokens = if style.open_sequence { TOKENS } else { SEQUENCE };
    let ids = graph.input("input_ids", DataType::Int64, &[BATCH, tokens]);
    let mask = graph.input("attention_mask", DataType::Int64, &[BATCH, tokens]);
    let constants = Constants::new(&mut graph);
    let mask = additive_mask(&mut graph, &mask, &constants);
    let mut hidden = embeddings(&mut graph, &ids);
    for layer in 0..LAYERS {
        hidden = encoder_layer(&mut graph, &hidden, &mask, &constants, layer);
    }
    graph.output(&hidden, &[BATCH, tokens, HIDDEN]);
    let first = graph.integers("first_token", &[], &[0]);
    let first = graph.node("/pooler/Gather", "Gather", &[&hidden, &first], vec![int("axis", 1)]);
    let std = (HIDDEN as f64).sqrt().recip();
    let init = Init::Centred { std, outputs: Outputs::Rows { length: HIDDEN as usize } };
    let weight = graph.parameter("pooler.dense.weight", &[HIDDEN, HIDDEN], init);
    let bias = graph.parameter("pooler.dense.bias", &[HIDDEN], Init::Bell { std: 0.1 });
    let attributes = vec![float("alpha", 1.0), float("beta", 1.0), int("transB", 1)];
    let dense = graph.node("/pooler/dense/Gemm", "Gemm", &[&first, &weight, &bias], attributes);
    let pooled = graph.named_node("/pooler/activation/Tanh", "Tanh", &[&dense], vec![], "pooled");
    graph.output(&pooled, &[BATCH, HIDDEN]);
    graph
}

/// Constants that every layer uses.
struct Constants {
    gelu: GeluConstants,
    score_scale: Value,
    lowest: Value,
    axis_one: Value,
    axis_two: Value,
    split_heads: Value,
    join_heads: Value,
}

impl Constants {
    fn new(graph: &mut Graph) -> Self {
        let batch = graph.batch_or_copy();
        let tokens = if graph.open_sequence() { 0 } else { SEQUENCE };
        Self {
            gelu: GeluConstants {
                one: graph.scalar("one", 1.0),
                half: graph.scalar("half", 0.5),
                sqrt_two: graph.scalar("sqrt_two", std::f32::consts::SQRT_2),
            },
            score_scale: graph.scalar("score_scale", SCORE_SCALE),
            lowest: graph.scalar("lowest", f32::MIN),
            axis_one: graph.integers("axis_1", &[1], &[1]),
            axis_two: graph.integers("axis_2", &[1], &[2]),
            split_heads: graph.integers("split_heads_shape", &[4], &[batch, tokens, HEADS, HEAD]),
            join_heads: graph.integers("join_heads_shape", &[3], &[batch, tokens, HIDDEN]),
        }
    }
}

/// Zero where a token counts, the lowest number where it does not, shaped to be added to scores.
fn additive_mask(graph: &mut Graph, mask: &Value, constants: &Constants) -> Value {
    let mask = graph.node("/Unsqueeze", "Unsqueeze", &[mask, &constants.axis_one], vec![]);
    let mask = graph.node("/Unsqueeze_1", "Unsqueeze", &[&mask, &constants.axis_two], vec![]);
    let mask = graph.node("/Cast", "Cast", &[&mask], vec![int("to", DataType::Float as i64)]);
    let masked = graph.node("/Sub", "Sub", &[&constants.gelu.one, &mask], vec![]);
    graph.node("/Mul", "Mul", &[&masked, &constants.lowest], vec![])
}

fn embeddings(graph: &mut Graph, ids: &Value) -> Value {
    let table = |graph: &mut Graph, name: &str, rows, std| {
        graph.parameter(&format!("embeddings.{name}_embeddings.weight"), &[rows, HIDDEN], Init::Bell { std })
    };
    let words = table(graph, "word", VOCABULARY, 1.0);
    let positions = table(graph, "position", POSITIONS, 0.3);
    let types = table(graph, "token_type", 2, 0.3);
    let open = graph.open_sequence();
    let most = if open { POSITIONS } else { SEQUENCE };
    let mut position_ids = graph.integers("embeddings.position_ids", &[1, most], &(0..most).collect::<Vec<_>>());
    let mut type_ids = graph.integers("embeddings.token_type_ids", &[1, most], &vec![0; most as usize]);
    if open {
        // As many of them as there are tokens.
        let (zero, one) = (graph.integers("first", &[1], &[0]), graph.integers("second_axis", &[1], &[1]));
        let shape = graph.node("/embeddings/Shape", "Shape", &[ids], vec![]);
        let count = graph.node("/embeddings/Gather", "Gather", &[&shape, &one], vec![int("axis", 0)]);
        let slice = |graph: &mut Graph, number: &str, of: &Value| {
            graph.node(&format!("/embeddings/Slice{number}"), "Slice", &[of, &zero, &count, &one], vec![])
        };
        position_ids = slice(graph, "", &position_ids);
        type_ids = slice(graph, "_1", &type_ids);
    }
    let gather = |graph: &mut Graph, name: &str, table: &Value, ids: &Value| {
        graph.node(&format!("/embeddings/{name}_embeddings/Gather"), "Gather", &[table, ids], vec![])
    };
    let words = gather(graph, "word", &words, ids);
    let types = gather(graph, "token_type", &types, &type_ids);
    let sum = graph.node("/embeddings/Add", "Add", &[&words, &types], vec![]);
    let positions = gather(graph, "position", &positions, &position_ids);
    let sum = graph.node("/embeddings/Add_1", "Add", &[&sum, &positions], vec![]);
    normalised(graph, "embeddings.LayerNorm", &sum, None)
}

fn encoder_layer(graph: &mut Graph, input: &Value, mask: &Value, constants: &Constants, layer: usize) -> Value {
    let name = |part: &str| format!("encoder.layer.{layer}.{part}");
    let path = |part: &str| format!("/encoder/layer.{layer}/{part}");
    let attention = attention(graph, input, mask, constants, layer);
    let dense = projection(graph, &name("attention.output.dense"), &attention, [HIDDEN, HIDDEN], CONTEXT_GAIN);
    let sum = graph.node(&path("attention/output/Add"), "Add", &[&dense, input], vec![]);
    let attended = normalised(graph, &name("attention.output.LayerNorm"), &sum, None);
    let wide = projection(graph, &name("intermediate.dense"), &attended, [HIDDEN, INNER], 1.0);
    let activated = gelu(graph, &path("intermediate/intermediate_act_fn"), &wide, &constants.gelu);
    let narrow = projection(graph, &name("output.dense"), &activated, [INNER, HIDDEN], GELU_GAIN);
    let sum = graph.node(&path("output/Add"), "Add", &[&narrow, &attended], vec![]);
    let output = (layer + 1 == LAYERS).then_some("last_hidden_state");
    normalised(graph, &name("output.LayerNorm"), &sum, output)
}

/// Normalises the last axis; the output is called `output` when that is given.
fn normalised(graph: &mut Graph, name: &str, input: &Value, output: Option<&str>) -> Value {
    layer_norm(graph, input, &LayerNorm { name, size: HIDDEN, epsilon: EPSILON, output })
}

fn attention(graph: &mut Graph, input: &Value, mask: &Value, constants: &Constants, layer: usize) -> Value {
    let path = |part: &str| format!("/encoder/layer.{layer}/attention/self/{part}");
    let projected = |graph: &mut Graph, part: &str, number: usize, order: [i64; 4], gain| {
        let name = format!("encoder.layer.{layer}.attention.self.{part}");
        let flat = projection(graph, &name, input, [HIDDEN, HIDDEN], gain);
        let suffix = if number == 0 { String::new() } else { format!("_{number}") };
        let heads = graph.node(&path(&format!("Reshape{suffix}")), "Reshape", &[&flat, &constants.split_heads], vec![]);
        graph.node(&path(&format!("Transpose{suffix}")), "Transpose", &[&heads], vec![ints("perm", &order)])
    };
    let query = projected(graph, "query", 0, [0, 2, 1, 3], QUERY_GAIN);
    let key = projected(graph, "key", 1, [0, 2, 3, 1], QUERY_GAIN);
    let value = projected(graph, "value", 2, [0, 2, 1, 3], 1.0);
    let query = graph.node(&path("Mul"), "Mul", &[&query, &constants.score_scale], vec![]);
    let key = graph.node(&path("Mul_1"), "Mul", &[&key, &constants.score_scale], vec![]);
    let scores = graph.node(&path("MatMul"), "MatMul", &[&query, &key], vec![]);
    let scores = graph.node(&path("Add"), "Add", &[&scores, mask], vec![]);
    let weights = graph.node(&path("Softmax"), "Softmax", &[&scores], vec![int("axis", -1)]);
    let context = graph.node(&path("MatMul_1"), "MatMul", &[&weights, &value], vec![]);
    let context = graph.node(&path("Transpose_3"), "Transpose", &[&context], vec![ints("perm", &[0, 2, 1, 3])]);
    graph.node(&path("Reshape_3"), "Reshape", &[&context, &constants.join_heads], vec![])
}
