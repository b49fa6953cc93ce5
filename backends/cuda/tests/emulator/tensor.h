// What tensor.cuh has, on the fibers of cuda.h: copies at once, matrices out of what the lanes of a warp give. An address
// in shared memory is counted from the first block's.
__device__ __forceinline__ u32 shared_at(const void* p) {
    return (u32)((const unsigned char*)p - host::dynamic_shared[0]);
}
static inline unsigned char* shared_from(u32 at) { return host::dynamic_shared[0] + at; }

template <bool AGAIN> __device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    if (valid) host::element(reinterpret_cast<uint4*>(shared_from(to)), 0) = host::element(reinterpret_cast<const uint4*>(from), 0);
    else host::element(reinterpret_cast<uint4*>(shared_from(to)), 0) = make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ void copies_end_group() {}
template <int LATEST> __device__ __forceinline__ void copies_wait_but() {}

static inline u16 matrix_element(unsigned matrix, unsigned row, unsigned column) {
    const u32 at = host::taken<u32>(matrix * 8 + row);
    return reinterpret_cast<const u16*>(&host::element(reinterpret_cast<uint4*>(shared_from(at)), 0))[column];
}
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
    host::give(&from, sizeof from);
    const unsigned lane = threadIdx.x % 32;
    for (unsigned i = 0; i < 4; i++)
        r[i] = matrix_element(i, lane / 4, lane % 4 * 2) | (u32)matrix_element(i, lane / 4, lane % 4 * 2 + 1) << 16;
}
__device__ __forceinline__ void load_matrices_turned(u32 (&r)[4], u32 from) {
    host::give(&from, sizeof from);
    const unsigned lane = threadIdx.x % 32;
    for (unsigned i = 0; i < 4; i++)
        r[i] = matrix_element(i, lane % 4 * 2, lane / 4) | (u32)matrix_element(i, lane % 4 * 2 + 1, lane / 4) << 16;
}

struct Factors { u32 a[4], b[2]; };
template <class T> __device__ __forceinline__ void multiply(T, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const Factors mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    host::give(&mine, sizeof mine);
    const unsigned lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const auto half = [](u32 pair, unsigned which) { T t; t.b = (u16)(pair >> which * 16); return to_f(t); };
    for (unsigned k = 0; k < 16; k++) {
        // Sixteen steps of the sum: eight lie in the first register of a pair, two in each lane of four.
        const unsigned lane_k = k % 8 / 2, upper = k / 8, which = k % 2;
        const Factors left = host::taken<Factors>(row * 4 + lane_k);
        for (unsigned e = 0; e < 4; e++) {
            const Factors right = host::taken<Factors>((column + e % 2) * 4 + lane_k);
            d[e] += half(left.a[upper * 2 + e / 2], which) * half(right.b[upper], which);
        }
    }
}

template <class T> __device__ __forceinline__ u32 pack2(float low, float high) {
    T a, b;
    put(a, low);
    put(b, high);
    return (u32)a.b | (u32)b.b << 16;
}
