//! The same networks as transformers' models are exported: tokens, their places and a mask of all keys in, scores out,
//! and every cache comes out longer than it went in, by `Concat`. Nothing says which token is next.
//!
//! Ports have the names and open dimensions that Hugging Face's exporter gives them.

use super::{Decoder, GPT2, GPT2_TINY, LLAMA_1B, LLAMA_TINY, Shared, UNSEEN};
use crate::{
    Style,
    builder::{Graph, Value, int, ints},
};
use planforge_onnx::proto::tensor_proto::DataType;

const BATCH: &str = "batch_size";
const NEW: &str = "sequence_length";
const PAST: &str = "past_sequence_length";
const ALL: &str = "past_sequence_length + sequence_length";

/// GPT-2 small: `input_ids`, `attention_mask` (of past and new tokens), `position_ids`, and for each layer
/// `past_key_values.N.key` and `.value` [batch, 12, past, 64]; out come `logits` and `present.N.key` and `.value`.
pub fn gpt2_past(style: &Style) -> Graph {
    GPT2.growing("gpt2_past", style)
}

/// A decoder of the size of Llama 3.2 1B; ports as [`gpt2_past`] has them, caches [batch, 8, past, 64].
pub fn llama_1b_past(style: &Style) -> Graph {
    LLAMA_1B.growing("llama_1b_past", style)
}

/// A decoder like [`gpt2_past`] that takes no time.
pub fn gpt2_tiny_past(style: &Style) -> Graph {
    GPT2_TINY.growing("gpt2_tiny_past", style)
}

/// A decoder like [`llama_1b_past`] that takes no time.
pub fn llama_tiny_past(style: &Style) -> Graph {
    LLAMA_TINY.growing("llama_tiny_past", style)
}

impl Decoder {
    fn growing(&self, name: &str, style: &Style) -> Graph {
        let mut graph = Graph::new(name, style);
        let graph_ = &mut graph;
        let tokens = graph_.open_input("input_ids", DataType::Int64, &[BATCH, NEW]);
        let seen = graph_.open_input("attention_mask", DataType::Int64, &[BATCH, ALL]);
        let positions = graph_.open_input("position_ids", DataType::Int64, &[BATCH, NEW]);
        let [heads, size] = [self.shared_heads.to_string(), self.size.to_string()];
        let parts = ["key", "value"];
        let caches: Vec<[Value; 2]> = (0..self.layers)
            .map(|layer| {
                parts.map(|part| {
                    let name = format!("past_key_values.{layer}.{part}");
                    graph_.keep(&name);
                    graph_.open_input(&name, DataType::Float, &[BATCH, &heads, PAST, &size])
                })
            })
            .collect();
        let (table, mut hidden) = self.embedded(graph_, &tokens, &positions);
        let shared = self.shared_of_growing(graph_, &tokens, &seen, &positions);
        for (layer, cache) in caches.iter().enumerate() {
            let attention = |graph: &mut Graph, x: &Value| {
                let [query, key, value] = self.projected(graph, x, &shared, layer);
                let all = self.grown(graph, [&key, &value], cache, layer);
                self.attended(graph, &query, &all, &shared, layer)
            };
            hidden = self.layer(graph_, &hidden, layer, attention);
        }
        let hidden = self.normalised(graph_, "norm", &hidden);
        let turned = vec![ints("perm", &[1, 0])];
        let turned = graph_.node("/head/Transpose", "Transpose", &[&table], turned);
        let logits = graph_.named_node("/head/MatMul", "MatMul", &[&hidden, &turned], vec![], "logits");
        graph_.open_output(&logits, &[BATCH, NEW, &self.vocabulary.to_string()]);
        for layer in 0..self.layers {
            for part in parts {
                let name = format!("present.{layer}.{part}");
                graph_.keep(&name);
                graph_.open_output(&name, &[BATCH, &heads, ALL, &size]);
            }
        }
        graph
    }

    fn shared_of_growing(&self, graph: &mut Graph, tokens: &Value, seen: &Value, positions: &Value) -> Shared {
        let (nothing, unseen) = (graph.scalar("nothing", 0.0), graph.scalar("unseen", UNSEEN));
        let [zero, one] = [("zero", 0), ("one", 1)].map(|(name, value)| graph.integers(name, &[], &[value]));
        let mut node = |name: &str, op: &str, inputs: &[&Value]| graph.node(name, op, inputs, vec![]);
        // A token sees those before it, and of them what the mask says.
        let shape = node("/mask/Shape", "Shape", &[seen]);
        let all = node("/mask/Gather", "Gather", &[&shape, &one]);
        let shape = node("/mask/Shape_1", "Shape", &[tokens]);
        let new = node("/mask/Gather_1", "Gather", &[&shape, &one]);
        let past = node("/mask/Sub", "Sub", &[&all, &new]);
        let columns = node("/mask/Range", "Range", &[&zero, &all, &one]);
        let rows = node("/mask/Range_1", "Range", &[&past, &all, &one]);
        let rows = node("/mask/Unsqueeze", "Unsqueeze", &[&rows, &one]);
        let before = node("/mask/LessOrEqual", "LessOrEqual", &[&columns, &rows]);
        let axes = graph.integers("mask_axes", &[2], &[1, 2]);
        let seen = graph.node("/mask/Cast", "Cast", &[seen], vec![int("to", DataType::Bool as i64)]);
        let mut node = |name: &str, op: &str, inputs: &[&Value]| graph.node(name, op, inputs, vec![]);
        let seen = node("/mask/Unsqueeze_1", "Unsqueeze", &[&seen, &axes]);
        let seen = node("/mask/And", "And", &[&seen, &before]);
        let mask = node("/mask/Where", "Where", &[&seen, &nothing, &unseen]);
        let turn = self.turn(graph, positions).map(|tables| {
            tables.map(|table| graph.node(&format!("{table}/Unsqueeze"), "Unsqueeze", &[&table, &one], vec![]))
        });
        Shared {
            mask,
            turn,
            scale: graph.scalar("score_scale", 1.0 / (self.size as f32).sqrt()),
            // Zero keeps the batch and the number of tokens.
            split: graph.integers("split_heads", &[4], &[0, 0, self.heads, self.size]),
            split_shared: graph.integers("split_shared_heads", &[4], &[0, 0, self.shared_heads, self.size]),
            join: graph.integers("join_heads", &[3], &[0, 0, self.hidden()]),
        }
    }

    /// Keys and values with the new ones behind them, for each head of queries.
    fn grown(&self, graph: &mut Graph, new: [&Value; 2], cache: &[Value; 2], layer: usize) -> [Value; 2] {
        let path = |part: &str| format!("/layers.{layer}/attention/{part}");
        let shares = self.heads / self.shared_heads;
        [("key", &cache[0], new[0]), ("value", &cache[1], new[1])].map(|(part, past, new)| {
            let node = path(&format!("{part}/Concat"));
            let output = format!("present.{layer}.{part}");
            let all = graph.named_node(&node, "Concat", &[past, new], vec![int("axis", -2)], &output);
            if shares == 1 {
                return all;
            }
            let node = |op: &str| path(&format!("{part}/{op}"));
            let axis = graph.integers(&node("axis"), &[1], &[2]);
            let often = graph.integers(&node("often"), &[5], &[1, 1, shares, 1, 1]);
            let together = graph.integers(&node("together"), &[4], &[0, self.heads, -1, self.size]);
            let apart = graph.node(&node("Unsqueeze"), "Unsqueeze", &[&all, &axis], vec![]);
            let repeated = graph.node(&node("Expand"), "Expand", &[&apart, &often], vec![]);
            graph.node(&node("Reshape_1"), "Reshape", &[&repeated, &together], vec![])
        })
    }
}
