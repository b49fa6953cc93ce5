//! Counting of n-grams.

use crate::{
    lower::{Lowering, Outcome},
    view::Kind,
};
use planforge_graph::ir::{NamedOp, Node};
use std::collections::BTreeMap;

impl Lowering<'_> {
    /// A thread for each place of each row counts the n-grams that belong there.
    pub(super) fn count_grams(&mut self, node: &Node, named: &NamedOp) -> Outcome<()> {
        let words = self.input_view(node, 0)?;
        let dims = self.dims(node.outputs[0])?;
        let (width, length) = (dims[dims.len() - 1], words.dims[words.rank() - 1]);
        let (counts, pool) = (named.ints("ngram_counts"), named.ints("pool"));
        let (places, weights) = (named.ints("ngram_indexes"), named.floats("weights"));
        // Of equal n-grams the last one counts.
        let mut grams: BTreeMap<&[i64], (i64, i64)> = BTreeMap::new();
        let mut number = 0;
        for (index, &begin) in counts.iter().enumerate() {
            let end = counts.get(index + 1).map_or(pool.len(), |&end| end as usize);
            for (at, gram) in pool[begin as usize..end].chunks_exact(index + 1).enumerate() {
                let place = *places.get(number).ok_or("an n-gram without a place")?;
                grams.insert(gram, (begin + (at * (index + 1)) as i64, place));
                number += 1;
            }
        }
        let known = named.size("min")..=named.size("max");
        let rows: Vec<f64> = grams
            .iter()
            .filter(|(gram, _)| known.contains(&gram.len()))
            .flat_map(|(gram, &(begin, place))| [begin as f64, gram.len() as f64, place as f64])
            .collect();
        let mut of_place = vec![1.0; width as usize];
        let mut weighted = vec![false; width as usize];
        for (&place, &weight) in places.iter().zip(weights) {
            let at = place as usize;
            if std::mem::replace(&mut weighted[at], true) {
                return Err("several weights for one place".into());
            }
            of_place[at] = f64::from(weight);
        }
        let value = match named.text("mode") {
            "IDF" => "f > 0 ? w : 0",
            "TFIDF" => "f * w",
            _ => "f",
        };
        let (row, place) = if dims.len() == 1 { ("", "i0") } else { ("i0, ", "i1") };
        let count = rows.len() as u64 / 3;
        let table = self.weights_view("grams", Kind::I64, &[count, 3], &rows);
        let pool: Vec<f64> = pool.iter().map(|&word| word as f64).collect();
        let pool = self.weights_view("pool", Kind::I64, &[pool.len() as u64], &pool);
        let weights = self.weights_view("weights", Kind::F32, &[width], &of_place);
        let body = format!(
            "float f = 0; const float w = X3({place});\nfor (int g = 0; g < {count}; g++) {{\n\
             if (X1(g, 2) != {place}) continue;\nconst int begin = X1(g, 0), size = X1(g, 1);\n\
             const int steps = size == 1 || {skip} + 1 > {length} ? {least} : {skip} + 1;\n\
             for (int step = 1; step <= steps; step++)\n\
             for (int start = 0; start + (size - 1) * step < {length}; start++) {{\n\
             bool same = true;\nfor (int at = 0; at < size && same; at++) same = X0({row}start + at * step) == X2(begin + at);\n\
             f += same;\n}}\n}}\nput(Y({row}{place}), {value});",
            skip = named.int("skip", 0),
            least = format_args!("(size == 1 ? 1 : {length})"),
        );
        self.nest_of_result(node, "n_grams", &[words, table, pool, weights], &body)
    }
}
