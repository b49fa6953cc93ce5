//! Where the largest or smallest of one long row is, by many blocks: each finds it in a part, and one finds it in theirs.

use super::{BLOCK, Generated, blocks, c_type, kernel, nest::behind_prelude, reduce::across};
use crate::view::View;

/// Elements of a thread, all of them read at once: few, so that many blocks look for little, unless there would be more
/// parts than one block joins at once.
const EACH: [u64; 2] = [2, 8];
/// Shorter rows are one block's.
const LONG: u64 = 8192;
/// Places are kept as floats, which hold all whole numbers up to this.
const LONGEST: u64 = 1 << 24;

/// Whether the elements are one row that is worth it.
pub fn fits(from: &View, results: u64) -> bool {
    results == 1 && from.is_rows() && from.kind.is_float() && (LONG..=LONGEST).contains(&from.elements())
}

fn each(elements: u64) -> u64 {
    if elements <= u64::from(BLOCK) * u64::from(BLOCK) * EACH[0] { EACH[0] } else { EACH[1] }
}

/// Parts of a row of so many elements.
pub fn parts(elements: u64) -> u64 {
    elements.div_ceil(u64::from(BLOCK) * each(elements))
}

/// What joins two, and what stands behind every element; of equal ones the first or the last counts.
fn head(largest: bool, last: bool) -> (String, String) {
    let (nearer, later) = (if largest { ">" } else { "<" }, if last { ">" } else { "<" });
    let join = format!("b.v {nearer} a.v || (b.v == a.v && b.at {later} a.at) ? b : a");
    let (sign, behind) = (if largest { "-" } else { "" }, if last { -1 } else { i32::MAX });
    let text = format!(
        "struct A {{ float v; int at; }};\n__device__ __forceinline__ A join(A a, A b) {{ return {join}; }}\n{}",
        across("all", "join(a, b)", true, BLOCK.into())
    );
    (text, format!("A acc = {{{sign}__int_as_float(0x7f800000), {behind}}};\n"))
}

/// The best of each part with its place, as two floats. Arguments: the row, `[parts][2]` in f32.
pub fn of_parts(from: &View, largest: bool, last: bool) -> Generated {
    let (text, start) = head(largest, last);
    let elements = from.elements();
    let each = each(elements);
    let body = format!(
        "{start}#pragma unroll\nfor (u32 j = 0; j < {each}u; j++) {{\n\
         const u32 r = (blockIdx.x * {each}u + j) * {BLOCK}u + threadIdx.x;\n\
         if (r < {elements}u) {{ A one = {{to_f(p[r]), (int)r}}; acc = join(acc, one); }}\n}}\n\
         acc = all(acc);\nif (threadIdx.x == 0) {{ q[blockIdx.x * 2] = acc.v; q[blockIdx.x * 2 + 1] = (float)acc.at; }}"
    );
    let parameters = [format!("const {}* __restrict__ p", c_type(from.kind)), "float* __restrict__ q".to_owned()];
    let source = kernel("best_of_parts", &parameters, BLOCK, &body);
    let grid = [blocks(elements, u64::from(BLOCK) * each), 1, 1];
    behind_prelude(Generated { source, grid, block: [BLOCK, 1, 1], shared_bytes: 0 }, &text)
}

/// Where the best of all is. Arguments: what [`of_parts`] made, the place.
pub fn of_all(parts: u64, to: &View, largest: bool, last: bool) -> Generated {
    let (text, start) = head(largest, last);
    let body = format!(
        "{start}for (u32 r = threadIdx.x; r < {parts}u; r += {BLOCK}u) {{\n\
         A one = {{p[r * 2], (int)p[r * 2 + 1]}}; acc = join(acc, one);\n}}\n\
         acc = all(acc);\nif (threadIdx.x == 0) put(q[0], (i64)acc.at);"
    );
    let parameters = ["const float* __restrict__ p".to_owned(), format!("{}* __restrict__ q", c_type(to.kind))];
    let source = kernel("best", &parameters, BLOCK, &body);
    behind_prelude(Generated { source, grid: [1; 3], block: [BLOCK, 1, 1], shared_bytes: 0 }, &text)
}
