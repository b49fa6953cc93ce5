// softmax(SCALE q kT + mask) v, one pass over the keys with a running maximum.
//
// A block computes BM = 16 WARPS_M queries of one head; WARPS_N warps share their keys and join at the end.
#define BM (WARPS_M * 16)
#define THREADS (WARPS_M * WARPS_N * 32)
#define SIZE_PADDED ((SIZE + 15) / 16 * 16)
#define WIDTH (SIZE_PADDED + 8)
#define KEYS_WARP (BN / WARPS_N)
#define KEY_TILES ((KEYS + BN - 1) / BN)
#define STAGE_BYTES (2 * BN * WIDTH * 2)
#define JOIN_BYTES (WARPS_N > 1 ? WARPS_N * BM * (SIZE_PADDED + 2) * 4 : 0)
#define POOL_BYTES (STAGES * STAGE_BYTES > JOIN_BYTES ? STAGES * STAGE_BYTES : JOIN_BYTES)
#define LOG2_E 1.4426950408889634f

extern "C" __global__ void __launch_bounds__(THREADS) attention(const ELEMENT* __restrict__ q, const ELEMENT* __restrict__ k, const ELEMENT* __restrict__ v MASK_PARAMETER, ELEMENT* __restrict__ o) {
    __shared__ __align__(128) unsigned char pool[POOL_BYTES];
    LET_OTHERS_BEGIN;
    AFTER_OTHERS;
    const u32 base = shared_at(pool);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, quad = lane % 4;
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int head = blockIdx.y, batch = blockIdx.z;
    q += (i64)batch * Q_BATCH + (i64)head * Q_HEAD;
    k += (i64)batch * K_BATCH + (i64)head * K_HEAD;
    v += (i64)batch * V_BATCH + (i64)head * V_HEAD;
    o += (i64)batch * O_BATCH + (i64)head * O_HEAD;
#if HAS_MASK
    mask += (i64)batch * MASK_BATCH + (i64)head * MASK_HEAD;
#endif

    auto load = [&](int tile, int stage) {
        const u32 to = base + stage * STAGE_BYTES;
#pragma unroll
        for (int i = thread; i < BN * (SIZE_PADDED / 8); i += THREADS) {
            const int row = i / (SIZE_PADDED / 8), chunk = i % (SIZE_PADDED / 8), key = tile * BN + row;
            const bool valid = key < KEYS && chunk * 8 < SIZE;
            copy16<false>(to + (row * WIDTH + chunk * 8) * 2, k + (valid ? (i64)key * K_ROW + chunk * 8 : 0), valid);
            copy16<false>(to + ((BN + row) * WIDTH + chunk * 8) * 2, v + (valid ? (i64)key * V_ROW + chunk * 8 : 0), valid);
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < KEY_TILES) load(s, s);
        copies_end_group();
    }

    // The queries stay in registers.
    const int row0 = blockIdx.x * BM + warp_m * 16 + lane / 4;
    u32 query[SIZE_PADDED / 16][4];
#pragma unroll
    for (int kk = 0; kk < SIZE_PADDED / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = row0 + e % 2 * 8, column = kk * 16 + e / 2 * 8 + quad * 2;
            query[kk][e] = row < QUERIES && column < SIZE ? *reinterpret_cast<const u32*>(q + (i64)row * Q_ROW + column) : 0u;
        }

    float out[SIZE_PADDED / 8][4], top[2] = {__int_as_float(0xff800000), __int_as_float(0xff800000)}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < SIZE_PADDED / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) out[j][e] = 0.0f;

    for (int tile = 0; tile < KEY_TILES; tile++) {
        if (STAGES == 1) {
            __syncthreads();
            load(tile, 0);
            copies_end_group();
            copies_wait_but<0>();
            __syncthreads();
        } else {
            copies_wait_but<(STAGES > 1 ? STAGES - 2 : 0)>();
            __syncthreads();
            if (tile + STAGES - 1 < KEY_TILES) load(tile + STAGES - 1, (tile + STAGES - 1) % STAGES);
            copies_end_group();
        }
        const u32 keys = base + tile % STAGES * STAGE_BYTES, values = keys + BN * WIDTH * 2;
        const int first = warp_n * KEYS_WARP;

        float score[KEYS_WARP / 8][4];
#pragma unroll
        for (int j = 0; j < KEYS_WARP / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) score[j][e] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < SIZE_PADDED / 16; kk++)
#pragma unroll
            for (int j = 0; j < KEYS_WARP / 16; j++) {
                u32 b[4];
                load_matrices(b, keys + ((first + j * 16 + lane % 8 + lane / 16 * 8) * WIDTH + kk * 16 + lane / 8 % 2 * 8) * 2);
                multiply(ELEMENT(), score[j * 2], query[kk], b[0], b[1]);
                multiply(ELEMENT(), score[j * 2 + 1], query[kk], b[2], b[3]);
            }

        float high[2] = {top[0], top[1]};
#pragma unroll
        for (int j = 0; j < KEYS_WARP / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = tile * BN + first + j * 8 + quad * 2 + e % 2;
                float s = score[j][e] * (SCALE * LOG2_E);
#if HAS_MASK
                const int row = min(row0 + e / 2 * 8, QUERIES - 1);
                if (key < KEYS) s += to_f(mask[(i64)row * MASK_ROW + (i64)key * MASK_KEY]) * LOG2_E;
#endif
                if (KEYS % BN != 0 && key >= KEYS) s = __int_as_float(0xff800000);
                score[j][e] = s;
                high[e / 2] = fmaxf(high[e / 2], s);
            }
        float shift[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 1));
            high[h] = fmaxf(high[h], __shfl_xor_sync(0xffffffffu, high[h], 2));
            // Nothing but masked keys so far: any finite shift gives zeros.
            shift[h] = high[h] == __int_as_float(0xff800000) ? 0.0f : high[h];
            const float fade = exp2f(top[h] - shift[h]);
            top[h] = high[h];
            total[h] *= fade;
#pragma unroll
            for (int j = 0; j < SIZE_PADDED / 8; j++) {
                out[j][h * 2] *= fade;
                out[j][h * 2 + 1] *= fade;
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS_WARP / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                score[j][e] = exp2f(score[j][e] - shift[e / 2]);
                total[e / 2] += score[j][e];
            }
#pragma unroll
        for (int kk = 0; kk < KEYS_WARP / 16; kk++) {
            const u32 a[4] = {
                pack2<ELEMENT>(score[kk * 2][0], score[kk * 2][1]), pack2<ELEMENT>(score[kk * 2][2], score[kk * 2][3]),
                pack2<ELEMENT>(score[kk * 2 + 1][0], score[kk * 2 + 1][1]), pack2<ELEMENT>(score[kk * 2 + 1][2], score[kk * 2 + 1][3])};
#pragma unroll
            for (int j = 0; j < SIZE_PADDED / 16; j++) {
                u32 b[4];
                load_matrices_turned(b, values + ((first + kk * 16 + lane % 16) * WIDTH + j * 16 + lane / 16 * 8) * 2);
                multiply(ELEMENT(), out[j * 2], a, b[0], b[1]);
                multiply(ELEMENT(), out[j * 2 + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
    }
#if WARPS_N > 1
    copies_wait_but<0>();
    __syncthreads();
    float* sums = reinterpret_cast<float*>(pool);
    float* heads = sums + WARPS_N * BM * SIZE_PADDED;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = warp_n * BM + warp_m * 16 + lane / 4 + h * 8;
#pragma unroll
        for (int j = 0; j < SIZE_PADDED / 8; j++)
            *reinterpret_cast<float2*>(sums + row * SIZE_PADDED + j * 8 + quad * 2) = make_float2(out[j][h * 2], out[j][h * 2 + 1]);
        if (quad == 0) {
            heads[row * 2] = top[h];
            heads[row * 2 + 1] = total[h];
        }
    }
    __syncthreads();
    for (int i = thread; i < BM * (SIZE / 8); i += THREADS) {
        const int row = i / (SIZE / 8), column = i % (SIZE / 8) * 8, query_row = blockIdx.x * BM + row;
        if (query_row >= QUERIES) continue;
        float all = __int_as_float(0xff800000), weight = 0.0f, mixed[8];
#pragma unroll
        for (int n = 0; n < WARPS_N; n++) all = fmaxf(all, heads[(n * BM + row) * 2]);
        if (all == __int_as_float(0xff800000)) all = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) mixed[e] = 0.0f;
#pragma unroll
        for (int n = 0; n < WARPS_N; n++) {
            const float fade = exp2f(heads[(n * BM + row) * 2] - all);
            weight += fade * heads[(n * BM + row) * 2 + 1];
#pragma unroll
            for (int e = 0; e < 8; e++) mixed[e] += fade * sums[(n * BM + row) * SIZE_PADDED + column + e];
        }
        const float inverse = weight > 0.0f ? 1.0f / weight : 0.0f;
        Vec<ELEMENT, 8> r;
#pragma unroll
        for (int e = 0; e < 8; e++) put(r.v[e], mixed[e] * inverse);
        r.store(o + (i64)query_row * O_ROW + column);
    }
#else
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = row0 + h * 8;
        const float inverse = total[h] > 0.0f ? 1.0f / total[h] : 0.0f;
        if (row >= QUERIES) continue;
#pragma unroll
        for (int j = 0; j < SIZE_PADDED / 8; j++) {
            const int column = j * 8 + quad * 2;
            if (column < SIZE)
                *reinterpret_cast<u32*>(o + (i64)row * O_ROW + column) = pack2<ELEMENT>(out[j][h * 2] * inverse, out[j][h * 2 + 1] * inverse);
        }
    }
#endif
}
