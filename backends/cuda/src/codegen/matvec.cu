// y[n] = activation(ALPHA sum_k norm(x)[k] w[n][k] + bias[n] + residual[n]): SHARE warps sum up COLUMNS columns, each lane
// with AHEAD vectors of each on their way. Sums are in f32, always in the same order.
#define GROUPS (THREADS / 32 / SHARE)

__device__ __forceinline__ float warp_sum(float f) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) f += __shfl_xor_sync(0xffffffffu, f, far);
    return f;
}

extern "C" __global__ void __launch_bounds__(THREADS) matvec(const ELEMENT* __restrict__ x, const ELEMENT* __restrict__ w BIAS_PARAMETER RESIDUAL_PARAMETER SCALE_PARAMETER SHIFT_PARAMETER, ELEMENT* __restrict__ y) {
    LET_OTHERS_BEGIN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / SHARE, part = warp % SHARE;
    const int n0 = (blockIdx.x * GROUPS + group) * COLUMNS;
    const int first = (part * 32 + lane) * VECTOR;
    Vec<ELEMENT, VECTOR> b[AHEAD][COLUMNS];
    AFTER_OTHERS;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        const int k = first + s * (SHARE * 32 * VECTOR);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (k < K && n0 + c < N) b[s][c].load(w + (i64)(n0 + c) * PITCH + k);
    }
#if HAS_SCALE
    Vec<ELEMENT, VECTOR> gamma[AHEAD];
#endif
#if HAS_SHIFT
    Vec<ELEMENT, VECTOR> beta[AHEAD];
#endif
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        const int k = first + s * (SHARE * 32 * VECTOR);
#if HAS_SCALE
        if (k < K) gamma[s].load(scale + k);
#endif
#if HAS_SHIFT
        if (k < K) beta[s].load(shift + k);
#endif
    }
    // Each lane finishes one column at most.
    const int mine = n0 + lane;
    const bool finishes = part == 0 && lane < COLUMNS && mine < N;
#if HAS_BIAS
    const float own_bias = finishes ? to_f(bias[mine]) : 0.0f;
#endif
#if HAS_RESIDUAL
    float own_residual = 0.0f;
    if (finishes) own_residual = to_f(residual[mine]);
#endif
#if HAS_NORM
    // Every warp for itself: the row is short, and others would have to be waited for.
    float mean = 0.0f, squares = 0.0f;
    Vec<ELEMENT, VECTOR> whole[WHOLE];
#pragma unroll
    for (int s = 0; s < WHOLE; s++) {
        const int k = (s * 32 + lane) * VECTOR;
        if (k < K) whole[s].load(x + k);
    }
#if CENTRED
#pragma unroll
    for (int s = 0; s < WHOLE; s++) {
        if ((s * 32 + lane) * VECTOR >= K) continue;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) mean += to_f(whole[s].v[j]);
    }
    mean = warp_sum(mean) * (1.0f / K);
#endif
#pragma unroll
    for (int s = 0; s < WHOLE; s++) {
        if ((s * 32 + lane) * VECTOR >= K) continue;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            const float d = to_f(whole[s].v[j]) - mean;
            squares += d * d;
        }
    }
    const float inverse = rsqrtf(warp_sum(squares) * (1.0f / K) + EPSILON);
#endif
    float sum[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum[c] = 0.0f;
#pragma unroll 1
    for (int s0 = 0; s0 < STEPS; s0 += AHEAD) {
        Vec<ELEMENT, VECTOR> a[AHEAD];
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const int k = first + (s0 + s) * (SHARE * 32 * VECTOR);
            if (k < K) a[s].load(x + k);
        }
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const int k = first + (s0 + s) * (SHARE * 32 * VECTOR);
            if (k >= K) continue;
            float f[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; j++) f[j] = to_f(a[s].v[j]);
#if HAS_NORM
#pragma unroll
            for (int j = 0; j < VECTOR; j++) f[j] = (f[j] - mean) * inverse;
#if HAS_SCALE
            if (s0 > 0) gamma[s].load(scale + k);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) f[j] *= to_f(gamma[s].v[j]);
#endif
#if HAS_SHIFT
            if (s0 > 0) beta[s].load(shift + k);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) f[j] += to_f(beta[s].v[j]);
#endif
#endif
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (n0 + c < N) {
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) sum[c] += f[j] * to_f(b[s][c].v[j]);
                }
                // The next vectors are on their way while the others are summed up.
                const int next = k + AHEAD * SHARE * 32 * VECTOR;
                if (STEPS > AHEAD && next < K && n0 + c < N) b[s][c].load(w + (i64)(n0 + c) * PITCH + next);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum[c] = warp_sum(sum[c]);
#if SHARE > 1
    __shared__ float shares[THREADS / 32][COLUMNS];
    if (lane == 0) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) shares[warp][c] = sum[c];
    }
    __syncthreads();
    if (part != 0) return;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        sum[c] = 0.0f;
#pragma unroll
        for (int i = 0; i < SHARE; i++) sum[c] += shares[group * SHARE + i][c];
    }
#endif
    float f = 0.0f;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (lane == c) f = sum[c] * ALPHA;
    if (!finishes) return;
#if HAS_BIAS
    f += own_bias;
#endif
#if HAS_RESIDUAL
    f += own_residual;
#endif
    put(y[mine], ACTIVATION);
}
