//! CUDA C++ of the kernels that are made for one step's exact shapes.
//!
//! Every size and stride is a constant of the source, so the compiler turns divisions into multiplications and unrolls
//! what it can; a kernel's only arguments are addresses. Arithmetic is in f32, storage as the views say. Sources use no
//! header at all.

pub mod any;
pub mod attention;
pub mod best;
pub mod candidates;
pub mod cell;
pub mod chain;
pub mod depthwise;
pub mod expr;
pub mod gemm;
pub mod heads;
pub mod late;
pub mod matvec;
pub mod nest;
pub mod norm;
pub mod one_token;
pub mod pack;
pub mod pointwise;
pub mod pool;
pub mod reduce;
pub mod staged;

use crate::{
    source::{Source, WAIT},
    view::Kind,
};
use planforge_kernels_cuda::device::Launch;

/// Threads of a block of kernels that have no reason for another number.
pub const BLOCK: u32 = 256;

/// A source and how it is launched. Its arguments are the addresses of the step's views, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    pub source: Source,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory of one block.
    pub shared_bytes: u32,
}

impl Generated {
    pub fn launch(&self) -> Launch {
        Launch { grid: self.grid, block: self.block, shared_bytes: self.shared_bytes }
    }
}

/// Bit of the dynamic shared memory that a launch asks for by which a kernel lets none behind it begin early; no tile
/// asks for so little. For libraries' kernels that did not prove to wait by themselves: some begin early where they may,
/// and then read what is not written yet.
pub(crate) const ALONE_BYTES: u32 = 16;

/// Conversions, vectors and functions that kernels share.
const PRELUDE: &str = concat!(
    r#"
// Where a kernel may begin early: let the next one do so too, unless the launch forbids it (ALONE_BYTES), and wait for
// all that the ones ahead have written. What they write is read through FRESH(pointer), taken behind the wait, in kernels
// that read anything ahead of it: what is read through a parameter that is const and restrict may be read at any time.
#if __CUDA_ARCH__ >= 900
#define LET_OTHERS_BEGIN \
    do { \
        unsigned int asked; \
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(asked)); \
        if (!(asked & 16u)) asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); \
    } while (0)
#define AFTER_OTHERS asm volatile("griddepcontrol.wait;" ::: "memory")
template <class T> __device__ __forceinline__ T* fresh_(T* p) {
    unsigned long long at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at) : : "memory");
    return (T*)__cvta_global_to_generic(at);
}
#define FRESH(pointer) fresh_(pointer)
#else
#define LET_OTHERS_BEGIN
#define AFTER_OTHERS
#define FRESH(pointer) (pointer)
#endif
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32; typedef long long i64;
template <int BYTES> struct Raw;
template <> struct Raw<1> { typedef u8 type; };
template <> struct Raw<2> { typedef u16 type; };
template <> struct Raw<4> { typedef u32 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<16> { typedef uint4 type; };
template <class T, int N> struct Vec {
    T v[N];
    static const int BYTES = sizeof(T) * N, CHUNK = BYTES < 16 ? BYTES : 16;
    typedef typename Raw<CHUNK>::type R;
    __device__ __forceinline__ void load(const T* p) {
        #pragma unroll
        for (int i = 0; i < BYTES / CHUNK; i++) { R r = reinterpret_cast<const R*>(p)[i]; memcpy(reinterpret_cast<char*>(v) + i * CHUNK, &r, CHUNK); }
    }
    __device__ __forceinline__ void store(T* p) const {
        #pragma unroll
        for (int i = 0; i < BYTES / CHUNK; i++) { R r; memcpy(&r, reinterpret_cast<const char*>(v) + i * CHUNK, CHUNK); reinterpret_cast<R*>(p)[i] = r; }
    }
};
struct half_t { u16 b; };
struct bf16_t { u16 b; };
__device__ __forceinline__ float to_f(half_t h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.b)); return f; }
__device__ __forceinline__ float to_f(bf16_t h) { return __uint_as_float((u32)h.b << 16); }
__device__ __forceinline__ float to_f(float x) { return x; }
__device__ __forceinline__ float to_f(int x) { return (float)x; }
__device__ __forceinline__ float to_f(i64 x) { return (float)x; }
__device__ __forceinline__ float to_f(u8 x) { return (float)x; }
__device__ __forceinline__ float to_f(i8 x) { return (float)x; }
__device__ __forceinline__ void put(half_t& d, float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d.b) : "f"(f)); }
__device__ __forceinline__ void put(bf16_t& d, float f) {
    u32 u = __float_as_uint(f);
    d.b = (u & 0x7fffffffu) > 0x7f800000u ? (u16)0x7fc0 : (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ void put(float& d, float f) { d = f; }
__device__ __forceinline__ void put(int& d, i64 x) { d = (int)x; }
__device__ __forceinline__ void put(i64& d, i64 x) { d = x; }
__device__ __forceinline__ void put(u8& d, i64 x) { d = (u8)x; }
__device__ __forceinline__ void put(i8& d, i64 x) { d = (i8)x; }
"#,
    include_str!("math.cuh")
);

/// What kernels need that read or write any other type, behind [`PRELUDE`].
const WIDE_PRELUDE: &str = r"
typedef unsigned long long u64; typedef short i16;
__device__ __forceinline__ float to_f(double x) { return (float)x; }
__device__ __forceinline__ float to_f(i16 x) { return (float)x; }
__device__ __forceinline__ float to_f(u16 x) { return (float)x; }
__device__ __forceinline__ float to_f(u32 x) { return (float)x; }
__device__ __forceinline__ float to_f(u64 x) { return (float)x; }
__device__ __forceinline__ void put(double& d, double x) { d = x; }
__device__ __forceinline__ void put(i16& d, i64 x) { d = (i16)x; }
__device__ __forceinline__ void put(u16& d, i64 x) { d = (u16)x; }
__device__ __forceinline__ void put(u32& d, i64 x) { d = (u32)x; }
__device__ __forceinline__ void put(u64& d, u64 x) { d = x; }
";

/// Tensor cores and copies past the registers, behind [`PRELUDE`].
const TENSOR_PRELUDE: &str = include_str!("tensor.cuh");

/// The type that a kernel reads and writes.
pub fn c_type(kind: Kind) -> &'static str {
    match kind {
        Kind::F32 => "float",
        Kind::F16 => "half_t",
        Kind::Bf16 => "bf16_t",
        Kind::I32 => "int",
        Kind::I64 => "i64",
        Kind::I8 => "i8",
        Kind::F64 => "double",
        Kind::I16 => "i16",
        Kind::U16 => "u16",
        Kind::U32 => "u32",
        Kind::U64 => "u64",
        Kind::U8 | Kind::Bool => "u8",
    }
}

/// A float that the compiler reads back exactly.
pub fn c_float(value: f32) -> String {
    if value.is_nan() {
        "__int_as_float(0x7fffffff)".into()
    } else if value.is_infinite() {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("({sign}__int_as_float(0x7f800000))")
    } else {
        format!("{value:e}f")
    }
}

/// The same for what is computed in f64.
pub fn c_double(value: f64) -> String {
    if value.is_nan() || value.is_infinite() {
        format!("((double){})", c_float(value as f32))
    } else {
        format!("{value:e}")
    }
}

/// Whether a parameter is of a type that [`PRELUDE`] does not know.
fn is_wide(parameter: &str) -> bool {
    ["double", "i16", "u16", "u32", "u64"].iter().any(|name| parameter.split([' ', '*']).any(|word| word == *name))
}

/// Puts a kernel's body behind the prelude. `parameters` are `type name` pairs.
pub fn kernel(name: &str, parameters: &[String], threads: u32, body: &str) -> Source {
    let wide = if parameters.iter().any(|parameter| is_wide(parameter)) { WIDE_PRELUDE } else { "" };
    let text = format!(
        "{PRELUDE}{wide}\nextern \"C\" __global__ void __launch_bounds__({threads}) {name}({}) {{\nLET_OTHERS_BEGIN;\n{WAIT}\n{body}\n}}\n",
        parameters.join(", ")
    );
    Source { name: name.into(), text }
}

/// Blocks of `BLOCK` threads for `items`; 64-bit counts beyond the grid are the caller's to split.
pub fn blocks(items: u64, per_block: u64) -> u32 {
    u32::try_from(items.div_ceil(per_block).max(1)).unwrap_or(u32::MAX)
}
