// y[n] = activation(ALPHA sum_k norm(x)[k] w[n][k] + bias[n] + residual[n]): a block's columns of the matrix are in its shared
// memory before it waits for what is ahead of it, and are multiplied by tensor cores, of which the warps share K.
//
// A factor has eight columns for the one row. Of a norm they are what the row is less its first element, times the scale,
// what rounding took from that, the scale and the shift: so the sums with these come along, and mean and variance may be
// known after the product. Of few columns (HALF) the upper eight rows of a matrix are the same ones over the second half of K,
// with columns of the factor of their own.
#define THREADS (WARPS * 32)
#define PIECES (K / 32)
#define QUADS ((K / 4 + THREADS - 1) / THREADS)
#define SUMS (HAS_NORM ? 3 : 1)
#define OWN ((PIECES + WARPS - 1) / WARPS)
#define OWN_HALF ((PIECES / 2 + WARPS - 1) / WARPS)
// Elements from one column to the next, so that eight lanes read from all banks, and words of a row.
#define PITCH (K + 32)
#define ROW_WORDS (K / 2 + 16)

__device__ __forceinline__ float low_of(u32 pair, half_t) { half_t h; h.b = (u16)pair; return to_f(h); }
__device__ __forceinline__ float high_of(u32 pair, half_t) { half_t h; h.b = (u16)(pair >> 16); return to_f(h); }
__device__ __forceinline__ float low_of(u32 pair, bf16_t) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair, bf16_t) { return __uint_as_float(pair & 0xffff0000u); }
#define LOW(pair) low_of(pair, ELEMENT())
#define HIGH(pair) high_of(pair, ELEMENT())

struct Shared {
    ELEMENT w[COLUMNS * PITCH];
    u32 rows[HAS_NORM ? 4 : 1][ROW_WORDS];
    float sums[SUMS][COLUMNS][WARPS];
    float2 stats[WARPS];
    // In memory, for what is read to a register ahead of a wait compilers may read behind it.
    float biases[COLUMNS];
};

// A lane's part of a matrix of sixteen columns, two steps of the sum: eight elements of one column each.
__device__ __forceinline__ uint4 part_of(const Shared& s, int column, int piece, bool second_half) {
    const int c = column < COLUMNS ? column : 0;
    return *(const uint4*)(s.w + c * PITCH + (second_half ? K / 2 : 0) + piece * 32 + threadIdx.x % 4 * 8);
}
__device__ __forceinline__ void add_product(float (&d)[2][4], const uint4& upper, const uint4& lower, const uint4& b) {
    const u32 first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
    multiply(ELEMENT(), d[0], first, b.x, b.y);
    multiply(ELEMENT(), d[1], second, b.z, b.w);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) staged(const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER SCALE_PARAMETER SHIFT_PARAMETER, ELEMENT* __restrict__ y) {
    LET_OTHERS_BEGIN;
    extern __shared__ __align__(128) unsigned char pool[];
    Shared& s = *(Shared*)pool;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, quarter = lane % 4, column = lane / 4;
    const int n0 = blockIdx.x * COLUMNS;
#pragma unroll 4
    for (int i = thread; i < COLUMNS * (K / 8); i += THREADS) {
        const int c = i / (K / 8), k = i % (K / 8) * 8;
        const bool there = n0 + c < N;
        copy16<false>(shared_at(s.w + c * PITCH + k), w + (i64)(there ? n0 + c : 0) * STRIDE + k, there);
    }
    copies_end_group();
#if HAS_NORM
    uint2 gamma[QUADS];
#pragma unroll
    for (int e = 0; e < QUADS; e++) {
        const int i = thread + e * THREADS;
        if (i >= K / 4) continue;
        gamma[e] = make_uint2(ONES, ONES);
        uint2 beta = make_uint2(0, 0);
#if HAS_SCALE
        gamma[e] = ((const uint2*)scale)[i];
#endif
#if HAS_SHIFT
        beta = ((const uint2*)shift)[i];
#endif
        *(uint2*)&s.rows[2][2 * i] = gamma[e];
        *(uint2*)&s.rows[3][2 * i] = beta;
    }
#endif
    const int n = n0 + thread;
    const bool finishes = thread < COLUMNS && n < N;
#if HAS_BIAS && CONSTANT_BIAS
    if (finishes) s.biases[thread] = to_f(bias[n]);
#endif
    copies_wait_but<0>();
    __syncthreads();
#if HELD
    uint4 full[FULL ? FULL : 1][OWN][2], half[OWN_HALF][2];
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        const int piece = warp + o * WARPS < PIECES ? warp + o * WARPS : 0;
#pragma unroll
        for (int t = 0; t < FULL; t++) full[t][o][0] = part_of(s, t * 16 + column, piece, false), full[t][o][1] = part_of(s, t * 16 + 8 + column, piece, false);
    }
#if HALF
#pragma unroll
    for (int o = 0; o < OWN_HALF; o++) {
        const int piece = warp + o * WARPS < PIECES / 2 ? warp + o * WARPS : 0;
        half[o][0] = part_of(s, FULL * 16 + column, piece, false), half[o][1] = part_of(s, FULL * 16 + column, piece, true);
    }
#endif
#endif
    AFTER_OTHERS;
    x = FRESH(x);
#if HAS_BIAS
    bias = FRESH(bias);
#endif
#if HAS_RESIDUAL
    residual = FRESH(residual);
#endif
    uint2 mine[QUADS];
#pragma unroll
    for (int e = 0; e < QUADS; e++)
        if (thread + e * THREADS < K / 4) mine[e] = ((const uint2*)x)[thread + e * THREADS];
#if HAS_NORM
    const float pivot = CENTRED ? to_f(x[0]) : 0.0f;
#endif
    float more = 0.0f;
#if HAS_BIAS
    if (finishes) more = CONSTANT_BIAS ? s.biases[thread] : to_f(bias[n]);
#endif
#if HAS_RESIDUAL
    if (finishes) more += to_f(residual[n]);
#endif
#if HAS_NORM
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < QUADS; e++) {
        const int i = thread + e * THREADS;
        if (i >= K / 4) continue;
        float f[4] = {LOW(mine[e].x) - pivot, HIGH(mine[e].x) - pivot, LOW(mine[e].y) - pivot, HIGH(mine[e].y) - pivot};
        sum += (f[0] + f[1]) + (f[2] + f[3]);
        squares += (f[0] * f[0] + f[1] * f[1]) + (f[2] * f[2] + f[3] * f[3]);
        f[0] *= LOW(gamma[e].x), f[1] *= HIGH(gamma[e].x), f[2] *= LOW(gamma[e].y), f[3] *= HIGH(gamma[e].y);
        const u32 a = pack2<ELEMENT>(f[0], f[1]), b = pack2<ELEMENT>(f[2], f[3]);
        *(uint2*)&s.rows[0][2 * i] = make_uint2(a, b);
        *(uint2*)&s.rows[1][2 * i] = make_uint2(pack2<ELEMENT>(f[0] - LOW(a), f[1] - HIGH(a)), pack2<ELEMENT>(f[2] - LOW(b), f[3] - HIGH(b)));
    }
#else
#pragma unroll
    for (int e = 0; e < QUADS; e++)
        if (thread + e * THREADS < K / 4) *(uint2*)&s.rows[0][2 * (thread + e * THREADS)] = mine[e];
#endif
    __syncthreads();
#if FULL
    float d[FULL][2][4];
    {
#pragma unroll
        for (int t = 0; t < FULL; t++)
#pragma unroll
            for (int i = 0; i < 8; i++) d[t][i / 4][i % 4] = 0.0f;
        const uint4* const b_at = (const uint4*)s.rows[HAS_NORM ? column % 4 : 0] + quarter;
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            const int piece = warp + o * WARPS;
            if (PIECES % WARPS != 0 && piece >= PIECES) continue;
            const uint4 b = b_at[piece * 4];
#pragma unroll
            for (int t = 0; t < FULL; t++) {
#if HELD
                add_product(d[t], full[t][o][0], full[t][o][1], b);
#else
                add_product(d[t], part_of(s, t * 16 + column, piece, false), part_of(s, t * 16 + 8 + column, piece, false), b);
#endif
            }
        }
    }
#endif
#if HALF
    float e[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    {
        const uint4* const b_at = (const uint4*)s.rows[HAS_NORM ? column % 4 : 0] + (HAS_NORM ? column / 4 : column % 2) * (K / 16) + quarter;
#pragma unroll
        for (int o = 0; o < OWN_HALF; o++) {
            const int piece = warp + o * WARPS;
            if (PIECES / 2 % WARPS != 0 && piece >= PIECES / 2) continue;
            const uint4 b = b_at[piece * 4];
#if HELD
            add_product(e, half[o][0], half[o][1], b);
#else
            add_product(e, part_of(s, FULL * 16 + column, piece, false), part_of(s, FULL * 16 + column, piece, true), b);
#endif
        }
    }
#endif
#if FULL
#pragma unroll
    for (int t = 0; t < FULL; t++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            const int at = t * 16 + lower * 8 + column;
            if (at >= COLUMNS) continue;
            const float f = d[t][0][2 * lower] + d[t][1][2 * lower], g = d[t][0][2 * lower + 1] + d[t][1][2 * lower + 1];
            if (quarter == 0) s.sums[0][at][warp] = HAS_NORM ? f + g : f;
#if HAS_NORM
            if (quarter == 1) s.sums[1][at][warp] = f, s.sums[2][at][warp] = g;
#endif
        }
#endif
#if HALF
    {
        const int at = FULL * 16 + column;
#pragma unroll
        for (int i = 0; i < 4; i++) e[0][i] += e[1][i];
#if HAS_NORM
        // Of the second half they lie two lanes further.
        const float f = e[0][0] + __shfl_xor_sync(0xffffffffu, e[0][2], 2), g = e[0][1] + __shfl_xor_sync(0xffffffffu, e[0][3], 2);
        if (at < COLUMNS && quarter == 0) s.sums[0][at][warp] = f + g;
        if (at < COLUMNS && quarter == 1) s.sums[1][at][warp] = f, s.sums[2][at][warp] = g;
#else
        if (at < COLUMNS && quarter == 0) s.sums[0][at][warp] = e[0][0] + e[0][3];
#endif
    }
#endif
#if HAS_NORM
#pragma unroll
    for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far), squares += __shfl_xor_sync(0xffffffffu, squares, far);
    if (lane == 0) s.stats[warp] = make_float2(sum, squares);
#endif
    __syncthreads();
    if (!finishes) return;
    float of[SUMS];
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        of[j] = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS / 4; v++) {
            const float4 part = ((const float4*)s.sums[j][thread])[v];
            of[j] += (part.x + part.y) + (part.z + part.w);
        }
    }
    float f = of[0];
#if HAS_NORM
    float mean = 0.0f, square = 0.0f;
#pragma unroll
    for (int v = 0; v < WARPS; v++) mean += s.stats[v].x, square += s.stats[v].y;
    mean *= 1.0f / K, square *= 1.0f / K;
    if (CENTRED) square = fmaxf(square - mean * mean, 0.0f), f -= mean * of[1];
    f = f * rsqrtf(square + EPSILON) + of[2];
#endif
    f = f * ALPHA + more;
    put(y[n], ACTIVATION);
}
