// A second product, whose row the blocks of a cluster have told each other: each block has some of its columns, over that part
// of the sum which is this cluster's, and adds what comes out to a row of sums.
//
// The columns are asked for behind the others, and waited for where they are needed. They are the second factor, whose rows
// lie in different banks by eight elements more each.
#define TAIL_COLUMNS (((TAIL_N + RANKS - 1) / RANKS + 15) / 16 * 16)
#define TAIL_PITCH (TAIL_K + 8)
#define TAIL_TILES (TAIL_COLUMNS / 16)
#define TAIL_STEPS (TAIL_K / 16)
// Warps that share the sum of sixteen columns, tiles of each warp, and its steps.
#define TAIL_SHARE (TAIL_STEPS % 2 == 0 && 2 * TAIL_TILES <= WARPS ? 2 : 1)
#define TAIL_EACH ((TAIL_TILES + WARPS - 1) / WARPS)
#define TAIL_OWN (TAIL_STEPS / TAIL_SHARE)
// What a block adds of the row itself and the bias: a lane each.
#define ADDS ((TAIL_N + CLUSTERS * RANKS - 1) / (CLUSTERS * RANKS))

struct Tail {
    __align__(16) ELEMENT w[TAIL_COLUMNS * TAIL_PITCH];
    // Of a head every warp puts the row together by itself.
    __align__(16) ELEMENT row[HEADS ? WARPS : 1][TAIL_K];
    i64 copied, told;
    float biases[ADDS];
};

__device__ __forceinline__ int tail_columns(int rank) { return max(0, min(TAIL_COLUMNS, TAIL_N - rank * TAIL_COLUMNS)); }
__device__ __forceinline__ void copy_tail(Tail& t, const ELEMENT* w, int cluster, int rank) {
    if (threadIdx.x % 32 == 0)
#pragma unroll 1
        for (int c = threadIdx.x / 32; c < tail_columns(rank); c += WARPS)
            copy_whole(t.w + c * TAIL_PITCH, w + (i64)(rank * TAIL_COLUMNS + c) * TAIL_STRIDE + cluster * TAIL_K, TAIL_K * 2, &t.copied);
}
__device__ __forceinline__ bool has_tail() { return threadIdx.x / 32 < TAIL_TILES * TAIL_SHARE; }
__device__ __forceinline__ void hold_tail(const Tail& t, u32 (&held)[TAIL_EACH][TAIL_OWN][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!has_tail()) return;
#pragma unroll
    for (int e = 0; e < TAIL_EACH; e++) {
        const int tile = warp % TAIL_TILES + e * WARPS;
        const u32 from = shared_at(t.w + ((tile < TAIL_TILES ? tile : 0) * 16 + lane / 16 * 8 + lane % 8) * TAIL_PITCH + warp / TAIL_TILES * TAIL_OWN * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < TAIL_OWN; i++) load_matrices(held[e][i], from + i * 32);
    }
}
__device__ __forceinline__ void add_tail(const ELEMENT* row, const u32 (&held)[TAIL_EACH][TAIL_OWN][4], int rank, i64* y) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
    if (!has_tail()) return;
    float d[TAIL_EACH][2][2][4];
#pragma unroll
    for (int i = 0; i < TAIL_EACH * 16; i++) d[i / 16][i / 8 % 2][i / 4 % 2][i % 4] = 0.0f;
    row += warp / TAIL_TILES * TAIL_OWN * 16 + quarter * 2;
#pragma unroll
    for (int i = 0; i < TAIL_OWN; i++) {
        const u32 low = *(const u32*)(row + i * 16), high = *(const u32*)(row + i * 16 + 8);
        const u32 a[4] = {low, low, high, high};
#pragma unroll
        for (int e = 0; e < TAIL_EACH; e++) {
            multiply(ELEMENT(), d[e][0][i % 2], a, held[e][i][0], held[e][i][1]);
            multiply(ELEMENT(), d[e][1][i % 2], a, held[e][i][2], held[e][i][3]);
        }
    }
    // All rows of a result are the same: each of four adds one of its lane's columns.
    const int one = lane / 4;
#pragma unroll
    for (int e = 0; e < TAIL_EACH; e++) {
        float f = d[e][0][0][0] + d[e][0][1][0];
        if (one == 1) f = d[e][0][0][1] + d[e][0][1][1];
        if (one == 2) f = d[e][1][0][0] + d[e][1][1][0];
        if (one == 3) f = d[e][1][0][1] + d[e][1][1][1];
        const int tile = warp % TAIL_TILES + e * WARPS;
        const int n = rank * TAIL_COLUMNS + tile * 16 + one / 2 * 8 + quarter * 2 + one % 2;
        if (one < 4 && tile < TAIL_TILES && (TAIL_COLUMNS * RANKS == TAIL_N || n < TAIL_N)) add_sum(y + n, to_sum(f));
    }
}
