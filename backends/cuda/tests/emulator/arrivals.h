// What arrivals.cuh has, on the fibers of cuda.h: what is copied or told is there at once, and counted. A count that is not
// what was expected when all threads of a cluster wait for it would be waited for without end on a device.
#if __CUDA_ARCH__ >= 900
#define ARRIVALS 1
static inline void begin_count(i64* count, u32 = 1) { *count = 0; }
static inline void counts_begun() {}
static inline void expect(i64* count, u32 bytes) { *count += bytes; }
static inline void wait_for(i64* count, u32 = 0) {
    CLUSTER_SYNC;
    if (*count != 0) host::wrong("another number of bytes came than was expected, waited for");
}
static inline void copy_whole(void* to, const void* from, u32 bytes, i64* count) {
    if (bytes % 16 || (size_t)to % 16 || (size_t)from % 16) host::wrong("what is copied is not whole sixteens of bytes, begun");
    for (u32 i = 0; i < bytes / 16; i++) host::element((uint4*)to, i) = host::element((const uint4*)from, i);
    *count -= bytes;
}
static inline u32 at_rank(const void* p, int other) { return shared_at(p) + (other - (int)host::self->rank) * (int)host::SHARED_BYTES; }
static inline void told(u32 there, const void* value, u32 bytes, u32 count) {
    memcpy(shared_from(there), value, bytes);
    *(i64*)shared_from(count) -= bytes;
}
static inline void tell(u32 there, u32 word, u32 count) { told(there, &word, sizeof word, count); }
static inline void tell(u32 there, float f, float g, u32 count) {
    const float both[2] = {f, g};
    told(there, both, sizeof both, count);
}
static inline void this_block_has_begun() {}
static inline void until_all_have_begun() { CLUSTER_SYNC; }
#else
#define ARRIVALS 0
#endif
static inline u16 read_here(const void* p) { return host::element((const u16*)p, 0); }
template <class T> static inline void computed(T&) {}
