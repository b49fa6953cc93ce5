// Functions with and without _exact: those without are for results of 16 bits, right to a small part of their last place
// wherever such a result is no subnormal number of bf16; those with are for results in f32.
__device__ __forceinline__ float exp2_(float x) { float f; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(x)); return f; }
__device__ __forceinline__ float sigmoid_(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float sigmoid_exact(float x) { return 1.0f / (1.0f + expf(-x)); }
// Near zero the difference of two numbers near one has no digits left.
__device__ __forceinline__ float tanh_(float x) {
    float e = __expf(-2.0f * fabsf(x)), far = copysignf(__fdividef(1.0f - e, 1.0f + e), x);
    return fabsf(x) < 0.03f ? fmaf(x, x * x * -0.33333334f, x) : far;
}
__device__ __forceinline__ float softplus_(float x) { return fmaxf(x, 0.0f) + log1pf(__expf(-fabsf(x))); }
__device__ __forceinline__ float softplus_exact(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
// x tanh(log(1 + e)) = x n / (n + 2) with n = e (e + 2); from 20 on n is as good as infinite.
__device__ __forceinline__ float mish_(float x) { float e = __expf(fminf(x, 20.0f)), n = e * (e + 2.0f); return x * __fdividef(n, n + 2.0f); }
__device__ __forceinline__ float mish_exact(float x) { float e = expf(fminf(x, 20.0f)), n = e * (e + 2.0f); return x * (n / (n + 2.0f)); }
__device__ __forceinline__ float clip_(float x, float lo, float hi) { return fminf(fmaxf(x, lo), hi); }
// GELU by erf is x Phi(x) = relu(x) - |x| Phi(-|x|). The logarithm of Phi(-a) to base 2 is smooth, so 2 to a polynomial
// in a has Phi(-a) to the same share of itself everywhere: nothing is taken from one, and no digit of the tail is lost.
// For fp16, which has nothing beyond -5.8; to 4e-5 of the value.
__device__ __forceinline__ float gelu_f16(float x) {
    float a = fminf(fabsf(x), 5.8f), p = 2.42290522e-5f;
    p = fmaf(p, a, -0.00063112981f);
    p = fmaf(p, a, 0.007316003f);
    p = fmaf(p, a, -0.051515966f);
    p = fmaf(p, a, -0.46086603f);
    p = fmaf(p, a, -1.1503545f);
    p = fmaf(p, a, -1.0000519f);
    return fmaf(-a, exp2_(p), x < 0.0f ? 0.0f : x);
}
// For bf16, which ends at -13.6; to 1.1e-5 of the value down to -6.2, 1e-4 beyond. The tail's second factor is
// taken 2 to the 12th times, so that it is not flushed to zero while the tail is more; the first by that much less.
__device__ __forceinline__ float gelu_(float x) {
    float a = fminf(fabsf(x), 13.6f), p = -2.15858442e-9f;
    p = fmaf(p, a, 1.54762381e-7f);
    p = fmaf(p, a, -4.86817438e-6f);
    p = fmaf(p, a, 8.90452058e-5f);
    p = fmaf(p, a, -0.0010625989f);
    p = fmaf(p, a, 0.0088541315f);
    p = fmaf(p, a, -0.054426235f);
    p = fmaf(p, a, -0.4581997f);
    p = fmaf(p, a, -1.1512755f);
    p = fmaf(p, a, 10.9999963f);
    return fmaf(a * -2.4414062e-4f, exp2_(p), x < 0.0f ? 0.0f : x);
}
// For f32: erfc(a / sqrt 2) e^(a^2 / 2) as a polynomial, to 1e-6; the square in two parts, of which the first is exact.
__device__ __forceinline__ float gelu_exact(float x) {
    float a = fminf(fabsf(x), 14.5f), t = 1.0f / fmaf(0.31112698f, a, 1.0f), p = 0.07108149f;
    p = fmaf(p, t, -0.2773268f);
    p = fmaf(p, t, 0.2955585f);
    p = fmaf(p, t, -0.019079963f);
    p = fmaf(p, t, 0.21519284f);
    p = fmaf(p, t, 0.21751388f);
    p = fmaf(p, t, 0.24883684f);
    p = fmaf(p, t, 0.24822335f);
    float head = __uint_as_float(__float_as_uint(a) & 0xfffff000u), rest = (a - head) * (a + head);
    float bell = expf(-0.5f * head * head) * expf(-0.5f * rest);
    return fmaf(-0.5f * a * t * p, bell, x < 0.0f ? 0.0f : x);
}
// The same formula as with 1 + tanh, of which the tail would have no digits.
__device__ __forceinline__ float gelu_tanh_(float x) { return x * sigmoid_(1.5957691f * fmaf(0.044715f * x * x, x, x)); }
__device__ __forceinline__ float gelu_tanh_exact(float x) { return x * sigmoid_exact(1.5957691f * fmaf(0.044715f * x * x, x, x)); }
