// y[g][m][n] = activation(ALPHA sum_k x[g][m][k] w[g][k][n] + bias + residual), every operand at strides of its own.
//
// x_at, w_at, y_at and z_at say where an element lies; x_at is negative outside of an image. Sums are in f32.
#define TILES_M ((M + BM - 1) / BM)
#define TILES_N ((N + BN - 1) / BN)

__device__ __forceinline__ void finish(float f, int g, int m, int n BIAS_PARAMETER RESIDUAL_PARAMETER, ELEMENT* __restrict__ y) {
    f *= ALPHA;
#if HAS_BIAS
    f += to_f(bias[bias_at(g, n)]);
#endif
#if HAS_RESIDUAL
    f += to_f(residual[z_at(g, m, n)]);
#endif
    put(y[y_at(g, m, n)], ACTIVATION);
}

#if ROWS > 0
// Few rows: a warp computes one column for ROWS of them, its lanes share the sum.
extern "C" __global__ void __launch_bounds__(THREADS) any(const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER, ELEMENT* __restrict__ y) {
    LET_OTHERS_BEGIN;
    AFTER_OTHERS;
    const int lane = threadIdx.x % 32, warp = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int n = warp % N, g = warp / N % GROUPS, m0 = warp / N / GROUPS * ROWS;
    if (m0 >= M) return;
    float sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) sum[i] = 0.0f;
    for (int k = lane * VECTOR; k < K; k += 32 * VECTOR) {
        Vec<ELEMENT, VECTOR> b;
        b.load(w + w_at(g, k, n));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const i64 at = m0 + i < M ? x_at(g, m0 + i, k) : -1;
            if (at < 0) continue;
            Vec<ELEMENT, VECTOR> a;
            a.load(x + at);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum[i] += to_f(a.v[j]) * to_f(b.v[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int far = 16; far > 0; far /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], far);
        if (lane == i % 32 && m0 + i < M) finish(sum[i], g, m0 + i, n BIAS_ARGUMENT RESIDUAL_ARGUMENT, y);
    }
}
#else
#define BK 16
#define SIDE 16
#define PER_M (BM / SIDE)
#define PER_N (BN / SIDE)
// Sums of a thread lie in runs, so that what they are made of is read in vectors.
#define RUN(per) ((per) < 4 ? (per) : 4)
#define AT_M(i) ((i) / RUN(PER_M) * RUN(PER_M) * SIDE + row * RUN(PER_M) + (i) % RUN(PER_M))
#define AT_N(j) ((j) / RUN(PER_N) * RUN(PER_N) * SIDE + column * RUN(PER_N) + (j) % RUN(PER_N))
#define X_EACH (BM * BK / THREADS)
#define W_EACH (BN * BK / THREADS)

extern "C" __global__ void __launch_bounds__(THREADS) any(const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER, ELEMENT* __restrict__ y) {
    LET_OTHERS_BEGIN;
    AFTER_OTHERS;
    __shared__ __align__(16) float xs[BK][BM + 4], ws[BK][BN + 4];
    const int thread = threadIdx.x, row = thread / SIDE, column = thread % SIDE;
    const int tile = blockIdx.x % (TILES_M * TILES_N), g = blockIdx.x / (TILES_M * TILES_N);
    const int m0 = tile / TILES_N * BM, n0 = tile % TILES_N * BN;
    float sum[PER_M][PER_N];
#pragma unroll
    for (int i = 0; i < PER_M; i++)
#pragma unroll
        for (int j = 0; j < PER_N; j++) sum[i][j] = 0.0f;
    // What comes next is under way while the sums are made of what is there.
    float x_next[X_EACH], w_next[W_EACH];
    for (int k0 = -BK; k0 < K; k0 += BK) {
        if (k0 >= 0) {
#pragma unroll
            for (int j = 0; j < X_EACH; j++) {
                const int i = thread + j * THREADS;
                xs[X_ALONG_K ? i % BK : i / BM][X_ALONG_K ? i / BK : i % BM] = x_next[j];
            }
#pragma unroll
            for (int j = 0; j < W_EACH; j++) {
                const int i = thread + j * THREADS;
                ws[W_ALONG_K ? i % BK : i / BN][W_ALONG_K ? i / BK : i % BN] = w_next[j];
            }
            __syncthreads();
        }
        const int ahead = k0 + BK;
        if (ahead < K) {
#pragma unroll
            for (int j = 0; j < X_EACH; j++) {
                const int i = thread + j * THREADS, k = X_ALONG_K ? i % BK : i / BM, m = X_ALONG_K ? i / BK : i % BM;
                const i64 at = m0 + m < M && ahead + k < K ? x_at(g, m0 + m, ahead + k) : -1;
                x_next[j] = at < 0 ? 0.0f : to_f(x[at]);
            }
#pragma unroll
            for (int j = 0; j < W_EACH; j++) {
                const int i = thread + j * THREADS, k = W_ALONG_K ? i % BK : i / BN, n = W_ALONG_K ? i / BK : i % BN;
                w_next[j] = n0 + n < N && ahead + k < K ? to_f(w[w_at(g, ahead + k, n0 + n)]) : 0.0f;
            }
        }
        if (k0 < 0) continue;
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[PER_M], b[PER_N];
#pragma unroll
            for (int i = 0; i < PER_M; i++) a[i] = xs[k][AT_M(i)];
#pragma unroll
            for (int j = 0; j < PER_N; j++) b[j] = ws[k][AT_N(j)];
#pragma unroll
            for (int i = 0; i < PER_M; i++)
#pragma unroll
                for (int j = 0; j < PER_N; j++) sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PER_M; i++)
#pragma unroll
        for (int j = 0; j < PER_N; j++) {
            const int m = m0 + AT_M(i), n = n0 + AT_N(j);
            if (m < M && n < N) finish(sum[i][j], g, m, n BIAS_ARGUMENT RESIDUAL_ARGUMENT, y);
        }
}
#endif
