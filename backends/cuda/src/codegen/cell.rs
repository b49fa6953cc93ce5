//! Recurrent cells: a block for each direction of each sequence walks its steps, its threads share the units.
//!
//! States stay in shared memory and in f32 (f64 where the model has that) whatever the engine stores.

use super::{
    BLOCK, Generated,
    expr::NoCode,
    kernel,
    nest::{behind_prelude, function, number, operands},
};
use crate::view::{Kind, View};

/// Shared memory that every device gives a block without being asked for more.
const SHARED_BYTES: u64 = 48 << 10;

/// Which cell, and how it is written in its gates' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    Rnn,
    Gru { before_reset: bool },
    Lstm { input_forget: bool },
}

impl CellKind {
    /// Functions of one direction.
    fn functions(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 2,
            Self::Lstm { .. } => 3,
        }
    }
}

/// One recurrent operator. Optional operands are views as well where they are there.
#[derive(Clone, Debug)]
pub struct Cell<'a> {
    pub kind: CellKind,
    /// `[steps][batch][inputs]`.
    pub x: &'a View,
    /// `[directions][gates hidden][inputs]`.
    pub w: &'a View,
    /// `[directions][gates hidden][hidden]`.
    pub r: &'a View,
    /// `[directions][2 gates hidden]`.
    pub bias: Option<&'a View>,
    /// `[batch]`, whole numbers.
    pub lengths: Option<&'a View>,
    /// `[directions][batch][hidden]`.
    pub h: Option<&'a View>,
    pub c: Option<&'a View>,
    /// `[directions][3 hidden]`.
    pub peepholes: Option<&'a View>,
    /// By direction: whether it begins at a sequence's end.
    pub reverse: Vec<bool>,
    /// By direction, then by function.
    pub activations: &'a [String],
    pub clip: f32,
}

fn activation(name: &str, kind: Kind) -> String {
    let f = |name: &str| function(kind, name);
    match name {
        "Relu" => format!("{}(x, 0)", f("fmax")),
        "Tanh" => format!("{}(x)", f("tanh")),
        "Sigmoid" => format!("1 / (1 + {}(-x))", f("exp")),
        "HardSigmoid" => format!("{}({}((N)0.2 * x + (N)0.5, 0), 1)", f("fmin"), f("fmax")),
        "LeakyRelu" => "x < 0 ? (N)0.01 * x : x".into(),
        "Elu" => format!("x < 0 ? {}(x) : x", f("expm1")),
        "Softsign" => format!("x / (1 + {}(x))", f("fabs")),
        _ => format!("{}(x, 0) + {}({}(-{}(x)))", f("fmax"), f("log1p"), f("exp"), f("fabs")),
    }
}

/// Arguments: the operands that are there in the order of the fields, then `out`: `[steps + 2][directions][batch][hidden]`,
/// all hidden states and behind them the last one of each sequence and the last cell state.
pub fn generate(cell: &Cell<'_>, out: &View) -> Result<(Generated, Vec<View>), NoCode> {
    let [steps, batch, inputs] = [0, 1, 2].map(|axis| cell.x.dims[axis]);
    let (directions, hidden) = (cell.r.dims[0], cell.r.dims[2]);
    let kind = out.kind;
    // Hidden state, cell state, what a reset gate kept, and the next hidden state.
    let states = 4;
    if states * hidden * if kind == Kind::F64 { 8 } else { 4 } > SHARED_BYTES {
        return Err(NoCode(format!("a recurrent cell of {hidden} units")));
    }
    let mut reads = vec![cell.x.clone(), cell.w.clone(), cell.r.clone()];
    let mut named = |view: Option<&View>, text: &dyn Fn(usize) -> String, otherwise: &str| match view {
        Some(view) => {
            reads.push(view.clone());
            text(reads.len() - 1)
        }
        None => otherwise.to_owned(),
    };
    let bias = named(cell.bias, &|n| format!("X{n}(d, side * G * H + row)"), "(N)0");
    let length = named(cell.lengths, &|n| format!("(int)X{n}(b)"), "STEPS");
    let h0 = named(cell.h, &|n| format!("X{n}(d, b, u)"), "(N)0");
    let c0 = named(cell.c, &|n| format!("X{n}(d, b, u)"), "(N)0");
    let peephole = named(cell.peepholes, &|n| format!("X{n}(d, gate * H + u)"), "(N)0");
    let (parameters, mut head) = operands(&reads, out);
    let clip = match cell.clip.is_finite() {
        true => format!("x = x < -{clip:e} ? (N)-{clip:e} : x > {clip:e} ? (N){clip:e} : x;", clip = cell.clip),
        false => String::new(),
    };
    let functions = cell.kind.functions();
    head += &format!("typedef {} N;\n", number(kind));
    for place in 0..functions {
        let of = |direction: usize| activation(&cell.activations[direction * functions + place], kind);
        let text = match directions {
            1 => of(0),
            _ => format!("d == 0 ? ({}) : ({})", of(0), of(1)),
        };
        // What ends a cell is not clipped.
        let clip = if place == 2 { "" } else { &clip };
        head += &format!("__device__ __forceinline__ N f{place}(int d, N x) {{ {clip} return {text}; }}\n");
    }
    let gates = cell.w.dims[1] / hidden.max(1);
    let step = match cell.kind {
        CellKind::Rnn => "const N next = f0(d, IN(0) + RE(0, h));\n".to_owned(),
        CellKind::Lstm { input_forget } => format!(
            "const N old = c[u], in = f0(d, IN(0) + RE(0, h) + PEEP(0) * old);\n\
             const N forget = {};\n\
             const N fresh = forget * old + in * f1(d, IN(3) + RE(3, h));\n\
             const N next = f0(d, IN(1) + RE(1, h) + PEEP(1) * fresh) * f2(d, fresh);\nc[u] = fresh;\n",
            if input_forget { "1 - in" } else { "f0(d, IN(2) + RE(2, h) + PEEP(2) * old)" }
        ),
        CellKind::Gru { before_reset } => format!(
            "const N update = f0(d, IN(0) + RE(0, h));\n\
             const N fresh = f1(d, IN(2) + {});\n\
             const N next = (1 - update) * fresh + update * h[u];\n",
            if before_reset { "f0(d, IN(1) + RE(1, h)) * RE(2, h)" } else { "RE(2, kept)" }
        ),
    };
    // What the reset gate leaves of every unit is there before any unit asks for it.
    let before = match cell.kind {
        CellKind::Gru { before_reset: false } => {
            "for (int u = threadIdx.x; u < H; u += THREADS) kept[u] = f0(d, IN(1) + RE(1, h)) * h[u];\n__syncthreads();\n"
        }
        _ => "",
    };
    let reverse = cell.reverse.iter().enumerate().filter(|(_, reverse)| **reverse);
    let reverse: Vec<String> = reverse.map(|(direction, _)| format!("d == {direction}")).collect();
    let reverse = if reverse.is_empty() { "false".to_owned() } else { reverse.join(" || ") };
    head += &format!(
        "#define STEPS {steps}\n#define BATCH {batch}\n#define I {inputs}\n#define H {hidden}\n#define G {gates}\n\
         #define THREADS {BLOCK}\n\
         #define IN(gate) input(gate, d, b, at, u{arguments})\n#define RE(gate, from) recurrent(gate, d, from, u{arguments})\n\
         #define PEEP(g) peephole(g, d, u{arguments})\n\
         __device__ __forceinline__ N bias(int side, int row, int d{parameters}) {{ return {bias}; }}\n\
         __device__ __forceinline__ N peephole(int gate, int d, int u{parameters}) {{ return {peephole}; }}\n\
         __device__ N input(int gate, int d, int b, int at, int u{parameters}) {{\n\
         const int row = gate * H + u; N sum = 0;\nfor (int i = 0; i < I; i++) sum += X0(at, b, i) * X1(d, row, i);\n\
         return sum + bias(0, row, d{arguments});\n}}\n\
         __device__ N recurrent(int gate, int d, const N* from, int u{parameters}) {{\n\
         const int row = gate * H + u; N sum = 0;\nfor (int i = 0; i < H; i++) sum += from[i] * X2(d, row, i);\n\
         return sum + bias(1, row, d{arguments});\n}}\n",
        parameters = reads_of(&parameters),
        arguments = (0..reads.len()).map(|number| format!(", p{number}")).collect::<String>(),
    );
    let body = format!(
        "const int b = blockIdx.x % BATCH, d = blockIdx.x / BATCH;\n\
         __shared__ N h[H], c[H], kept[H], news[H];\n\
         for (int u = threadIdx.x; u < H; u += THREADS) {{ h[u] = {h0}; c[u] = {c0}; }}\n\
         __syncthreads();\n\
         const int length = min(STEPS, {length});\nconst bool reverse = {reverse};\n\
         for (int step = 0; step < length; step++) {{\nconst int at = reverse ? length - 1 - step : step;\n{before}\
         for (int u = threadIdx.x; u < H; u += THREADS) {{\n{step}put(Y(at, d, b, u), next);\nnews[u] = next;\n}}\n\
         __syncthreads();\nfor (int u = threadIdx.x; u < H; u += THREADS) h[u] = news[u];\n__syncthreads();\n}}\n\
         for (int u = threadIdx.x; u < H; u += THREADS) {{\n\
         for (int at = length < 0 ? 0 : length; at < STEPS; at++) put(Y(at, d, b, u), (N)0);\n\
         put(Y(STEPS, d, b, u), h[u]);\nput(Y(STEPS + 1, d, b, u), c[u]);\n}}",
    );
    let source = kernel("cell", &parameters, BLOCK, &body);
    let blocks = u32::try_from(batch * directions).map_err(|_| NoCode(format!("{batch} sequences at once")))?;
    let generated = Generated { source, grid: [blocks.max(1), 1, 1], block: [BLOCK, 1, 1], shared_bytes: 0 };
    Ok((behind_prelude(generated, &head), reads))
}

/// What is read, as parameters of a function behind others.
fn reads_of(parameters: &[String]) -> String {
    let (_, reads) = parameters.split_last().expect("a kernel writes something");
    reads.iter().map(|parameter| format!(", {}", parameter.replace(" __restrict__", ""))).collect()
}
