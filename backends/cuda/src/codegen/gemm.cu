// An implicit matrix product: M pixels (or rows) by N output channels, over K = taps x channels.
//
// x lies with its channels last, w as [N][taps][channels]. A block computes BM x BN of the result; with SPLIT > 1 the
// blocks of a cluster share the sum over K and add up through each other's shared memory. Halves are multiplied by tensor
// cores, f32 (ELEMENT_BYTES 4) by ordinary ones, which round nothing but the sums.
#define CHUNK (16 / ELEMENT_BYTES) // elements that are copied, and at the end written, at once
#define CHUNKS (BK / CHUNK)
#define THREADS (WARPS_M * WARPS_N * 32)
#define ROWS_AT_ONCE (THREADS / CHUNKS)
#define WTM (BM / WARPS_M)
#define WTN (BN / WARPS_N)
#define TILES_N ((N + BN - 1) / BN)
#define K_TILES ((K + BK - 1) / BK)
#define STAGE_BYTES ((BM + BN) * BK * ELEMENT_BYTES)
#define X_BYTES (BM * BK * ELEMENT_BYTES)
// A warp's result is made of units: 8 rows of four lanes, each with a chunk.
#define UNIT_N (4 * CHUNK)
#define UNITS (WTM / 8 * (WTN / UNIT_N))
#define UNIT_AT_M(unit) (tile_m * BM + warp_m * WTM + (unit) / (WTN / UNIT_N) * 8 + eighth)
#define UNIT_AT_N(unit) (tile_n * BN + warp_n * WTN + (unit) % (WTN / UNIT_N) * UNIT_N + quad * CHUNK)
#define A_ROWS ((BM + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE)
#define B_ROWS ((BN + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE)
#if SPLIT > 1
#define CLUSTER __cluster_dims__(1, SPLIT, 1)
#else
#define CLUSTER
#endif

// Where a chunk lies in a tile, so that neither copies nor loads of eight rows meet in a bank.
__device__ __forceinline__ u32 place(int row, int chunk) {
    int turn = CHUNKS == 8 ? row & 7 : (row >> 1) & 3;
    return (u32)(row * BK + ((chunk ^ turn) * CHUNK)) * ELEMENT_BYTES;
}
#if ELEMENT_BYTES == 4
// Likewise for loads of every fourth row.
__device__ __forceinline__ u32 place_w(int row, int chunk) {
    int turn = (row >> 2) & (CHUNKS - 1);
    return (u32)(row * BK + ((chunk ^ turn) * CHUNK)) * ELEMENT_BYTES;
}
#else
#define place_w place
#endif

__device__ __forceinline__ void finish(float (&v)[CHUNK], int m, int n BIAS_PARAMETER RESIDUAL_PARAMETER, OUT* __restrict__ y) {
    if (m >= M || n >= N) return;
#if HAS_BIAS
    Vec<ELEMENT, CHUNK> b;
    b.load(bias + n);
#pragma unroll
    for (int j = 0; j < CHUNK; j++) v[j] = v[j] * ALPHA + to_f(b.v[j]);
#else
#pragma unroll
    for (int j = 0; j < CHUNK; j++) v[j] = v[j] * ALPHA;
#endif
#if HAS_RESIDUAL
    Vec<ELEMENT, CHUNK> z;
    z.load(residual + (i64)m * RESIDUAL_PITCH + n);
#pragma unroll
    for (int j = 0; j < CHUNK; j++) v[j] += to_f(z.v[j]);
#endif
    Vec<OUT, CHUNK> q;
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        float f = v[j];
        put(q.v[j], ACTIVATION);
    }
    q.store(y + (i64)m * Y_PITCH + n);
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS_AT_LEAST) gemm(const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER, OUT* __restrict__ y) {
    extern __shared__ __align__(128) unsigned char pool[];
    const u32 base = shared_at(pool);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    // Which of eight rows, and of four chunks, a lane has of a unit.
#if ELEMENT_BYTES == 4
    // Neighbours share what they read of one factor, and those two apart what they read of the other: such loads are joined.
    const int eighth = lane / 8 * 2 + lane % 2, quad = lane / 2 % 4;
#else
    const int eighth = lane / 4, quad = lane % 4;
#endif
    const int tile_m = blockIdx.x / TILES_N, tile_n = blockIdx.x % TILES_N, part = blockIdx.y;
    const int first = part * K_TILES / SPLIT, last = (part + 1) * K_TILES / SPLIT;

    // What this thread copies: one chunk of several rows.
    const int chunk = thread % CHUNKS, row0 = thread / CHUNKS;
    int at[A_ROWS];
#if !IS_PLAIN
    int top[A_ROWS], left[A_ROWS];
#endif
#pragma unroll
    for (int i = 0; i < A_ROWS; i++) {
        int m = tile_m * BM + row0 + i * ROWS_AT_ONCE;
#if IS_PLAIN
        at[i] = m < M ? m * X_PITCH : -1;
#else
        int ox = m % OW, r = m / OW, oy = r % OH, n = r / OH;
        top[i] = m < M ? oy * STRIDE_H - PAD_H : -(1 << 28);
        left[i] = ox * STRIDE_W - PAD_W;
        at[i] = ((n * IH + oy * STRIDE_H - PAD_H) * IW + left[i]) * X_PITCH;
#endif
    }
    auto load_x = [&](int tile, int stage) {
        const u32 to = base + stage * STAGE_BYTES;
        const int k = tile * BK + chunk * CHUNK;
        const bool inside = k < K;
#if IS_PLAIN
        const int moved = k;
#else
        const int tap = k / C, ch = k - tap * C, r = tap / KW, s = tap - r * KW;
        const int moved = (r * DILATION_H * IW + s * DILATION_W) * X_PITCH + ch;
#endif
#pragma unroll
        for (int i = 0; i < A_ROWS; i++) {
            const int row = row0 + i * ROWS_AT_ONCE;
            if (BM % ROWS_AT_ONCE != 0 && row >= BM) break;
#if IS_PLAIN
            const bool valid = inside && at[i] >= 0;
#else
            const bool valid = inside && (u32)(top[i] + r * DILATION_H) < (u32)IH && (u32)(left[i] + s * DILATION_W) < (u32)IW;
#endif
            copy16<X_IS_READ_AGAIN>(to + place(row, chunk), x + (valid ? at[i] + moved : 0), valid);
        }
    };
    auto load_w = [&](int tile, int stage) {
        const u32 to = base + stage * STAGE_BYTES + X_BYTES;
        const int k = tile * BK + chunk * CHUNK;
#pragma unroll
        for (int i = 0; i < B_ROWS; i++) {
            const int row = row0 + i * ROWS_AT_ONCE;
            if (BN % ROWS_AT_ONCE != 0 && row >= BN) break;
            const int n = tile_n * BN + row;
            const bool valid = k < K && n < N;
            copy16<false>(to + place_w(row, chunk), w + (valid ? n * W_PITCH + k : 0), valid);
        }
    };

    // Weights do not wait for the kernels ahead.
    LET_OTHERS_BEGIN;
#if W_IS_CONSTANT
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (first + s < last) load_w(first + s, s);
#endif
    AFTER_OTHERS;

#if ELEMENT_BYTES == 4
    float sum[WTM / 8][WTN / 4];
#pragma unroll
    for (int i = 0; i < WTM / 8; i++)
#pragma unroll
        for (int j = 0; j < WTN / 4; j++) sum[i][j] = 0.0f;
#else
    float sum[WTM / 16][WTN / 8][4];
#pragma unroll
    for (int i = 0; i < WTM / 16; i++)
#pragma unroll
        for (int j = 0; j < WTN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;
#endif

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) {
            load_x(first + s, s);
#if !W_IS_CONSTANT
            load_w(first + s, s);
#endif
        }
        copies_end_group();
    }
    int stage = 0;
    for (int tile = first; tile < last; tile++) {
        copies_wait_but<STAGES - 2>();
        __syncthreads();
        if (tile + STAGES - 1 < last) {
            load_x(tile + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
            load_w(tile + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        }
        copies_end_group();
#if ELEMENT_BYTES == 4
        const unsigned char* from = pool + stage * STAGE_BYTES;
#if IS_ROLLED
#pragma unroll 1
#else
#pragma unroll
#endif
        for (int kk = 0; kk < CHUNKS; kk++) {
            Vec<float, 4> a[WTM / 8], b;
#pragma unroll
            for (int i = 0; i < WTM / 8; i++)
                a[i].load(reinterpret_cast<const float*>(from + place(warp_m * WTM + i * 8 + eighth, kk)));
#pragma unroll
            for (int j = 0; j < WTN / 4; j++) {
                b.load(reinterpret_cast<const float*>(from + X_BYTES + place_w(warp_n * WTN + j / 4 * 16 + quad * 4 + j % 4, kk)));
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int i = 0; i < WTM / 8; i++) sum[i][j] += a[i].v[e] * b.v[e];
            }
        }
#else
        const u32 from = base + stage * STAGE_BYTES;
#pragma unroll
        for (int kk = 0; kk < BK / 16; kk++) {
            u32 a[WTM / 16][4], b[WTN / 16][4];
#pragma unroll
            for (int i = 0; i < WTM / 16; i++)
                load_matrices(a[i], from + place(warp_m * WTM + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < WTN / 16; j++)
                load_matrices(b[j], from + X_BYTES + place(warp_n * WTN + j * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < WTM / 16; i++)
#pragma unroll
                for (int j = 0; j < WTN / 8; j++)
                    multiply(ELEMENT(), sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
#endif
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

#if SPLIT > 1
    copies_wait_but<0>();
    __syncthreads();
    float4* shelf = reinterpret_cast<float4*>(pool);
#endif
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        const int row = unit / (WTN / UNIT_N), g = unit % (WTN / UNIT_N);
        float v[CHUNK];
#if ELEMENT_BYTES == 4
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = sum[row][g * 4 + e];
#else
        // Four threads hold two columns each of four 8-column tiles: they trade until each holds one whole tile.
        const bool odd = quad & 1, upper = quad & 2;
        float two[2][4];
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float even_tile = sum[row / 2][g * 4 + p * 2][row % 2 * 2 + e], odd_tile = sum[row / 2][g * 4 + p * 2 + 1][row % 2 * 2 + e];
                float got = __shfl_xor_sync(0xffffffffu, odd ? even_tile : odd_tile, 1);
                two[p][e] = odd ? got : even_tile;
                two[p][e + 2] = odd ? odd_tile : got;
            }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float got = __shfl_xor_sync(0xffffffffu, upper ? two[0][e] : two[1][e], 2);
            v[e] = upper ? got : two[0][e];
            v[e + 4] = upper ? two[1][e] : got;
        }
#endif
#if SPLIT > 1
#pragma unroll
        for (int h = 0; h < CHUNK / 4; h++)
            shelf[(unit * (CHUNK / 4) + h) * THREADS + thread] = make_float4(v[h * 4], v[h * 4 + 1], v[h * 4 + 2], v[h * 4 + 3]);
#else
        finish(v, UNIT_AT_M(unit), UNIT_AT_N(unit) BIAS_ARGUMENT RESIDUAL_ARGUMENT, y);
#endif
    }
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        if (unit % SPLIT != part) continue;
        float v[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) v[e] = 0.0f;
#pragma unroll
        for (int other = 0; other < SPLIT; other++)
#pragma unroll
            for (int h = 0; h < CHUNK / 4; h++) {
                u32 here = base + ((unit * (CHUNK / 4) + h) * THREADS + thread) * 16, there;
                float4 q;
                asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(other));
                asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(q.x), "=f"(q.y), "=f"(q.z), "=f"(q.w) : "r"(there));
                v[h * 4] += q.x;
                v[h * 4 + 1] += q.y;
                v[h * 4 + 2] += q.z;
                v[h * 4 + 3] += q.w;
            }
        finish(v, UNIT_AT_M(unit), UNIT_AT_N(unit) BIAS_ARGUMENT RESIDUAL_ARGUMENT, y);
    }
    // Nobody leaves while others read what it holds.
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
