//! One step of a decoder of text: a token and its place in, the scores of the next token and the token out, between them
//! caches of keys and values with room for a fixed number of places, each with one place written.
//!
//! Two families: GPT-2 (learnt positions, LayerNorm, GELU) and Llama (rotary positions, RMS normalisation, heads of
//! queries that share keys and values, gated feed-forward). Attention is left in pieces, as exporters write it: the
//! caches are updated by `ScatterElements` at the token's place, heads of keys are repeated by `Expand`, and what lies
//! behind the token's place is masked by comparing all places with it. `growing` has the same networks with caches that
//! are longer at every run.

mod growing;

pub use growing::{gpt2_past, gpt2_tiny_past, llama_1b_past, llama_tiny_past};

use crate::{
    Style,
    builder::{Graph, Value, int, ints},
    cnn::path,
    transformer::{GELU_GAIN, LayerNorm, layer_norm, projection},
    trigonometry::turns,
    weights::{Init, Outputs},
};
use planforge_onnx::proto::tensor_proto::DataType;

/// Which family a decoder is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Gpt2,
    Llama,
}

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug)]
struct Decoder {
    family: Family,
    layers: usize,
    heads: i64,
    /// Heads of keys and values; each is read by `heads / shared_heads` heads of queries.
    shared_heads: i64,
    /// Size of a head.
    size: i64,
    inner: i64,
    vocabulary: i64,
    /// Places that the caches have room for.
    places: i64,
}

const GPT2: Decoder = Decoder {
    family: Family::Gpt2,
    layers: 12,
    heads: 12,
    shared_heads: 12,
    size: 64,
    inner: 3072,
    vocabulary: 50257,
    places: 1024,
};

const LLAMA_1B: Decoder = Decoder {
    family: Family::Llama,
    layers: 16,
    heads: 32,
    shared_heads: 8,
    size: 64,
    inner: 8192,
    vocabulary: 128_256,
    places: 2048,
};

const GPT2_TINY: Decoder = Decoder {
    family: Family::Gpt2,
    layers: 2,
    heads: 4,
    shared_heads: 4,
    size: 16,
    inner: 128,
    vocabulary: 67,
    places: 48,
};

const LLAMA_TINY: Decoder = Decoder {
    family: Family::Llama,
    layers: 2,
    heads: 4,
    shared_heads: 2,
    size: 16,
    inner: 96,
    vocabulary: 8200,
    places: 48,
};

const EPSILON: f32 = 1e-5;
/// The angles of rotary positions: the base of Llama 3.
const ROTARY_BASE: f64 = 500_000.0;
/// The least that a half holds: added to the scores of keys that may not be seen.
const UNSEEN: f32 = -65_504.0;
/// Scores vary by two, so that attention picks a few tokens of many.
const QUERY_GAIN: f64 = std::f64::consts::SQRT_2;
/// Gain that makes up for what the averaging of attention takes away.
const CONTEXT_GAIN: f64 = 1.5;

/// GPT-2 small with 1024 places: `token` int64 `[1, 1]`, `position` int64 `[1]`, and for each layer `keys.N` and
/// `values.N` `[1, 12, 1024, 64]`; out come `logits` `[1, 50257]`, `next_token` int64 `[1, 1]`, and the caches as
/// `next_keys.N` and `next_values.N`.
pub fn gpt2(style: &Style) -> Graph {
    GPT2.graph("gpt2", style)
}

/// A decoder of the size of Llama 3.2 1B with 2048 places; ports as [`gpt2`] has them, caches `[1, 8, 2048, 64]`.
pub fn llama_1b(style: &Style) -> Graph {
    LLAMA_1B.graph("llama_1b", style)
}

/// A decoder like [`gpt2`] that takes no time.
pub fn gpt2_tiny(style: &Style) -> Graph {
    GPT2_TINY.graph("gpt2_tiny", style)
}

/// A decoder like [`llama_1b`] that takes no time.
pub fn llama_tiny(style: &Style) -> Graph {
    LLAMA_TINY.graph("llama_tiny", style)
}

/// What the layers share.
struct Shared {
    /// What is added to the scores: [1, 1, 1, places].
    mask: Value,
    /// Cosines and sines of the tokens' places, of Llama.
    turn: Option<[Value; 2]>,
    scale: Value,
    split: Value,
    split_shared: Value,
    join: Value,
}

impl Decoder {
    fn hidden(&self) -> i64 {
        self.heads * self.size
    }

    fn cache(&self) -> [i64; 4] {
        [1, self.shared_heads, self.places, self.size]
    }

    fn graph(&self, name: &str, style: &Style) -> Graph {
        let mut graph = Graph::new(name, style);
        let graph_ = &mut graph;
        let token = graph_.input("token", DataType::Int64, &[1, 1]);
        let position = graph_.input("position", DataType::Int64, &[1]);
        let caches: Vec<[Value; 2]> = (0..self.layers)
            .map(|layer| ["keys", "values"].map(|what| graph_.state_input(&format!("{what}.{layer}"), &self.cache())))
            .collect();
        let (table, mut hidden) = self.embedded(graph_, &token, &position);
        let (place, shared) = self.shared(graph_, &position);
        for (layer, cache) in caches.iter().enumerate() {
            let attention = |graph: &mut Graph, x: &Value| {
                let [query, key, value] = self.projected(graph, x, &shared, layer);
                let all = self.written(graph, [&key, &value], &place, cache, layer);
                self.attended(graph, &query, &all, &shared, layer)
            };
            hidden = self.layer(graph_, &hidden, layer, attention);
        }
        let hidden = self.normalised(graph_, "norm", &hidden);
        let row = graph_.integers("row", &[2], &[1, self.hidden()]);
        let row = graph_.node("/head/Reshape", "Reshape", &[&hidden, &row], vec![]);
        let logits = graph_.named_node("/head/Gemm", "Gemm", &[&row, &table], vec![int("transB", 1)], "logits");
        let best = vec![int("axis", 1), int("keepdims", 1)];
        let next = graph_.named_node("/head/ArgMax", "ArgMax", &[&logits], best, "next_token");
        graph_.output(&logits, &[1, self.vocabulary]);
        graph_.typed_output(&next, DataType::Int64, &[1, 1]);
        for layer in 0..self.layers {
            for what in ["next_keys", "next_values"] {
                graph_.state_output(&format!("{what}.{layer}"), &self.cache());
            }
        }
        graph
    }

    /// The table of tokens, and what stands in it for these at their places.
    fn embedded(&self, graph: &mut Graph, token: &Value, position: &Value) -> (Value, Value) {
        let table = graph.parameter(
            "embedding.weight",
            &[self.vocabulary, self.hidden()],
            Init::Bell { std: 1.0 / (self.hidden() as f64).sqrt() },
        );
        let rows = graph.node("/embedding/Gather", "Gather", &[&table, token], vec![]);
        // As large as what follows expects, from the table whose transpose gives the scores.
        let gain = graph.scalar("embedding.gain", (self.hidden() as f32).sqrt());
        let mut hidden = graph.node("/embedding/Mul", "Mul", &[&rows, &gain], vec![]);
        if self.family == Family::Gpt2 {
            let init = Init::Bell { std: 0.3 };
            let places = graph.parameter("positions.weight", &[self.places, self.hidden()], init);
            let place = graph.node("/positions/Gather", "Gather", &[&places, position], vec![]);
            hidden = graph.node("/positions/Add", "Add", &[&hidden, &place], vec![]);
        }
        (table, hidden)
    }

    /// The token's place, for each element of a key ([1, heads, 1, size]), and what the layers share.
    fn shared(&self, graph: &mut Graph, position: &Value) -> (Value, Shared) {
        let new = graph.integers("one_place", &[4], &[1, self.shared_heads, 1, self.size]);
        let place = graph.node("/place/Expand", "Expand", &[position, &new], vec![]);
        let all: Vec<i64> = (0..self.places).collect();
        let all = graph.integers("all_places", &[1, 1, 1, self.places], &all);
        let seen = graph.node("/mask/LessOrEqual", "LessOrEqual", &[&all, position], vec![]);
        let (nothing, unseen) = (graph.scalar("nothing", 0.0), graph.scalar("unseen", UNSEEN));
        let mask = graph.node("/mask/Where", "Where", &[&seen, &nothing, &unseen], vec![]);
        let turn = self.turn(graph, position);
        let shared = Shared {
            mask,
            turn,
            scale: graph.scalar("score_scale", 1.0 / (self.size as f32).sqrt()),
            split: graph.integers("split_heads", &[4], &[1, 1, self.heads, self.size]),
            split_shared: graph.integers("split_shared_heads", &[4], &[1, 1, self.shared_heads, self.size]),
            join: graph.integers("join_heads", &[3], &[1, 1, self.hidden()]),
        };
        (place, shared)
    }

    /// Cosines and sines of places, of Llama.
    fn turn(&self, graph: &mut Graph, position: &Value) -> Option<[Value; 2]> {
        if self.family == Family::Gpt2 {
            return None;
        }
        let [cosines, sines] = turns(ROTARY_BASE, self.places as usize, self.size as usize / 2);
        let dims = [self.places, self.size];
        // Both halves of a head turn by the same angles.
        let both = |half: Vec<f32>| -> Vec<f32> {
            half.chunks(self.size as usize / 2).flat_map(|row| row.iter().chain(row).copied()).collect()
        };
        let tables = [("cosines", cosines), ("sines", sines)];
        Some(tables.map(|(name, half)| {
            let table = graph.matrix(name, &dims, &both(half));
            graph.node(&format!("/{name}/Gather"), "Gather", &[&table, position], vec![])
        }))
    }

    fn normalised(&self, graph: &mut Graph, name: &str, x: &Value) -> Value {
        if self.family == Family::Gpt2 {
            return layer_norm(graph, x, &LayerNorm { name, size: self.hidden(), epsilon: EPSILON, output: None });
        }
        let path = path(name);
        let node = |op: &str| format!("{path}/{op}");
        let gamma = graph.parameter(&format!("{name}.weight"), &[self.hidden()], Init::Uniform { low: 0.8, high: 1.2 });
        let (two, epsilon) = (graph.scalar(&node("two"), 2.0), graph.scalar(&node("epsilon"), EPSILON));
        let squares = graph.node(&node("Pow"), "Pow", &[x, &two], vec![]);
        let average = vec![ints("axes", &[-1]), int("keepdims", 1)];
        let mean = graph.node(&node("ReduceMean"), "ReduceMean", &[&squares], average);
        let shifted = graph.node(&node("Add"), "Add", &[&mean, &epsilon], vec![]);
        let root = graph.node(&node("Sqrt"), "Sqrt", &[&shifted], vec![]);
        let inverse = graph.node(&node("Reciprocal"), "Reciprocal", &[&root], vec![]);
        let normal = graph.node(&node("Mul"), "Mul", &[x, &inverse], vec![]);
        graph.node(&node("Mul_1"), "Mul", &[&gamma, &normal], vec![])
    }

    /// A product with a stored matrix, with a bias where the family has them.
    fn linear(&self, graph: &mut Graph, name: &str, x: &Value, [from, to]: [i64; 2], gain: f64) -> Value {
        if self.family == Family::Gpt2 {
            return projection(graph, name, x, [from, to], gain);
        }
        let init = Init::Centred { std: gain / (from as f64).sqrt(), outputs: Outputs::Columns { count: to as usize } };
        let weight = graph.parameter(&format!("{name}.weight"), &[from, to], init);
        graph.node(&format!("{}/MatMul", path(name)), "MatMul", &[x, &weight], vec![])
    }

    fn layer(
        &self,
        graph: &mut Graph,
        x: &Value,
        layer: usize,
        attention: impl FnOnce(&mut Graph, &Value) -> Value,
    ) -> Value {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normal = self.normalised(graph, &name("attention_norm"), x);
        let context = attention(graph, &normal);
        let square = [self.hidden(), self.hidden()];
        // What is added to the stream is small beside it, as in trained networks.
        let deep = 1.0 / (2.0 * self.layers as f64).sqrt();
        let attended = self.linear(graph, &name("attention.output"), &context, square, CONTEXT_GAIN * deep);
        let x = graph.node(&format!("{}/Add", path(&name("attention.residual"))), "Add", &[x, &attended], vec![]);
        let normal = self.normalised(graph, &name("feed_forward_norm"), &x);
        let path = path(&name("feed_forward"));
        let (wide, back) = ([self.hidden(), self.inner], [self.inner, self.hidden()]);
        let inner = match self.family {
            Family::Gpt2 => {
                let up = self.linear(graph, &name("feed_forward.up"), &normal, wide, 1.0);
                gelu_by_tanh(graph, &path, &up)
            }
            Family::Llama => {
                let gate = self.linear(graph, &name("feed_forward.gate"), &normal, wide, 1.0);
                let up = self.linear(graph, &name("feed_forward.up"), &normal, wide, 1.0);
                let opened = graph.node(&format!("{path}/Sigmoid"), "Sigmoid", &[&gate], vec![]);
                let opened = graph.node(&format!("{path}/Mul"), "Mul", &[&gate, &opened], vec![]);
                graph.node(&format!("{path}/Mul_1"), "Mul", &[&opened, &up], vec![])
            }
        };
        let down = self.linear(graph, &name("feed_forward.down"), &inner, back, GELU_GAIN * deep);
        graph.node(&format!("{path}/residual/Add"), "Add", &[&x, &down], vec![])
    }

    /// Queries, keys and values of what is new, by head.
    fn projected(&self, graph: &mut Graph, x: &Value, shared: &Shared, layer: usize) -> [Value; 3] {
        let name = |part: &str| format!("layers.{layer}.attention.{part}");
        let path = |part: &str| format!("/layers.{layer}/attention/{part}");
        let hidden = self.hidden();
        let width = self.shared_heads * self.size;
        let by_head = |graph: &mut Graph, part: &str, to: i64, split: &Value, gain| {
            let flat = self.linear(graph, &name(part), x, [hidden, to], gain);
            let heads = graph.node(&path(&format!("{part}/Reshape")), "Reshape", &[&flat, split], vec![]);
            let order = vec![ints("perm", &[0, 2, 1, 3])];
            graph.node(&path(&format!("{part}/Transpose")), "Transpose", &[&heads], order)
        };
        let mut query = by_head(graph, "query", hidden, &shared.split, QUERY_GAIN);
        let mut key = by_head(graph, "key", width, &shared.split_shared, QUERY_GAIN);
        let value = by_head(graph, "value", width, &shared.split_shared, 1.0);
        if let Some(turn) = &shared.turn {
            query = self.turned(graph, &path("query"), &query, turn);
            key = self.turned(graph, &path("key"), &key, turn);
        }
        [query, key, value]
    }

    /// Keys and values with the new ones at the token's place, for each head of queries.
    fn written(
        &self,
        graph: &mut Graph,
        new: [&Value; 2],
        place: &Value,
        cache: &[Value; 2],
        layer: usize,
    ) -> [Value; 2] {
        let path = |part: &str| format!("/layers.{layer}/attention/{part}");
        let mut updated =
            [(&cache[0], new[0], "next_keys"), (&cache[1], new[1], "next_values")].map(|(old, new, what)| {
                let inputs = [old, place, new];
                let node = path(&format!("{what}/ScatterElements"));
                graph.named_node(&node, "ScatterElements", &inputs, vec![int("axis", 2)], &format!("{what}.{layer}"))
            });
        let shares = self.heads / self.shared_heads;
        if shares > 1 {
            let [_, heads, places, size] = self.cache();
            let apart = graph.integers(&path("apart"), &[5], &[1, heads, 1, places, size]);
            let often = graph.integers(&path("often"), &[5], &[1, heads, shares, places, size]);
            let together = graph.integers(&path("together"), &[4], &[1, self.heads, places, size]);
            updated = [("keys", &updated[0]), ("values", &updated[1])].map(|(what, all)| {
                let node = |op: &str| path(&format!("{what}/{op}"));
                let apart = graph.node(&node("Reshape"), "Reshape", &[all, &apart], vec![]);
                let repeated = graph.node(&node("Expand"), "Expand", &[&apart, &often], vec![]);
                graph.node(&node("Reshape_1"), "Reshape", &[&repeated, &together], vec![])
            });
        }
        updated
    }

    /// What a query finds among keys and values of its own heads.
    fn attended(&self, graph: &mut Graph, query: &Value, among: &[Value; 2], shared: &Shared, layer: usize) -> Value {
        let path = |part: &str| format!("/layers.{layer}/attention/{part}");
        let [keys, values] = among;
        let turned = vec![ints("perm", &[0, 1, 3, 2])];
        let turned = graph.node(&path("Transpose"), "Transpose", &[keys], turned);
        let scores = graph.node(&path("MatMul"), "MatMul", &[query, &turned], vec![]);
        let scores = graph.node(&path("Mul"), "Mul", &[&scores, &shared.scale], vec![]);
        let scores = graph.node(&path("Add"), "Add", &[&scores, &shared.mask], vec![]);
        let weights = graph.node(&path("Softmax"), "Softmax", &[&scores], vec![int("axis", -1)]);
        let context = graph.node(&path("MatMul_1"), "MatMul", &[&weights, values], vec![]);
        let order = vec![ints("perm", &[0, 2, 1, 3])];
        let context = graph.node(&path("Transpose_1"), "Transpose", &[&context], order);
        graph.node(&path("Reshape"), "Reshape", &[&context, &shared.join], vec![])
    }

    /// `x cos + (-second half, first half) sin`.
    fn turned(&self, graph: &mut Graph, name: &str, x: &Value, [cosines, sines]: &[Value; 2]) -> Value {
        let node = |op: &str| format!("{name}/rotary/{op}");
        let half = self.size / 2;
        let mut part = |suffix: &str, from: i64, to: i64| {
            let bounds = [("starts", from), ("ends", to), ("axes", 3)].map(|(what, at)| {
                let name = node(&format!("Slice{suffix}/{what}"));
                graph.integers(&name, &[1], &[at])
            });
            graph.node(&node(&format!("Slice{suffix}")), "Slice", &[x, &bounds[0], &bounds[1], &bounds[2]], vec![])
        };
        let (first, second) = (part("", 0, half), part("_1", half, self.size));
        let negated = graph.node(&node("Neg"), "Neg", &[&second], vec![]);
        let other = graph.node(&node("Concat"), "Concat", &[&negated, &first], vec![int("axis", -1)]);
        let along = graph.node(&node("Mul"), "Mul", &[x, cosines], vec![]);
        let across = graph.node(&node("Mul_1"), "Mul", &[&other, sines], vec![]);
        graph.node(&node("Add"), "Add", &[&along, &across], vec![])
    }
}

/// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, as GPT-2 writes it.
fn gelu_by_tanh(graph: &mut Graph, path: &str, x: &Value) -> Value {
    let node = |op: &str| format!("{path}/gelu/{op}");
    let mut number = |name: &str, value: f32| graph.scalar(&node(name), value);
    let (three, cubic, root) = (number("three", 3.0), number("cubic", 0.044_715), number("root", 0.797_884_6));
    let (one, half) = (number("one", 1.0), number("half", 0.5));
    let cubed = graph.node(&node("Pow"), "Pow", &[x, &three], vec![]);
    let small = graph.node(&node("Mul"), "Mul", &[&cubed, &cubic], vec![]);
    let sum = graph.node(&node("Add"), "Add", &[x, &small], vec![]);
    let scaled = graph.node(&node("Mul_1"), "Mul", &[&sum, &root], vec![]);
    let bent = graph.node(&node("Tanh"), "Tanh", &[&scaled], vec![]);
    let gate = graph.node(&node("Add_1"), "Add", &[&bent, &one], vec![]);
    let halved = graph.node(&node("Mul_2"), "Mul", &[x, &half], vec![]);
    graph.node(&node("Mul_3"), "Mul", &[&halved, &gate], vec![])
}
