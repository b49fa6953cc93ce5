//! Plain loop nests: one thread for each index of some dimensions, reading and writing views of any rank, type and
//! strides at whatever places its body says. What has no kernel of its own is computed so.
//!
//! A body is C. It has the thread's place as `i0`, `i1`, .., reads operand `n` as `X0(..)`, `X1(..)`, .. in the type that
//! numbers of it are computed in, and writes by `put(Y(..), value)`.

use super::{
    BLOCK, Generated, blocks, c_type,
    expr::{Class, NoCode},
    kernel,
};
use crate::view::{Kind, View};
use std::fmt::Write as _;

/// Elements as the numbers that they are computed as.
const NUMBERS: &str = r"
__device__ __forceinline__ float num(half_t x) { return to_f(x); }
__device__ __forceinline__ float num(bf16_t x) { return to_f(x); }
__device__ __forceinline__ float num(float x) { return x; }
__device__ __forceinline__ double num(double x) { return x; }
__device__ __forceinline__ i64 num(int x) { return x; }
__device__ __forceinline__ i64 num(i64 x) { return x; }
__device__ __forceinline__ i64 num(short x) { return x; }
__device__ __forceinline__ i64 num(u16 x) { return x; }
__device__ __forceinline__ i64 num(u32 x) { return x; }
__device__ __forceinline__ i64 num(u8 x) { return x; }
__device__ __forceinline__ i64 num(i8 x) { return x; }
__device__ __forceinline__ unsigned long long num(unsigned long long x) { return x; }
";

/// The type that numbers of a kind are computed in.
pub fn number(kind: Kind) -> &'static str {
    match Class::of(kind) {
        Class::Bool => Class::Int.c_type(),
        class => class.c_type(),
    }
}

/// A function of real numbers of this kind: `expf` of floats is `exp` of doubles.
pub fn function(kind: Kind, name: &str) -> String {
    if kind == Kind::F64 { name.to_owned() } else { format!("{name}f") }
}

/// The place of the thread along so many dimensions, for `X` and `Y`.
pub fn indices(rank: usize) -> String {
    (0..rank).map(|axis| format!("i{axis}")).collect::<Vec<_>>().join(", ")
}

/// Parameters and macros for views that are read, then the one that is written.
pub(super) fn operands(reads: &[View], out: &View) -> (Vec<String>, String) {
    let mut head = String::from(NUMBERS);
    let mut parameters = Vec::new();
    let mut operand = |name: &str, pointer: &str, view: &View, with: [&str; 2]| {
        let names: Vec<String> = (0..view.rank()).map(|axis| format!("a{axis}")).collect();
        let terms = names.iter().zip(&view.strides).filter(|(_, stride)| **stride != 0);
        let terms: Vec<String> = terms.map(|(name, stride)| format!("(i64)({name}) * {stride}")).collect();
        let place = if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") };
        let _ = writeln!(head, "#define {name}({}) {}{pointer}[{place}]{}", names.join(", "), with[0], with[1]);
    };
    for (number, view) in reads.iter().enumerate() {
        operand(&format!("X{number}"), &format!("p{number}"), view, ["num(", ")"]);
        parameters.push(format!("const {}* __restrict__ p{number}", c_type(view.kind)));
    }
    operand("Y", "q", out, ["", ""]);
    parameters.push(format!("{}* q", c_type(out.kind)));
    (parameters, head)
}

/// Puts text between the prelude and the kernel.
pub(super) fn behind_prelude(mut generated: Generated, head: &str) -> Generated {
    let text = &mut generated.source.text;
    *text = text.replacen("extern \"C\"", &format!("{head}extern \"C\""), 1);
    generated
}

/// Arguments: the views that are read, then the one that is written, which the body may read as well.
pub fn generate(name: &str, reads: &[View], out: &View, dims: &[u64], body: &str) -> Result<Generated, NoCode> {
    let total = dims.iter().try_fold(1u64, |all, &size| all.checked_mul(size.max(1)));
    let most = u64::from(u32::MAX) - u64::from(BLOCK);
    let total = total.filter(|&total| total <= most && dims.iter().all(|&size| size <= i32::MAX as u64));
    let total = total.ok_or_else(|| NoCode(format!("{name} of {dims:?} elements")))?;
    let (parameters, head) = operands(reads, out);
    let mut place = format!("u32 rest = blockIdx.x * {BLOCK}u + threadIdx.x;\nif (rest >= {total}u) return;\n");
    for (axis, size) in dims.iter().enumerate().rev() {
        let size = (*size).max(1);
        let _ = match axis {
            0 => writeln!(place, "const int i0 = rest;"),
            _ => writeln!(place, "const int i{axis} = rest % {size}u; rest /= {size}u;"),
        };
    }
    let source = kernel(name, &parameters, BLOCK, &format!("{place}{body}"));
    let generated =
        Generated { source, grid: [blocks(total, BLOCK.into()), 1, 1], block: [BLOCK, 1, 1], shared_bytes: 0 };
    Ok(behind_prelude(generated, &head))
}
