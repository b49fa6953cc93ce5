// Weighted values of some of the keys, for all heads of queries that share them: SIZE / VECTOR lanes read a key or value,
// and all of a lane's are on their way to shared memory before the first is used.
//
// A key is not read whose mask is -inf, or so low that no score makes up for it while another key is plainly seen.
#define LANES (SIZE / VECTOR)
#define AT_ONCE (WARPS * 32 / LANES)
#define PASSES ((KEYS + AT_ONCE - 1) / AT_ONCE)
#define LOWEST (-__int_as_float(0x7f800000))
// Scores of halves that are right at all lie far within this. Where heads have masks of their own, only what is never seen.
#define UNSEEN (MASK_HEAD ? LOWEST : -30000.0f)
#define SEEN -15000.0f

template <class T, int STEP> __device__ __forceinline__ void fetch(Vec<T, VECTOR>& to, const T* from) {
    if (STEP == VECTOR) {
        to.load(from);
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) to.v[j] = from[j];
    }
}

// What a thread reads lies where that thread alone looks, so that none waits for another.
#define CHUNKS (VECTOR * (int)sizeof(CACHED) / 16)
#define STAGED(which, pass, chunk) (pool + ((((which) * PASSES + (pass)) * CHUNKS + (chunk)) * WARPS * 32 + threadIdx.x) * 16)
template <int STEP> __device__ __forceinline__ void begin(unsigned char* pool, int which, int pass, Vec<CACHED, VECTOR>& to, const CACHED* from) {
    if (STAGES && STEP == VECTOR) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) copy16<false>(shared_at(STAGED(which, pass, c)), from + c * (16 / (int)sizeof(CACHED)), true);
    } else {
        fetch<CACHED, STEP>(to, from);
    }
}
template <int STEP> __device__ __forceinline__ void arrive(unsigned char* pool, int which, int pass, Vec<CACHED, VECTOR>& to) {
    if (!STAGES || STEP != VECTOR) return;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const uint4 of = *reinterpret_cast<const uint4*>(STAGED(which, pass, c));
        memcpy(reinterpret_cast<char*>(to.v) + c * 16, &of, 16);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) one_token(const QUERY* __restrict__ q, CACHED* k, CACHED* v MASK_PARAMETER APPEND_PARAMETERS TURN_PARAMETERS, float* __restrict__ parts) {
    LET_OTHERS_BEGIN;
#if !EARLY
    AFTER_OTHERS;
#endif
    extern __shared__ __align__(128) unsigned char pool[];
    __shared__ float2 tops[WARPS][SHARES];
    __shared__ float sums[WARPS][SHARES][SIZE];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int part = thread % LANES, row = thread / LANES;
    const int first = blockIdx.x * KEYS, head = blockIdx.y, batch = blockIdx.z;
    float* to = parts + ((i64)(batch * HEADS + head) * SHARES * PARTS + blockIdx.x) * (SIZE + 2);

    // Which keys are read; every warp finds the same, so none waits for another.
    bool whole = true;
#if HAS_MASK
    float top = LOWEST;
    for (int i = lane; i < KEYS && first + i < PLACES; i += 32) {
#pragma unroll
        for (int h = 0; h < (MASK_HEAD ? SHARES : 1); h++) {
            const float m = to_f(mask[(i64)batch * MASK_BATCH + (i64)(head * SHARES + h) * MASK_HEAD + (i64)(first + i) * MASK_PLACE]);
            top = m > top ? m : top;
        }
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) { const float o = __shfl_xor_sync(0xffffffffu, top, far); top = o > top ? o : top; }
    whole = false;
    if (!MASK_HEAD && top <= SEEN && top > LOWEST) {
        // Keys that count for nothing beside others count where there are no others.
        float best = LOWEST;
        for (int i = lane; i < PLACES; i += 32) {
            const float m = to_f(mask[(i64)batch * MASK_BATCH + (i64)i * MASK_PLACE]);
            best = m > best ? m : best;
        }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) { const float o = __shfl_xor_sync(0xffffffffu, best, far); best = o > best ? o : best; }
        whole = best <= SEEN;
    }
    const bool none = !whole && top <= UNSEEN;
#elif !LIMITED
    const bool none = false;
#endif
#if APPENDS
    i64 at = (i64)place[0];
    if (at < 0) at += PLACES;
    at = at < 0 ? 0 : at >= PLACES ? PLACES - 1 : at;
    const bool appends = at >= first && at < first + KEYS;
#else
    const bool appends = false;
#endif
#if LIMITED
    // Whoever puts the parts together looks at none behind the limit. The first block stays in any case: what comes next may
    // not begin before all ahead of this is done.
    const i64 given = (i64)place[0], limit = given < 0 ? (FINITE ? PLACES - 1 : -1) : given;
    if (first > limit && !appends && blockIdx.x > 0) return;
#else
    if (none && !appends) {
        for (int h = thread; h < SHARES; h += WARPS * 32) {
            to[h * PARTS * (SIZE + 2) + SIZE] = LOWEST;
            to[h * PARTS * (SIZE + 2) + SIZE + 1] = 0.0f;
        }
        return;
    }
#endif

    Vec<CACHED, VECTOR> a[PASSES], b[PASSES];
    bool reads[PASSES], cached[PASSES];
    CACHED* const keys = k + (i64)batch * K_BATCH + (i64)head * K_HEAD + part * VECTOR;
    CACHED* const values = v + (i64)batch * V_BATCH + (i64)head * V_HEAD + part * VECTOR;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int i = p * AT_ONCE + row, key = first + i;
        reads[p] = i < KEYS && key < PLACES;
#if HAS_MASK
        if (reads[p] && !whole) {
            bool unseen = true;
#pragma unroll
            for (int h = 0; h < (MASK_HEAD ? SHARES : 1); h++)
                unseen = unseen && to_f(mask[(i64)batch * MASK_BATCH + (i64)(head * SHARES + h) * MASK_HEAD + (i64)key * MASK_PLACE]) <= UNSEEN;
            reads[p] = !unseen;
        }
#endif
#if LIMITED
        reads[p] = reads[p] && key <= limit;
#endif
        cached[p] = reads[p];
#if APPENDS
        cached[p] = cached[p] && key != at;
#endif
        if (cached[p]) {
            begin<K_STEP>(pool, 0, p, a[p], keys + (i64)key * K_PLACE);
            begin<V_STEP>(pool, 1, p, b[p], values + (i64)key * V_PLACE);
        }
    }
    copies_end_group();
#if EARLY
    AFTER_OTHERS;
#endif
    q = FRESH(q);
#if APPENDS
    new_k = FRESH(new_k), new_v = FRESH(new_v);
#endif
    Vec<QUERY, VECTOR> own[SHARES];
#pragma unroll
    for (int h = 0; h < SHARES; h++) fetch<QUERY, Q_STEP>(own[h], q + (i64)batch * Q_BATCH + (i64)(head * SHARES + h) * Q_HEAD + part * VECTOR);
#if TURNS
    cosines = FRESH(cosines), sines = FRESH(sines);
    float cosine[VECTOR], sine[VECTOR];
    {
        Vec<QUERY, VECTOR> c, s;
        fetch<QUERY, TURN_STEP>(c, cosines + part * VECTOR);
        fetch<QUERY, TURN_STEP>(s, sines + part * VECTOR);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            cosine[j] = to_f(c.v[j]);
            // Of the first half the other elements count negative.
            sine[j] = part < LANES / 2 ? -to_f(s.v[j]) : to_f(s.v[j]);
        }
    }
#define TURN(x) \
    _Pragma("unroll") \
    for (int j = 0; j < VECTOR; j++) { \
        const float other = __shfl_xor_sync(0xffffffffu, x[j], LANES / 2); \
        x[j] = x[j] * cosine[j] + other * sine[j]; \
    }
#else
#define TURN(x)
#endif
#if APPENDS
    // This block alone reads these keys of these heads.
    if (appends) {
        Vec<CACHED, VECTOR> new_key, new_value;
        fetch<CACHED, NEW_K_STEP>(new_key, new_k + (i64)head * NEW_K_HEAD + part * VECTOR);
        fetch<CACHED, NEW_V_STEP>(new_value, new_v + (i64)head * NEW_V_HEAD + part * VECTOR);
#if TURNS
        float turned[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) turned[j] = to_f(new_key.v[j]);
        TURN(turned)
#pragma unroll
        for (int j = 0; j < VECTOR; j++) put(new_key.v[j], turned[j]);
#endif
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const int i = p * AT_ONCE + row, key = first + i;
            if (i < KEYS && key == at) {
                a[p] = new_key;
                b[p] = new_value;
#pragma unroll
                for (int j = 0; j < VECTOR; j++) {
                    keys[(i64)key * K_PLACE + j] = new_key.v[j];
                    values[(i64)key * V_PLACE + j] = new_value.v[j];
                }
            }
        }
    }
#endif

    float query[SHARES][VECTOR];
#pragma unroll
    for (int h = 0; h < SHARES; h++) {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) query[h][j] = to_f(own[h].v[j]);
        TURN(query[h])
#pragma unroll
        for (int j = 0; j < VECTOR; j++) query[h][j] *= SCALE;
    }
    copies_wait_but<0>();
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        if (!cached[p]) continue;
        arrive<K_STEP>(pool, 0, p, a[p]);
        arrive<V_STEP>(pool, 1, p, b[p]);
    }
    // Every warp for itself: weights beside the largest of its own scores.
#pragma unroll
    for (int h = 0; h < SHARES; h++) {
        float score[PASSES], sum[VECTOR], most = LOWEST, all = 0.0f;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            score[p] = 0.0f;
            if (!reads[p]) continue;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) score[p] += query[h][j] * to_f(a[p].v[j]);
        }
#pragma unroll
        for (int far = LANES / 2; far > 0; far /= 2)
#pragma unroll
            for (int p = 0; p < PASSES; p++) score[p] += __shfl_xor_sync(0xffffffffu, score[p], far);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
#if HAS_MASK
            if (reads[p]) score[p] += to_f(mask[(i64)batch * MASK_BATCH + (i64)(head * SHARES + h) * MASK_HEAD + (i64)(first + p * AT_ONCE + row) * MASK_PLACE]);
#endif
            if (!reads[p]) score[p] = LOWEST;
            most = score[p] > most ? score[p] : most;
        }
#pragma unroll
        for (int far = LANES; far < 32; far *= 2) { const float o = __shfl_xor_sync(0xffffffffu, most, far); most = o > most ? o : most; }
#pragma unroll
        for (int j = 0; j < VECTOR; j++) sum[j] = 0.0f;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            if (!reads[p]) continue;
            const float w = score[p] > LOWEST ? __expf(score[p] - most) : 0.0f;
            all += w;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum[j] += w * to_f(b[p].v[j]);
        }
#pragma unroll
        for (int far = LANES; far < 32; far *= 2) {
            all += __shfl_xor_sync(0xffffffffu, all, far);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], far);
        }
        if (lane < LANES) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sums[warp][h][part * VECTOR + j] = sum[j];
        }
        if (lane == 0) tops[warp][h] = make_float2(most, all);
    }
    __syncthreads();
    for (int i = thread; i < SHARES * SIZE; i += WARPS * 32) {
        const int h = i / SIZE, d = i % SIZE;
        float most = LOWEST, all = 0.0f, f = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = tops[w][h].x > most ? tops[w][h].x : most;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float share = tops[w][h].x > LOWEST ? __expf(tops[w][h].x - most) : 0.0f;
            f += share * sums[w][h][d];
            all += share * tops[w][h].y;
        }
        to[h * PARTS * (SIZE + 2) + d] = f;
        if (d == 0) {
            to[h * PARTS * (SIZE + 2) + SIZE] = most;
            to[h * PARTS * (SIZE + 2) + SIZE + 1] = all;
        }
    }
}
