// What a block of a cluster does for its head beside its columns of queries, keys and values: it reads some of the keys and
// values, gets from the others what it has not, and puts a part of the result together.
//
// Sixteen keys at a time go through tensor cores. Between what others tell and what is told to others every instruction
// counts, so addresses and what is hidden are computed before, and scores are exponents of two.
#define PART (SIZE / RANKS)
#define CHUNKS (SIZE / 8)
#define SLICE_KEYS ((PLACES + RANKS - 1) / RANKS)
#define TILES ((SLICE_KEYS + 15) / 16)
// Keys of a tile are a row apart, of which each has as many keys as there are tiles, so that they lie in different banks.
#define KEY_ROW (TILES * SIZE + 8)
#define PASSES ((TILES + WARPS - 1) / WARPS)
#define LOWEST -3.0e38f
// Bytes to a warp's keys of another pass. Tiles are fewer than warps or a multiple of them.
#define PASS_AT(p) ((p) * WARPS * SIZE * 2)

struct Caches {
    __align__(16) ELEMENT k[16 * KEY_ROW], v[16 * KEY_ROW];
    // Query, new key, new value, from all blocks of the cluster.
    __align__(16) ELEMENT whole[3][SIZE];
    // Weighted values by each warp of this block and by each block, its largest score and sum of weights.
    __align__(8) float own[WARPS][SIZE + 2], parts[RANKS][SIZE + 2];
    // Whether keys and values have been copied, whether queries, new keys and new values are here, and the parts.
    i64 copied, told[2];
};

// Which keys are this block's, and which of all is new.
struct Slice {
    int first, count, fresh;
    bool appends;
};
__device__ __forceinline__ Slice slice_of(i64 given, int rank) {
    Slice slice;
    const int seen = given < 0 ? (FINITE ? PLACES : 0) : given >= PLACES ? PLACES : (int)given + 1;
    const i64 at = given < 0 ? given + PLACES : given;
    slice.fresh = at < 0 ? 0 : at >= PLACES ? PLACES - 1 : (int)at;
    const int each = (seen + RANKS - 1) / RANKS;
    slice.first = min(rank * each, seen);
    slice.count = min(slice.first + each, seen) - slice.first;
    // What nobody sees is written too.
    slice.appends = slice.fresh < seen ? slice.fresh >= slice.first && slice.fresh < slice.first + slice.count : rank == 0;
    return slice;
}
__device__ __forceinline__ int lies_at(int key) { return key / TILES * KEY_ROW + key % TILES * SIZE; }

// There are zeros behind the last key and value, which others see behind a barrier.
__device__ __forceinline__ void begin_caches(Caches& c, const Slice& slice, const ELEMENT* keys, const ELEMENT* values) {
    // A thread asks for one copy after the other: four of each warp do.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) expect(&c.copied, 2 * slice.count * SIZE * 2);
    if (lane % 8 == 0)
#pragma unroll 1
        for (int each = warp * 4 + lane / 8; each < 32; each += WARPS * 4) {
            const int row = each % 16, count = min(slice.count - row * TILES, TILES);
            const ELEMENT* const from = (each < 16 ? keys : values) + (i64)(slice.first + row * TILES) * SIZE;
            if (count > 0) copy_whole((each < 16 ? c.k : c.v) + row * KEY_ROW, from, count * SIZE * 2, &c.copied);
        }
    for (int i = slice.count * CHUNKS + threadIdx.x; i < TILES * 16 * CHUNKS; i += WARPS * 32) {
        const int to = lies_at(i / CHUNKS) + i % CHUNKS * 8;
        *(uint4*)(c.k + to) = *(uint4*)(c.v + to) = make_uint4(0, 0, 0, 0);
    }
}

// Where a warp's part of the keys and values is, and where what it finds goes.
struct Part {
    u32 k, v;
    // Of a lane's keys of each sixteen, two of the first eight and two of the others: what their scores get, LOWEST where there is none.
    float hidden[PASSES][4];
    u32 to, to_top, told;
};
__device__ __forceinline__ void prepare(Caches& c, const Slice& slice, int rank, Part& mine) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
    const int at = (lane / 16 * 8 + lane % 8) * KEY_ROW + min(warp, TILES - 1) * SIZE + lane / 8 % 2 * 8;
    mine.k = shared_at(c.k + at), mine.v = shared_at(c.v + at);
    computed(mine.k), computed(mine.v);
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int tile = p * WARPS + warp;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mine.hidden[p][i] = tile < TILES && (i / 2 * 8 + quarter * 2 + i % 2) * TILES + tile < slice.count ? 0.0f : LOWEST;
            computed(mine.hidden[p][i]);
        }
    }
    // Each warp tells one block what all of this one have found.
    mine.to = at_rank(&c.parts[rank][2 * lane % SIZE], warp);
    mine.to_top = at_rank(&c.parts[rank][SIZE], warp), mine.told = at_rank(&c.told[1], warp);
    computed(mine.to), computed(mine.to_top), computed(mine.told);
}

// Eight parts together: of two of a lane's dimensions what all have found, with the largest score and the sum of weights.
struct Found {
    float f, g, top, weights;
};
__device__ __forceinline__ Found together(const float (&parts)[RANKS][SIZE + 2]) {
    const int at = 2 * (threadIdx.x % 32) % SIZE;
    float2 tops[RANKS], values[RANKS];
#pragma unroll
    for (int i = 0; i < RANKS; i++) tops[i] = *(const float2*)&parts[i][SIZE], values[i] = *(const float2*)&parts[i][at];
    Found all = {0.0f, 0.0f, tops[0].x, 0.0f};
#pragma unroll
    for (int i = 1; i < RANKS; i++) all.top = fmaxf(all.top, tops[i].x);
#pragma unroll
    for (int i = 0; i < RANKS; i++) {
        const float share = exp2_(tops[i].x - all.top);
        all.weights += share * tops[i].y, all.f += share * values[i].x, all.g += share * values[i].y;
    }
    return all;
}

// Attention of the head, where all blocks have its query: two dimensions for each lane of every warp, in pairs.
__device__ __forceinline__ u32 attend(Caches& c, const Slice& slice, Part& mine, ELEMENT* keys, ELEMENT* values) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
    const int fresh = slice.fresh - slice.first;
    if (fresh >= 0 && fresh < slice.count && warp == fresh % TILES % WARPS) {
        const int from = lane % CHUNKS;
        if (lane < 2 * CHUNKS) *(uint4*)((lane < CHUNKS ? c.k : c.v) + lies_at(fresh) + from * 8) = *(const uint4*)&c.whole[lane < CHUNKS ? 1 : 2][from * 8];
        __syncwarp();
    }
    float score[PASSES][4], top = LOWEST / 2;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        float d[2][2][4];
#pragma unroll
        for (int i = 0; i < 16; i++) d[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            const u32 low = *(const u32*)&c.whole[0][i * 16 + quarter * 2], high = *(const u32*)&c.whole[0][i * 16 + 8 + quarter * 2];
            const u32 q[4] = {low, low, high, high};
            u32 k[4];
            load_matrices(k, mine.k + PASS_AT(p) + i * 32);
            multiply(ELEMENT(), d[0][i % 2], q, k[0], k[1]);
            multiply(ELEMENT(), d[1][i % 2], q, k[2], k[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            score[p][i] = (d[i / 2][0][i % 2] + d[i / 2][1][i % 2]) * (QUERY_SCALE * 1.44269504f) + mine.hidden[p][i];
            top = fmaxf(top, score[p][i]);
        }
    }
#pragma unroll
    for (int far = 1; far < 4; far *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, far));
    float out[SIZE / 16][4], all[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SIZE / 16 * 4; i++) out[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const u32 first = pack2<ELEMENT>(exp2_(score[p][0] - top), exp2_(score[p][1] - top));
        const u32 second = pack2<ELEMENT>(exp2_(score[p][2] - top), exp2_(score[p][3] - top));
        const u32 ones[4] = {ONES, ONES, ONES, ONES};
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            u32 v[4];
            load_matrices_turned(v, mine.v + PASS_AT(p) + i * 32);
            multiply(ELEMENT(), out[i], v, first, second);
        }
        multiply(ELEMENT(), all, ones, first, second);
    }
    // All lanes of a row have the same: each keeps two dimensions.
    float f = out[0][0], g = out[0][2];
#pragma unroll
    for (int i = 1; i < SIZE / 16; i++)
        if (quarter == i) f = out[i][0], g = out[i][2];
    if (quarter < SIZE / 16) c.own[warp][quarter * 16 + lane / 4] = f, c.own[warp][quarter * 16 + 8 + lane / 4] = g;
    if (lane == 0) *(float2*)&c.own[warp][SIZE] = make_float2(top, all[0]);
    __syncthreads();
    const Found ours = together(c.own);
    if (2 * lane < SIZE) tell(mine.to, ours.f, ours.g, mine.told);
    if (lane == 0) tell(mine.to_top, ours.top, ours.weights, mine.told);
    if (slice.appends && warp == WARPS - 1) {
        // This block alone reads this key of this head.
        const int from = lane % CHUNKS;
        if (lane < 2 * CHUNKS) *(uint4*)((lane < CHUNKS ? keys : values) + (i64)slice.fresh * SIZE + from * 8) = *(const uint4*)&c.whole[lane < CHUNKS ? 1 : 2][from * 8];
    }
    wait_for(&c.told[1]);
    const Found found = together(c.parts);
    const float over = __fdividef(1.0f, found.weights);
    return found.weights > 0.0f ? pack2<ELEMENT>(found.f * over, found.g * over) : pack2<ELEMENT>(NOTHING, NOTHING);
}
