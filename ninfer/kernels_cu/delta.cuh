// What every form of the Gated DeltaNet shares: shapes, slots, gates, and the order of each sum.
//
// The state of a value head is S[value dim][key dim] in float32, a row of S being one value dimension;
// rows never meet.  In the recurrent form eight lanes share a row: lane l owns key dims 4 (l + 8 i) .. + 3
// for i < 4.  Decode, verification and fold use the functions below in one order, so the same inputs give
// the same bits in each.
//
// The one thing a reader would get wrong: the convolution history is a ring of four columns, the
// column of token p at p % 4, so the column being written is never among the three being read.
#pragma once
#include "ptx.cuh"

constexpr int HEAD = 128;  // key and value dimensions of a head
constexpr int TAPS = 4;
constexpr float L2_EPS = 1e-6f;
constexpr float QUERY_FACTOR = 0.08838834764831845f;  // 1 / sqrt(HEAD)

using bf16 = __nv_bfloat16;

// StateImages: slot s begins at base + s * image_bytes; byte offsets are those of one layer.
struct Images {
    unsigned char* base;
    long long image_bytes, recurrent, ring;
};

// Shapes and weights of one layer.  taps (TAPS, channels), channels in q, k, v order.
struct DeltaLayer {
    const bf16* taps;
    const float* a_log;
    const float* dt_bias;
    const bf16* norm;
    int key_heads, value_heads;
    float eps;
    int unused;  // keeps the size that Python packs
};

// Rows of raw (unconvolved) inputs.  q and k rows are `key_stride` elements apart, and so on.
struct DeltaRows {
    const bf16* q;
    const bf16* k;
    const bf16* v;
    const bf16* a;
    const bf16* b;
    int key_stride, value_stride, gate_stride, unused;
};

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// What a head's decay is made of.
struct HeadGates {
    float bias, log;

    __device__ __forceinline__ HeadGates(const DeltaLayer& layer, int head) : bias(layer.dt_bias[head]), log(layer.a_log[head]) {}

    __device__ __forceinline__ float decay(float a) const {
        float x = a + bias;
        float softplus = x > 20.0f ? x : log1pf(expf(x));
        return expf(-expf(log) * softplus);
    }
};

__device__ __forceinline__ float decay_of(const DeltaLayer& layer, int head, float a) {
    return HeadGates(layer, head).decay(a);
}

__device__ __forceinline__ float beta_of(float b) { return 1.0f / (1.0f + expf(-b)); }

__device__ __forceinline__ float convolve(const float (&w)[TAPS], float x0, float x1, float x2, float x3) {
    return silu(fmaf(w[3], x3, fmaf(w[2], x2, fmaf(w[1], x1, w[0] * x0))));
}

__device__ __forceinline__ float square_sum(const float4& v) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int m = 16; m; m /= 2) x += __shfl_xor_sync(~0u, x, m);
    return x;
}

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int m = 4; m; m /= 2) x += __shfl_xor_sync(~0u, x, m);
    return x;
}

// Factors that make k a unit vector, and q one divided by sqrt(HEAD); v is this lane's quarter.
__device__ __forceinline__ float key_factor(const float4& v) { return 1.0f / sqrtf(warp_sum(square_sum(v)) + L2_EPS); }
__device__ __forceinline__ float query_factor(const float4& v) { return key_factor(v) * QUERY_FACTOR; }

__device__ __forceinline__ float4 operator*(const float4& v, float f) {
    return make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}

__device__ __forceinline__ float dot4(const float4& a, const float4& b) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

// u = beta (v - decay S k).
__device__ __forceinline__ float delta_of(float v, float held, float decay, float beta) {
    return beta * fmaf(-decay, held, v);
}

// S <- decay S + u k^T for four elements of a row.
__device__ __forceinline__ void absorb(float4& s, const float4& k, float u, float decay) {
    s.x = fmaf(u, k.x, decay * s.x);
    s.y = fmaf(u, k.y, decay * s.y);
    s.z = fmaf(u, k.z, decay * s.z);
    s.w = fmaf(u, k.w, decay * s.w);
}

// w-RMSNorm of a head's outputs times SiLU(z), for this lane's four dims.
__device__ __forceinline__ float4 gated_norm(const float4& o, const float4& w, const float4& z, float eps) {
    float f = 1.0f / sqrtf(fmaf(warp_sum(square_sum(o)), 1.0f / HEAD, eps));
    return make_float4(o.x * f * w.x * silu(z.x), o.y * f * w.y * silu(z.y), o.z * f * w.z * silu(z.z),
                       o.w * f * w.w * silu(z.w));
}

__device__ __forceinline__ float4 wide4(const uint2& raw) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
}

__device__ __forceinline__ float4 load4(const bf16* p) { return wide4(*reinterpret_cast<const uint2*>(p)); }

__device__ __forceinline__ void store4(bf16* p, const float4& v) {
    __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2*>(p) = make_uint2(*reinterpret_cast<u32*>(&low), *reinterpret_cast<u32*>(&high));
}

__device__ __forceinline__ float* state_of(const Images& images, int slot, int head) {
    unsigned char* at = images.base + slot * images.image_bytes + images.recurrent;
    return reinterpret_cast<float*>(at) + static_cast<long long>(head) * HEAD * HEAD;
}

__device__ __forceinline__ bf16* ring_of(const Images& images, int slot) {
    return reinterpret_cast<bf16*>(images.base + slot * images.image_bytes + images.ring);
}
