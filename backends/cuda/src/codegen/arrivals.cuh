// Copies, and words told to other blocks of a cluster, that say by themselves that they have arrived: counted in shared
// memory, so that nobody waits for more than what it waits for. A count is used once, or once more each time it was waited
// for. All this is from Hopper on.
#if __CUDA_ARCH__ >= 900
#define ARRIVALS 1
// As many threads say what they expect.
__device__ __forceinline__ void begin_count(i64* count, u32 threads = 1) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_at(count)), "r"(threads) : "memory"); }
// Copies and other blocks find the counts that this thread has begun, behind the next barrier.
__device__ __forceinline__ void counts_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void expect(i64* count, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(count)), "r"(bytes) : "memory");
}
// Until as many bytes have come as were expected. Every thread that reads them waits; `turn`: how often it has before, or
// whether that is odd.
__device__ __forceinline__ void wait_for(i64* count, u32 turn = 0) {
    u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_at(count)), "r"(turn & 1u) : "memory");
}
// Whole sixteens of bytes, by the unit that copies beside all threads.
__device__ __forceinline__ void copy_whole(void* to, const void* from, u32 bytes, i64* count) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(bytes), "r"(shared_at(count)) : "memory");
}

// The same place in the shared memory of another block of the cluster, where words are told and counted.
__device__ __forceinline__ u32 at_rank(const void* p, int other) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_at(p)), "r"(other));
    return there;
}
__device__ __forceinline__ void tell(u32 there, u32 word, u32 count) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there), "r"(word), "r"(count) : "memory");
}
__device__ __forceinline__ void tell(u32 there, float f, float g, u32 count) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(f), "f"(g), "r"(count) : "memory");
}
// All threads of a block say so once; what is told to a block that has not begun is lost.
__device__ __forceinline__ void this_block_has_begun() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void until_all_have_begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#else
#define ARRIVALS 0
#endif
// What no step writes, read here and not where it is used: behind copies it would be waited for as long as they take.
__device__ __forceinline__ u16 read_here(const void* p) {
    u16 word;
    asm volatile("ld.global.b16 %0, [%1];" : "=h"(word) : "l"(p) : "memory");
    return word;
}
// A value that is computed here and not again where it is used.
__device__ __forceinline__ void computed(u32& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void computed(float& value) { asm volatile("" : "+f"(value)); }
