// How a warp puts one key or value row of 256 elements into its page, in every cache format.
//
// Lane l holds elements 8l .. 8l + 7.  The rules are those of runtime/kvformat.py; within a page part
// the 64 rows of codes come first, then their 64 rows of scales.  The one thing a reader would get wrong:
// nvfp4 rows are rotated (signs, then Hadamard), so queries that meet nvfp4 keys must be rotated
// alike and sums of nvfp4 values rotated back.
#pragma once
#include <cuda_fp8.h>
#include "pages.cuh"
#include "ptx.cuh"

enum { KV_BF16, KV_INT8, KV_FP8, KV_NVFP4 };

constexpr int ROW = 256;

// Eight elements of bf16 in float32.
__device__ __forceinline__ void widen_row(float (&x)[8], const uint4& raw) {
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// This lane's eight elements of a bf16 row.
__device__ __forceinline__ uint4 raw_row(const __nv_bfloat16* p, int lane) { return reinterpret_cast<const uint4*>(p)[lane]; }

__device__ __forceinline__ void load_row(float (&x)[8], const __nv_bfloat16* p, int lane) { widen_row(x, raw_row(p, lane)); }

__device__ __forceinline__ float group_max(const float (&x)[8], int lanes) {
    float peak = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(x[i]));
    for (int m = 1; m < lanes; m *= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, m));
    return peak;
}

__device__ __forceinline__ float sign_of(int index) {
    return static_cast<u32>(index) * 2654435761u >> 31 ? -1.0f : 1.0f;
}

__device__ __forceinline__ void hadamard(float (&x)[8], int lane) {
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!(i & bit)) {
                float a = x[i], b = x[i | bit];
                x[i] = a + b, x[i | bit] = a - b;
            }
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float other = __shfl_xor_sync(~0u, x[i], bit);
            x[i] = lane & bit ? other - x[i] : x[i] + other;
        }
}

// The fixed rotation of nvfp4 rows, and its inverse.
__device__ __forceinline__ void rotate_row(float (&x)[8], int lane) {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= sign_of(lane * 8 + i) * 0.0625f;
    hadamard(x, lane);
}

__device__ __forceinline__ void rotate_back(float (&x)[8], int lane) {
    hadamard(x, lane);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= sign_of(lane * 8 + i) * 0.0625f;
}

__device__ __forceinline__ u32 pack2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

__device__ __forceinline__ void store_bf16(unsigned char* part, int token, int lane, const float (&x)[8]) {
    reinterpret_cast<uint4*>(part + token * ROW * 2)[lane] =
        make_uint4(pack2(x[0], x[1]), pack2(x[2], x[3]), pack2(x[4], x[5]), pack2(x[6], x[7]));
}

__device__ __forceinline__ float inverse(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

__device__ __forceinline__ void store_int8(unsigned char* part, int token, int lane, const float (&x)[8]) {
    __half scale = __float2half_rn(group_max(x, 8) / 127.0f);
    float inv = inverse(__half2float(scale));
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int code = __float2int_rn(fminf(fmaxf(x[i] * inv, -127.0f), 127.0f));
        words[i / 4] |= (code & 0xff) << (i % 4 * 8);
    }
    reinterpret_cast<uint2*>(part + token * ROW)[lane] = make_uint2(words[0], words[1]);
    if (lane % 8 == 0) reinterpret_cast<__half*>(part + PAGE_TOKENS * ROW)[token * 4 + lane / 8] = scale;
}

__device__ __forceinline__ u32 fp8_code(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

__device__ __forceinline__ void store_fp8(unsigned char* part, int token, int lane, const float (&x)[8]) {
    float peak = group_max(x, 32) / 448.0f;
    __half scale = __float2half_rn(fminf(fmaxf(peak, 5.9604644775390625e-8f), 65504.0f));
    float inv = inverse(__half2float(scale));
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        words[i / 4] |= fp8_code(fminf(fmaxf(x[i] * inv, -448.0f), 448.0f)) << (i % 4 * 8);
    reinterpret_cast<uint2*>(part + token * ROW)[lane] = make_uint2(words[0], words[1]);
    if (lane == 0) reinterpret_cast<__half*>(part + PAGE_TOKENS * ROW)[token] = scale;
}

// Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6; ties to the even code.
__device__ __forceinline__ u32 e2m1_code(float x) {
    float a = fabsf(x);
    u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return code | (__float_as_uint(x) >> 31) << 3;
}

// e4m3 bits without NaN, to float.
__device__ __forceinline__ float e4m3_value(u32 bits) {
    return __uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 0x1p120f;
}

__device__ __forceinline__ void store_nvfp4(unsigned char* part, int token, int lane, float (&x)[8]) {
    rotate_row(x, lane);
    u32 scale = fp8_code(fminf(group_max(x, 2) / 6.0f, 448.0f));
    float inv = inverse(e4m3_value(scale));
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) word |= e2m1_code(x[i] * inv) << (4 * i);
    reinterpret_cast<u32*>(part + token * ROW / 2)[lane] = word;
    if (lane % 2 == 0) part[PAGE_TOKENS * ROW / 2 + token * 16 + lane / 2] = scale;
}

template <int FORMAT>
__device__ __forceinline__ void store_row(unsigned char* part, int token, int lane, float (&x)[8]) {
    if constexpr (FORMAT == KV_BF16) store_bf16(part, token, lane, x);
    if constexpr (FORMAT == KV_INT8) store_int8(part, token, lane, x);
    if constexpr (FORMAT == KV_FP8) store_fp8(part, token, lane, x);
    if constexpr (FORMAT == KV_NVFP4) store_nvfp4(part, token, lane, x);
}

// The inverse of store_row, but for the rotation of nvfp4 rows.
template <int FORMAT>
__device__ __forceinline__ void read_row(float (&x)[8], const unsigned char* part, int token, int lane) {
    if constexpr (FORMAT == KV_BF16) load_row(x, reinterpret_cast<const __nv_bfloat16*>(part) + token * ROW, lane);
    if constexpr (FORMAT == KV_INT8 || FORMAT == KV_FP8) {
        const __half* scales = reinterpret_cast<const __half*>(part + PAGE_TOKENS * ROW);
        float scale = __half2float(FORMAT == KV_INT8 ? scales[token * 4 + lane / 8] : scales[token]);
        uint2 raw = reinterpret_cast<const uint2*>(part + token * ROW)[lane];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 code = (i < 4 ? raw.x : raw.y) >> i % 4 * 8 & 0xff;
            x[i] = scale * (FORMAT == KV_INT8 ? static_cast<float>(static_cast<signed char>(code)) : e4m3_value(code));
        }
    }
    if constexpr (FORMAT == KV_NVFP4) {
        u32 raw = reinterpret_cast<const u32*>(part + token * ROW / 2)[lane];
        float scale = e4m3_value(part[PAGE_TOKENS * ROW / 2 + token * 16 + lane / 2]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 code = raw >> 4 * i & 15;
            float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
            x[i] = (code & 8 ? -magnitude : magnitude) * scale;
        }
    }
}

// The formats of keys and values of a cache: bf16, int8, fp8, nvfp4, k8v4.
template <int KIND>
struct KvFormats {
    static constexpr int KEY = KIND == 4 ? KV_FP8 : KIND;
    static constexpr int VALUE = KIND == 4 ? KV_NVFP4 : KIND;
};
