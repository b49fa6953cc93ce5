// y[n] = activation(ALPHA sum_k norm(x)[k] w[n][k] + bias[n] + residual[n]): a block's columns of the matrix are in its shared
// memory before it waits for what is ahead of it, and are multiplied by tensor cores, of which the warps share K. Or the
// columns are of a head's query, key and value, and the blocks of its cluster go on to its attention; or the blocks of a
// cluster go on to a second product (TAIL). Where there are many columns a block stays, and while it multiplies some the
// next ones are copied (STAGES).
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

// What a column's sum gets besides.
#if HAS_BIAS && CONSTANT_BIAS && STAGES == 1
#define BIAS_OF(c) s.biases[c]
#elif HAS_BIAS
#define BIAS_OF(c) to_f(bias[N_OF(c)])
#else
#define BIAS_OF(c) 0.0f
#endif
#if HAS_RESIDUAL
#define MORE_OF(c) (BIAS_OF(c) + to_f(residual[N_OF(c)]))
#else
#define MORE_OF(c) BIAS_OF(c)
#endif

#define LOW(pair) low_of(pair, ELEMENT())
#define HIGH(pair) high_of(pair, ELEMENT())

struct Shared {
    ELEMENT w[STAGES][COLUMNS * PITCH];
    // The row, what rounding took from it, scale and shift.
    __align__(16) u32 rows[HAS_NORM ? 4 : 1][ROW_WORDS];
    float sums[STAGES > 1 ? 2 : 1][SUMS][COLUMNS][WARPS];
    float2 stats[WARPS];
    // In memory, for what is read to a register ahead of a wait compilers may read behind it.
    float biases[COLUMNS];
    // Whether columns have been copied, and scale and shift where these are not counted with the first.
    i64 copied[STAGES];
#if STAGES > 1
    i64 known;
#define KNOWN known
#else
#define KNOWN copied[0]
#endif
#if TAIL
    Tail tail;
#endif
#if HEADS
    Caches caches;
#endif
};

// A lane's part of a matrix of sixteen columns, two steps of the sum: eight elements of one column each.
__device__ __forceinline__ uint4 part_of(const ELEMENT* w, int column, int piece, bool second_half) {
    const int c = column < COLUMNS ? column : 0;
    return *(const uint4*)(w + c * PITCH + (second_half ? K / 2 : 0) + piece * 32 + threadIdx.x % 4 * 8);
}
__device__ __forceinline__ void add_product(float (&d)[2][4], const uint4& upper, const uint4& lower, const uint4& b) {
    const u32 first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
    multiply(ELEMENT(), d[0], first, b.x, b.y);
    multiply(ELEMENT(), d[1], second, b.z, b.w);
}

#if READS_SUMS
#define X i64
#else
#define X ELEMENT
#endif
#if TAIL
#define RESULT i64
#else
#define RESULT ELEMENT
#endif
#if STAGES > 1
// Each warp asks for its part of a group's columns, of which there may be none.
__device__ __forceinline__ void copy_columns(Shared& s, const ELEMENT* w, int group, int stage) {
    if (threadIdx.x % 32 != 0 || group * COLUMNS >= N) return;
    const int warp = threadIdx.x / 32, columns = min(COLUMNS, N - group * COLUMNS);
    expect(&s.copied[stage], max(0, (columns - warp + WARPS - 1) / WARPS) * K * 2);
#pragma unroll 1
    for (int c = warp; c < columns; c += WARPS) copy_whole(s.w[stage] + c * PITCH, w + (i64)(group * COLUMNS + c) * STRIDE, K * 2, &s.copied[stage]);
}
#endif
#if HEADS
// Of each head's queries, new keys and new values a block of its cluster has as many.
extern "C" __global__ void __cluster_dims__(1, RANKS, 1) __launch_bounds__(THREADS, TAIL ? 2 : 3) heads(const X* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER SCALE_PARAMETER SHIFT_PARAMETER, ELEMENT* k, ELEMENT* v, const PLACE* __restrict__ place TAIL_PARAMETER, RESULT* __restrict__ y) {
    const int head = blockIdx.x, rank = blockIdx.y;
#define CLUSTER head
#define N_OF(c) (((c) < PART ? Q_COLUMN : (c) < 2 * PART ? K_COLUMN : V_COLUMN) + head * SIZE + rank * PART + (c) % PART)
#define IS_COLUMN(c) true
#define COLUMNS_HERE COLUMNS
#define IS_FILLER (head >= HEAD_COUNT)
#elif TAIL
extern "C" __global__ void __cluster_dims__(1, RANKS, 1) __launch_bounds__(THREADS, 2) pair(const X* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER SCALE_PARAMETER SHIFT_PARAMETER TAIL_PARAMETER, RESULT* __restrict__ y) {
    const int cluster = blockIdx.x, rank = blockIdx.y;
#define CLUSTER cluster
#define N_OF(c) ((cluster * RANKS + rank) * COLUMNS + (c))
#define IS_COLUMN(c) true
#define COLUMNS_HERE COLUMNS
#define IS_FILLER (cluster >= CLUSTERS)
#else
extern "C" __global__ void __launch_bounds__(THREADS, 2) staged(const X* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER SCALE_PARAMETER SHIFT_PARAMETER, RESULT* __restrict__ y) {
    int group = blockIdx.x;
#define N_OF(c) (group * COLUMNS + (c))
#define IS_COLUMN(c) (N_OF(c) < N)
#define COLUMNS_OF(group) min(COLUMNS, N - (group) * COLUMNS)
#define COLUMNS_HERE COLUMNS_OF(group)
// Where all multiprocessors have a block of every kernel, the next one's find room on all of them alike.
#define IS_FILLER ((int)blockIdx.x * COLUMNS >= N)
#endif
    LET_OTHERS_BEGIN;
    if (IS_FILLER) {
        AFTER_OTHERS;
        return;
    }
    extern __shared__ __align__(128) unsigned char pool[];
    Shared& s = *(Shared*)pool;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, quarter = lane % 4, column = lane / 4;
#if HAS_BIAS && CONSTANT_BIAS
    ELEMENT of_bias;
    if (STAGES == 1 && thread < COLUMNS && IS_COLUMN(thread)) of_bias.b = read_here(bias + N_OF(thread));
#endif
#if TAIL
    const int adds_at = (CLUSTER * RANKS + rank) * ADDS + lane;
    const bool adds = warp == WARPS - 1 && lane < ADDS && adds_at < TAIL_N;
#if HAS_BIAS2
    ELEMENT of_bias2;
    if (adds) of_bias2.b = read_here(bias2 + adds_at);
#endif
#endif
#if HEADS
    const Slice slice = slice_of((i64)place[0], rank);
#endif
#if ARRIVALS
    if (thread == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; i++) begin_count(&s.copied[i], STAGES > 1 ? WARPS : 1);
#if STAGES > 1
        begin_count(&s.known);
#endif
#if HEADS
        begin_count(&s.caches.copied), begin_count(&s.caches.told[0]), begin_count(&s.caches.told[1]);
        expect(&s.caches.told[0], 3 * SIZE * 2), expect(&s.caches.told[1], RANKS * (SIZE + 2) * 4);
#endif
#if TAIL
        begin_count(&s.tail.copied), begin_count(&s.tail.told);
        expect(&s.tail.copied, tail_columns(rank) * TAIL_K * 2), expect(&s.tail.told, HEADS ? 0 : TAIL_K * 2);
#endif
        counts_begun();
        expect(&s.KNOWN, ((STAGES > 1 ? 0 : COLUMNS_HERE) + HAS_NORM * (HAS_SCALE + HAS_SHIFT)) * K * 2);
#if HAS_NORM && HAS_SCALE
        copy_whole(s.rows[2], scale, K * 2, &s.KNOWN);
#endif
#if HAS_NORM && HAS_SHIFT
        copy_whole(s.rows[3], shift, K * 2, &s.KNOWN);
#endif
    }
    __syncthreads();
    // A thread asks for one copy after the other: one of each warp does.
#if STAGES > 1
#pragma unroll
    for (int i = 0; i < STAGES; i++) copy_columns(s, w, group + i * BLOCKS, i);
#else
    if (lane == 0)
#pragma unroll 1
        for (int c = warp; c < COLUMNS_HERE; c += WARPS) copy_whole(s.w[0] + c * PITCH, w + (i64)N_OF(c) * STRIDE, K * 2, &s.copied[0]);
#endif
#else
#pragma unroll 4
    for (int i = thread; i < COLUMNS * (K / 8); i += THREADS) {
        const int c = i / (K / 8);
        const bool there = IS_COLUMN(c);
        copy16<false>(shared_at(s.w[0] + c * PITCH + i % (K / 8) * 8), w + (i64)(there ? N_OF(c) : 0) * STRIDE + i % (K / 8) * 8, there);
    }
#if HAS_NORM
    for (int i = thread; i < K / 8; i += THREADS) {
#if HAS_SCALE
        copy16<false>(shared_at(&s.rows[2][4 * i]), scale + 8 * i, true);
#endif
#if HAS_SHIFT
        copy16<false>(shared_at(&s.rows[3][4 * i]), shift + 8 * i, true);
#endif
    }
#endif
    copies_end_group();
#endif
#if HEADS || TAIL
    this_block_has_begun();
#endif
#if HEADS
    ELEMENT* const keys = k + (i64)head * K_HEAD;
    ELEMENT* const values = v + (i64)head * V_HEAD;
    begin_caches(s.caches, slice, keys, values);
#endif
#if TAIL
    copy_tail(s.tail, w2, CLUSTER, rank);
#if HAS_BIAS2
    if (adds) s.tail.biases[lane] = to_f(of_bias2);
#else
    if (adds) s.tail.biases[lane] = 0.0f;
#endif
#endif
#if HAS_BIAS && CONSTANT_BIAS
    if (STAGES == 1 && thread < COLUMNS && IS_COLUMN(thread)) s.biases[thread] = to_f(of_bias);
#endif
#if HAS_NORM && !HAS_SCALE
    for (int i = thread; i < K / 2; i += THREADS) s.rows[2][i] = ONES;
#endif
#if HAS_NORM && !HAS_SHIFT
    for (int i = thread; i < K / 2; i += THREADS) s.rows[3][i] = 0;
#endif
#if ARRIVALS
    wait_for(&s.copied[0]);
#if STAGES > 1
    wait_for(&s.known);
#endif
#if HEADS
    wait_for(&s.caches.copied);
#endif
#else
    copies_wait_but<0>();
#endif
    __syncthreads();
#if HAS_NORM
    uint2 gamma[QUADS];
#pragma unroll
    for (int e = 0; e < QUADS; e++)
        if (thread + e * THREADS < K / 4) gamma[e] = *(const uint2*)&s.rows[2][2 * (thread + e * THREADS)];
#endif
#if STAGES == 1
    const int stage = 0, turn = 0;
#endif
#if HELD
    uint4 full[FULL ? FULL : 1][OWN][2], half[OWN_HALF][2];
#pragma unroll
    for (int o = 0; o < OWN; o++) {
        const int piece = warp + o * WARPS < PIECES ? warp + o * WARPS : 0;
#pragma unroll
        for (int t = 0; t < FULL; t++) full[t][o][0] = part_of(s.w[stage], t * 16 + column, piece, false), full[t][o][1] = part_of(s.w[stage], t * 16 + 8 + column, piece, false);
    }
#if HALF
#pragma unroll
    for (int o = 0; o < OWN_HALF; o++) {
        const int piece = warp + o * WARPS < PIECES / 2 ? warp + o * WARPS : 0;
        half[o][0] = part_of(s.w[stage], FULL * 16 + column, piece, false), half[o][1] = part_of(s.w[stage], FULL * 16 + column, piece, true);
    }
#endif
#endif
#if HEADS
    Part part;
    prepare(s.caches, slice, rank, part);
#endif
#if HEADS || TAIL
    until_all_have_begun();
#endif
    // A column is finished by four lanes, each of which has the sums of as many warps.
    const int mine_at = thread / 4;
    AFTER_OTHERS;
    x = FRESH(x);
#if HAS_BIAS
    bias = FRESH(bias);
#endif
#if HAS_RESIDUAL
    residual = FRESH(residual);
#endif
#if READS_SUMS
    // They have more digits than a row, so nothing is taken from them, which every warp would ask for in the same place.
    uint4 mine[QUADS][2];
#pragma unroll
    for (int e = 0; e < QUADS; e++)
        if (thread + e * THREADS < K / 4) mine[e][0] = ((const uint4*)x)[2 * (thread + e * THREADS)], mine[e][1] = ((const uint4*)x)[2 * (thread + e * THREADS) + 1];
#else
    uint2 mine[QUADS];
#pragma unroll
    for (int e = 0; e < QUADS; e++)
        if (thread + e * THREADS < K / 4) mine[e] = ((const uint2*)x)[thread + e * THREADS];
#if HAS_NORM
    const float pivot = CENTRED ? to_f(x[0]) : 0.0f;
#endif
#endif
#if TAIL && READS_SUMS
    i64 added = 0;
    if (adds) added = sum_again(x[adds_at]);
#elif TAIL
    i64 added = 0;
    if (adds) added = to_sum(to_f(x[adds_at]));
#endif
#if STAGES == 1
    const bool finishes = mine_at < COLUMNS && IS_COLUMN(mine_at);
    const float more = finishes ? MORE_OF(mine_at) : 0.0f;
#endif
#if HAS_NORM
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < QUADS; e++) {
        const int i = thread + e * THREADS;
        if (i >= K / 4) continue;
#if READS_SUMS
        float f[4] = {of_sum(mine[e][0].x, mine[e][0].y), of_sum(mine[e][0].z, mine[e][0].w), of_sum(mine[e][1].x, mine[e][1].y), of_sum(mine[e][1].z, mine[e][1].w)};
#else
        float f[4] = {LOW(mine[e].x) - pivot, HIGH(mine[e].x) - pivot, LOW(mine[e].y) - pivot, HIGH(mine[e].y) - pivot};
#endif
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
#if HAS_NORM
#pragma unroll
    for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far), squares += __shfl_xor_sync(0xffffffffu, squares, far);
    if (lane == 0) s.stats[warp] = make_float2(sum, squares);
#endif
#if STAGES > 1
    for (int turn = 0; group < GROUPS; turn++, group += BLOCKS) {
    const int stage = turn % STAGES;
    const bool finishes = mine_at < COLUMNS && IS_COLUMN(mine_at);
    const float more = finishes ? MORE_OF(mine_at) : 0.0f;
    wait_for(&s.copied[stage], turn / STAGES);
#endif
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
                add_product(d[t], part_of(s.w[stage], t * 16 + column, piece, false), part_of(s.w[stage], t * 16 + 8 + column, piece, false), b);
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
            add_product(e, part_of(s.w[stage], FULL * 16 + column, piece, false), part_of(s.w[stage], FULL * 16 + column, piece, true), b);
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
            if (quarter == 0) s.sums[turn % 2][0][at][warp] = HAS_NORM ? f + g : f;
#if HAS_NORM
            if (quarter == 1) s.sums[turn % 2][1][at][warp] = f, s.sums[turn % 2][2][at][warp] = g;
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
        if (at < COLUMNS && quarter == 0) s.sums[turn % 2][0][at][warp] = f + g;
        if (at < COLUMNS && quarter == 1) s.sums[turn % 2][1][at][warp] = f, s.sums[turn % 2][2][at][warp] = g;
#else
        if (at < COLUMNS && quarter == 0) s.sums[turn % 2][0][at][warp] = e[0][0] + e[0][3];
#endif
    }
#endif
    __syncthreads();
#if STAGES > 1
    copy_columns(s, w, group + STAGES * BLOCKS, stage);
#endif
    if (warp < (COLUMNS + 7) / 8) {
        float of[SUMS];
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            of[j] = 0.0f;
#pragma unroll
            for (int v = 0; v < WARPS / 4; v++) of[j] += s.sums[turn % 2][j][finishes ? mine_at : 0][quarter * (WARPS / 4) + v];
        }
#if HAS_NORM
        float mean = 0.0f, square = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS / 4; v++) mean += s.stats[quarter * (WARPS / 4) + v].x, square += s.stats[quarter * (WARPS / 4) + v].y;
#endif
#pragma unroll
        for (int far = 1; far < 4; far *= 2) {
#pragma unroll
            for (int j = 0; j < SUMS; j++) of[j] += __shfl_xor_sync(0xffffffffu, of[j], far);
#if HAS_NORM
            mean += __shfl_xor_sync(0xffffffffu, mean, far), square += __shfl_xor_sync(0xffffffffu, square, far);
#endif
        }
        float f = of[0];
#if HAS_NORM
        mean *= 1.0f / K, square *= 1.0f / K;
        if (CENTRED) square = fmaxf(square - mean * mean, 0.0f), f -= mean * of[1];
        f = f * rsqrtf(square + EPSILON) + of[2];
#endif
        f = f * ALPHA + more;
#if HEADS || TAIL
        f = ACTIVATION;
        // Of two columns each of the eight lanes tells one block.
        const float other = __shfl_xor_sync(0xffffffffu, f, 4);
        const int first = mine_at / 2 * 2, to = mine_at % 2 * 4 + quarter;
        const u32 both = mine_at % 2 ? pack2<ELEMENT>(other, f) : pack2<ELEMENT>(f, other);
#if HEADS
        if (finishes) tell(at_rank(&s.caches.whole[first / PART][rank * PART + first % PART], to), both, at_rank(&s.caches.told[0], to));
#else
        if (finishes) tell(at_rank(&s.tail.row[0][rank * COLUMNS + first], to), both, at_rank(&s.tail.told, to));
#endif
#else
        if (finishes && quarter == 0) put(y[N_OF(mine_at)], ACTIVATION);
#endif
    }
#if STAGES > 1
    }
#endif
#if TAIL
    wait_for(&s.tail.copied);
    u32 held[TAIL_EACH][TAIL_OWN][4];
    hold_tail(s.tail, held);
#endif
#if HEADS
    wait_for(&s.caches.told[0]);
    const u32 found = attend(s.caches, slice, part, keys, values);
#if TAIL
    ELEMENT* const row = s.tail.row[warp];
    if (2 * lane < SIZE) *(u32*)(row + 2 * lane) = found;
    __syncwarp();
#else
    if (warp == 0 && 2 * lane / PART == rank) {
        ELEMENT* const o = y + head * O_HEAD + 2 * lane;
        o[0].b = (u16)found, o[1].b = (u16)(found >> 16);
    }
#endif
#elif TAIL
    wait_for(&s.tail.told);
    const ELEMENT* const row = s.tail.row[0];
#endif
#if TAIL
    add_tail(row, held, rank, y);
    if (adds) add_sum(y + adds_at, added + to_sum(s.tail.biases[lane]));
#endif
}
