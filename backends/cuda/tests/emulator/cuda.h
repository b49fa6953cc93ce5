// CUDA on a processor, as far as generated kernels use it: every thread of a block is a fiber, blocks run one after
// another, those of a cluster at once. What all threads of a warp, block or cluster do together is waited for by all of
// them; if some never come, the launch says so. Vectors are checked to be aligned and inside of what was given.
//
// Not shown: races between threads (fibers change places only where they wait), copies that are read before they were
// waited for, and how fast anything is.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static

struct uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline float __int_as_float(int i) { return __uint_as_float((unsigned)i); }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
#define __expf expf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long __float2ll_rn(float f) { return llrintf(f); }

namespace host {
const unsigned WARP = 32, CLUSTER_MAX = 8, SHARED_BYTES = 228 * 1024;
const size_t STACK_BYTES = 128 * 1024;

struct Three { unsigned x, y, z; };
enum Wait { NOTHING, FOR_WARP, FOR_BLOCK, FOR_CLUSTER, ENDED };
struct Fiber {
    ucontext_t context;
    Three thread, block;
    unsigned flat, rank; // within its block; of its block in the cluster
    Wait wait;
    unsigned turn; // which of the two places what it gives to its warp lies in
    unsigned char given[2][32];
};
struct Range { uintptr_t begin, end; };

static Fiber* fibers;
static unsigned fiber_count, block_threads;
static unsigned char* stacks;
static Fiber* self;
static ucontext_t scheduler;
static Range* ranges;
static unsigned range_count;
static char what_went_wrong[256];
__align__(128) static unsigned char dynamic_shared[CLUSTER_MAX][SHARED_BYTES];

static void wrong(const char* what) {
    if (!what_went_wrong[0])
        snprintf(what_went_wrong, sizeof what_went_wrong, "%s by thread %u of block %u, %u, %u", what, self->flat, self->block.x, self->block.y, self->block.z);
}
static void wait_for(Wait what) {
    self->wait = what;
    swapcontext(&self->context, &scheduler);
}
// What another thread of the warp gives; all of them give something.
static void give(const void* value, size_t bytes) {
    self->turn ^= 1;
    memcpy(self->given[self->turn], value, bytes);
    wait_for(FOR_WARP);
}
template <class T> static T taken(unsigned lane) {
    T value;
    memcpy(&value, fibers[self->rank * block_threads + self->flat / WARP * WARP + lane].given[self->turn], sizeof value);
    return value;
}
static bool is_shared(uintptr_t at, size_t bytes) {
    uintptr_t begin = (uintptr_t)dynamic_shared;
    return at >= begin && at + bytes <= begin + sizeof dynamic_shared;
}
template <class R> static R& element(R* p, int i) {
    static const unsigned char nothing[sizeof(R)] = {};
    static unsigned char anywhere[sizeof(R)] __align__(16);
    const uintptr_t at = (uintptr_t)(p + i);
    bool inside = is_shared(at, sizeof(R));
    for (unsigned r = 0; r < range_count && !inside; r++) inside = at >= ranges[r].begin && at + sizeof(R) <= ranges[r].end;
    if (at % sizeof(R) == 0 && inside) return p[i];
    wrong(inside ? "a vector that is not aligned" : "a vector outside of every operand");
    memcpy(anywhere, nothing, sizeof(R));
    return *reinterpret_cast<R*>(anywhere);
}
static unsigned char* shared_of_block() { return dynamic_shared[self->rank]; }

static void (*body)();
static void begin_fiber() {
    body();
    self->wait = ENDED;
    swapcontext(&self->context, &scheduler);
}
// Whether those of `count` fibers from `first` that go on all wait for `what`; then they go on.
static bool release(unsigned first, unsigned count, Wait what) {
    bool any = false;
    for (unsigned i = first; i < first + count; i++) {
        if (fibers[i].wait == ENDED) continue;
        if (fibers[i].wait != what) return false;
        any = true;
    }
    for (unsigned i = first; any && i < first + count; i++)
        if (fibers[i].wait == what) fibers[i].wait = NOTHING;
    return any;
}
static bool run_together() {
    for (;;) {
        bool all_ended = true, ran = false;
        for (unsigned i = 0; i < fiber_count; i++) {
            if (fibers[i].wait == NOTHING) {
                self = &fibers[i];
                swapcontext(&scheduler, &self->context);
                ran = true;
            }
            all_ended &= fibers[i].wait == ENDED;
        }
        if (all_ended || what_went_wrong[0]) return !what_went_wrong[0];
        for (unsigned b = 0; b < fiber_count; b += block_threads) {
            for (unsigned w = 0; w < block_threads; w += WARP) {
                const unsigned lanes = block_threads - w < WARP ? block_threads - w : WARP;
                ran |= release(b + w, lanes, FOR_WARP);
            }
            ran |= release(b, block_threads, FOR_BLOCK);
        }
        ran |= release(0, fiber_count, FOR_CLUSTER);
        if (!ran) {
            wrong("threads wait for others that do not come");
            return false;
        }
    }
}
struct Memory {
    Memory() {
        fibers = (Fiber*)malloc(fiber_count * sizeof(Fiber));
        stacks = (unsigned char*)mmap(0, fiber_count * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    ~Memory() {
        free(fibers);
        if (stacks != MAP_FAILED) munmap(stacks, fiber_count * STACK_BYTES);
    }
};
// Runs blocks of `block` threads over `grid`, `cluster` of them along y at once.
static const char* launch(void (*kernel)(), const unsigned* grid, const unsigned* block, unsigned cluster, Range* given, unsigned given_count) {
    body = kernel;
    ranges = given;
    range_count = given_count;
    what_went_wrong[0] = 0;
    block_threads = block[0] * block[1] * block[2];
    fiber_count = block_threads * cluster;
    const Memory memory;
    if (!fibers || stacks == MAP_FAILED) return "no memory for the threads of a block";
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y += cluster)
            for (unsigned x = 0; x < grid[0]; x++) {
                // Nothing of an earlier block may be taken for a result.
                for (unsigned r = 0; r < cluster; r++) memset(dynamic_shared[r], 0xff, SHARED_BYTES);
                for (unsigned i = 0; i < fiber_count; i++) {
                    Fiber& fiber = fibers[i];
                    const unsigned flat = i % block_threads, rank = i / block_threads;
                    getcontext(&fiber.context);
                    fiber.context.uc_stack.ss_sp = stacks + i * STACK_BYTES;
                    fiber.context.uc_stack.ss_size = STACK_BYTES;
                    fiber.context.uc_link = 0;
                    makecontext(&fiber.context, begin_fiber, 0);
                    fiber.thread = {flat % block[0], flat / block[0] % block[1], flat / block[0] / block[1]};
                    fiber.block = {x, y + rank, z};
                    fiber.flat = flat;
                    fiber.rank = rank;
                    fiber.wait = NOTHING;
                    fiber.turn = 0;
                }
                if (!run_together()) return what_went_wrong;
            }
    return 0;
}
} // namespace host

#define threadIdx (host::self->thread)
#define blockIdx (host::self->block)
#define __syncthreads() host::wait_for(host::FOR_BLOCK)
#define __syncwarp() host::wait_for(host::FOR_WARP)
#define CLUSTER_SYNC host::wait_for(host::FOR_CLUSTER)

template <class T> static inline T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    host::give(&value, sizeof value);
    return host::taken<T>((host::self->flat % host::WARP) ^ mask);
}

template <class T> static inline T __shfl_sync(unsigned, T value, unsigned lane) {
    host::give(&value, sizeof value);
    return host::taken<T>(lane);
}

static inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long more) {
    unsigned long long& at = host::element(p, 0), before = at;
    at += more;
    return before;
}

// Halves, rounded to the nearest even; subnormal ones too.
static inline float half_to_float(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    const float magnitude = exponent ? ldexpf((float)(fraction | 1024), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return sign ? -magnitude : magnitude;
}
static inline unsigned short float_to_half(float f) {
    const unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x477ff000u) return sign | 0x7c00;
    if (rest < 0x38800000u) return sign | (unsigned)rintf(ldexpf(__uint_as_float(rest), 24));
    return sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
}
