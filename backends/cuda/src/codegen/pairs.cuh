// The two numbers of 16 bits that a word has.
__device__ __forceinline__ float low_of(u32 pair, half_t) { half_t h; h.b = (u16)pair; return to_f(h); }
__device__ __forceinline__ float high_of(u32 pair, half_t) { half_t h; h.b = (u16)(pair >> 16); return to_f(h); }
__device__ __forceinline__ float low_of(u32 pair, bf16_t) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair, bf16_t) { return __uint_as_float(pair & 0xffff0000u); }
