// Weights widened: embedding rows, dequantised copies for prefill, and products of odd shapes.
//
// Nothing here needs alignment beyond an element; ``linear_any`` and ``norm_any`` are what runs when a row
// of codes does not begin on 16 bytes, which no published model has.
//
// The one thing a reader would get wrong: ``widen8`` needs k % 8 == 0 and may be asked past the last column
// only when the caller masks what it returns.
#include "formats.cuh"
#include "swiglu.cuh"

enum { STORE_BF16, STORE_F32, ADD_RESIDUAL };

// signed_code through 2^23 + code, without a conversion.
template <int F>
__device__ __forceinline__ float quick_code(u32 raw) {
    constexpr u32 SIGN = F == Q4 ? 8 : F == Q5 ? 16 : 32;
    return as_float((raw ^ SIGN) | 0x4b000000u) - (8388608.0f + SIGN);
}

// x / divisor as IEEE rounds it, given the rounded reciprocal.
__device__ __forceinline__ float divided(float x, float divisor, float reciprocal) {
    float quotient = x * reciprocal;
    return fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
}

// Columns k .. k + 7 of row n as float32; rows begin on multiples of 8 columns.
template <int F>
__device__ __forceinline__ void widen_even(const Matrix& m, long n, int k, int columns, float (&v)[8]) {
    if constexpr (F == BF16) {
        uint4 raw = *reinterpret_cast<const uint4*>(m.codes + (n * columns + k) * 2);
        u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
        for (int i = 0; i < 8; i++) v[i] = as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    } else if constexpr (F == FP8 || F == Q8) {
        long at = F == FP8 ? n * columns + k : n * padded(columns) + k;
        uint2 raw = *reinterpret_cast<const uint2*>(m.codes + at);
        float scale = F == FP8 ? bf16_float(reinterpret_cast<const u16*>(m.scales)[n])
                               : half_float(reinterpret_cast<const u16*>(m.scales)[n * (padded(columns) / 32) + k / 32]);
        for (int i = 0; i < 8; i++) {
            u32 code = (i < 4 ? raw.x : raw.y) >> i % 4 * 8 & 0xff;
            v[i] = (F == FP8 ? e4m3_float(code) : static_cast<float>(static_cast<signed char>(code))) * scale;
        }
    } else {
        u32 word = *reinterpret_cast<const u32*>(m.codes + n * row_bytes<F>(columns) + k / 2), high = 0;
        int wide = padded(columns);
        if constexpr (F == Q5) high = m.high[n * (wide / 8) + k / 8];
        if constexpr (F == Q6) high = reinterpret_cast<const u16*>(m.high)[n * (wide / 8) + k / 8];
        float scale = F == NVFP4 ? e4m3_float(m.scales[nvfp4_scale(m.first + n, k / 16, columns)])
                                 : half_float(reinterpret_cast<const u16*>(m.scales)[n * (wide / 64) + k / 64]);
        // e2m1 is read 2^-126 too small, scale and divisor make up for it without rounding.
        float divisor = F == NVFP4 ? *m.divisor * 0x1p-26f : 1.0f, reciprocal = __frcp_rn(divisor);
        if constexpr (F == NVFP4) scale *= 0x1p100f;
        for (int i = 0; i < 8; i++) {
            u32 code = word >> 4 * i & 15;
            if constexpr (F == Q5) code |= (high >> i & 1) << 4;
            if constexpr (F == Q6) code |= (high >> 2 * i & 3) << 4;
            v[i] = F == NVFP4 ? divided(as_float((word << (28 - 4 * i) & 0x80000000u) | (code & 7) << 22) * scale, divisor, reciprocal)
                              : quick_code<F>(code) * scale;
        }
    }
}

// The same for any number of columns; those beyond the matrix are 0.
template <int F>
__device__ __forceinline__ void widen8(const Matrix& m, long n, int k, int columns, float (&v)[8]) {
    if ((F == BF16 || F == FP8) && columns % 8 != 0)
        for (int i = 0; i < 8; i++) v[i] = k + i < columns ? decode<F>(m, n, k + i, columns) : 0.0f;
    else widen_even<F>(m, n, k, columns, v);
}

__device__ __forceinline__ void widen(int format, const Matrix& m, long n, int k, int columns, float (&v)[8]) {
    switch (format) {
        case BF16: return widen8<BF16>(m, n, k, columns, v);
        case FP8: return widen8<FP8>(m, n, k, columns, v);
        case Q8: return widen8<Q8>(m, n, k, columns, v);
        case Q4: return widen8<Q4>(m, n, k, columns, v);
        case Q5: return widen8<Q5>(m, n, k, columns, v);
        case Q6: return widen8<Q6>(m, n, k, columns, v);
        case NVFP4: return widen8<NVFP4>(m, n, k, columns, v);
    }
}

constexpr int AT_ONCE = 4;  // pieces of eight columns that a thread has in hand

template <int F>
__device__ __forceinline__ void widen_pieces(const Matrix& m, int columns, bf16* out) {
    u32 pieces = columns / 8, total = m.rows * pieces, first = blockIdx.x * AT_ONCE * 256 + threadIdx.x;
    uint4 words[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        u32 at = min(first + i * 256, total - 1), n = at / pieces;
        float v[8];
        widen_even<F>(m, n, (at - n * pieces) * 8, columns, v);
        words[i] = make_uint4(pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7]));
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (first + i * 256 < total) reinterpret_cast<uint4*>(out)[first + i * 256] = words[i];
}

// out (rows, columns) in bf16; columns % 8 == 0.  A block AT_ONCE * 256 pieces.
extern "C" __global__ void __launch_bounds__(256) dequantise(const Matrix m, int format, int columns, bf16* out) {
    release_successor();
    await_predecessor();
    switch (format) {
        case BF16: return widen_pieces<BF16>(m, columns, out);
        case FP8: return widen_pieces<FP8>(m, columns, out);
        case Q8: return widen_pieces<Q8>(m, columns, out);
        case Q4: return widen_pieces<Q4>(m, columns, out);
        case Q5: return widen_pieces<Q5>(m, columns, out);
        case Q6: return widen_pieces<Q6>(m, columns, out);
        case NVFP4: return widen_pieces<NVFP4>(m, columns, out);
    }
}

// out (gridDim.x, columns) = rows of the table; an id outside it gives NaN, which the sampler reports.
extern "C" __global__ void __launch_bounds__(256) embed(const Matrix m, int format, int columns, const int* ids, float* out) {
    release_successor();
    await_predecessor();
    long id = ids[blockIdx.x];
    bool known = id >= 0 && id < m.rows;
    for (int k = threadIdx.x * 8; k < columns; k += 256 * 8) {
        float v[8];
        if (known) widen(format, m, id, k, columns, v);
        else for (int i = 0; i < 8; i++) v[i] = __int_as_float(0x7fffffff);
        float* to = out + static_cast<long>(blockIdx.x) * columns + k;
        if (columns % 8 == 0) {
            reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
            reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
            continue;
        }
        for (int i = 0; i < 8 && k + i < columns; i++) to[i] = v[i];
    }
}

// Row rows[i] of x becomes row i of the features.
extern "C" __global__ void __launch_bounds__(256) replace_rows(const int* rows, const bf16* features, float* x, int columns) {
    release_successor();
    await_predecessor();
    long from = static_cast<long>(blockIdx.x) * columns, to = static_cast<long>(rows[blockIdx.x]) * columns;
    for (int k = threadIdx.x; k < columns; k += 256) x[to + k] = __bfloat162float(features[from + k]);
}

__device__ __forceinline__ float sum_of_warp(float x) {
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// One warp for each (weight row, row of x).
extern "C" __global__ void __launch_bounds__(256) linear_any(const Matrix m, int format, int columns, const bf16* x, const float* residual, int ending) {
    release_successor();
    await_predecessor();
    int n = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= m.rows) return;
    const bf16* row = x + static_cast<long>(blockIdx.y) * columns;
    float sum = 0;
    for (int k = lane * 8; k < columns; k += 256) {
        float v[8];
        widen(format, m, n, k, columns, v);
        for (int i = 0; i < 8 && k + i < columns; i++) sum = fmaf(v[i], __bfloat162float(row[k + i]), sum);
    }
    sum = sum_of_warp(sum);
    if (lane != 0) return;
    long at = static_cast<long>(blockIdx.y) * m.stride + n;
    if (ending == STORE_BF16) static_cast<bf16*>(m.out)[at] = __float2bfloat16(sum);
    else static_cast<float*>(m.out)[at] = ending == ADD_RESIDUAL ? residual[at] + sum : sum;
}

// 1 / RMS of a row of which this thread has a part of the squares.  256 threads.
__device__ __forceinline__ float inverse_rms(float squares, int columns, float eps) {
    __shared__ float sums[8];
    squares = sum_of_warp(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < 8; w++) squares += sums[w];
    return rsqrtf(squares / static_cast<float>(columns) + eps);
}

constexpr int HELD = 8;  // float4 of a row that a thread holds

// A row of columns % 4 == 0, at most HELD * 1024, read once.
__device__ __forceinline__ void norm_held(const float* x, const bf16* norm, bf16* out, int columns, float eps) {
    float4 v[HELD];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int k = (i * 256 + threadIdx.x) * 4;
        v[i] = k < columns ? *reinterpret_cast<const float4*>(x + k) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++)
        squares = fmaf(v[i].w, v[i].w, fmaf(v[i].z, v[i].z, fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, squares))));
    float scale = inverse_rms(squares, columns, eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int k = (i * 256 + threadIdx.x) * 4;
        if (k >= columns) break;
        uint2 w = *reinterpret_cast<const uint2*>(norm + k);
        *reinterpret_cast<uint2*>(out + k) =
            make_uint2(pack2(v[i].x * scale * (1.0f + as_float(w.x << 16)), v[i].y * scale * (1.0f + as_float(w.x & 0xffff0000u))),
                       pack2(v[i].z * scale * (1.0f + as_float(w.y << 16)), v[i].w * scale * (1.0f + as_float(w.y & 0xffff0000u))));
    }
}

// out = (1 + w) RMSNorm(x) in bf16, one block a row, any number of columns.
extern "C" __global__ void __launch_bounds__(256) norm_any(const float* x, const bf16* norm, bf16* out, int columns, float eps) {
    release_successor();
    await_predecessor();
    long at = static_cast<long>(blockIdx.x) * columns;
    if (columns % 4 == 0 && columns <= HELD * 1024) return norm_held(x + at, norm, out + at, columns, eps);
    float squares = 0;
    for (int k = threadIdx.x; k < columns; k += 256) squares = fmaf(x[at + k], x[at + k], squares);
    float scale = inverse_rms(squares, columns, eps);
    for (int k = threadIdx.x; k < columns; k += 256)
        out[at + k] = __float2bfloat16(x[at + k] * scale * (1.0f + __bfloat162float(norm[k])));
}

// out = silu(gate) * up; any length.
extern "C" __global__ void __launch_bounds__(256) swiglu_any(const float* gate, const float* up, bf16* out, int count) {
    release_successor();
    await_predecessor();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) out[i] = __float2bfloat16(gate[i] / (1.0f + __expf(-gate[i])) * up[i]);
}

// out (rows, width) = silu(gate) * up, both bf16 with ``stride`` elements between rows; width % 8 == 0.  A block
// AT_ONCE * 256 pieces.
extern "C" __global__ void __launch_bounds__(256) swiglu_rows(const bf16* gate, const bf16* up, bf16* out, int rows, int width, int stride) {
    release_successor();
    await_predecessor();
    u32 pieces = width / 8, total = rows * pieces, first = blockIdx.x * AT_ONCE * 256 + threadIdx.x;
    uint4 a[AT_ONCE], b[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {  // all loads first
        u32 at = min(first + i * 256, total - 1), row = at / pieces;
        long from = static_cast<long>(row) * stride + (at - row * pieces) * 8;
        a[i] = load_once(gate + from);
        b[i] = load_once(up + from);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (first + i * 256 < total)
            reinterpret_cast<uint4*>(out)[first + i * 256] =
                make_uint4(swiglu2(a[i].x, b[i].x), swiglu2(a[i].y, b[i].y), swiglu2(a[i].z, b[i].z), swiglu2(a[i].w, b[i].w));
}
