// A row of sums to which blocks add in any order, and which comes out the same: whole numbers of 64 bits, in 67,108,864ths.
// What is no number, or far beyond what a number of 16 bits can be, makes the sum none. At most 63 add to one.
#define SUM_UNIT 67108864.0f
#define SUM_LARGEST 16777216.0f
#define SUM_NONE (1ll << 57)
__device__ __forceinline__ i64 to_sum(float f) { return fabsf(f) <= SUM_LARGEST ? __float2ll_rn(f * SUM_UNIT) : SUM_NONE; }
// All that was added, as something that is added elsewhere.
__device__ __forceinline__ i64 sum_again(i64 sum) { return sum <= (1ll << 50) && sum >= -(1ll << 50) ? sum : SUM_NONE; }
__device__ __forceinline__ float of_sum(u32 low, u32 high) {
    const i64 sum = (i64)((unsigned long long)high << 32 | low);
    return high + (1u << 24) < (1u << 25) ? (float)sum * (1.0f / SUM_UNIT) : __int_as_float(0x7fffffff);
}
__device__ __forceinline__ void add_sum(i64* to, i64 value) { atomicAdd((unsigned long long*)to, (unsigned long long)value); }
