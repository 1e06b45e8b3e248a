// Weights widened: embedding rows, dequantised copies for prefill, and products of odd shapes.
//
// Nothing here needs alignment beyond an element; ``linear_any`` and ``norm_any`` are what runs when a row
// of codes does not begin on 16 bytes, which no published model has.
//
// The one thing a reader would get wrong: ``widen8`` needs k % 8 == 0 and may be asked past the last column
// only when the caller masks what it returns.
#include "formats.cuh"

enum { STORE_BF16, STORE_F32, ADD_RESIDUAL };

// Columns k .. k + 7 of row n as float32.
template <int F>
__device__ __forceinline__ void widen8(const Matrix& m, long n, int k, int columns, float (&v)[8]) {
    if ((F == BF16 || F == FP8) && columns % 8 != 0) {
        for (int i = 0; i < 8; i++) v[i] = k + i < columns ? decode<F>(m, n, k + i, columns) : 0.0f;
    } else if constexpr (F == BF16) {
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
        for (int i = 0; i < 8; i++) {
            u32 code = word >> 4 * i & 15;
            if constexpr (F == Q5) code |= (high >> i & 1) << 4;
            if constexpr (F == Q6) code |= (high >> 2 * i & 3) << 4;
            v[i] = F == NVFP4 ? e2m1_float(code) * scale / *m.divisor
                              : signed_code(code, F == Q4 ? 4 : F == Q5 ? 5 : 6) * scale;
        }
    }
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

// out (rows, stride) in bf16; columns beyond the matrix become 0.
extern "C" __global__ void __launch_bounds__(256) dequantise(const Matrix m, int format, int columns, bf16* out) {
    release_successor();
    await_predecessor();
    int pieces = m.stride / 8;
    for (long i = blockIdx.x * 256L + threadIdx.x; i < static_cast<long>(m.rows) * pieces; i += gridDim.x * 256L) {
        long n = i / pieces;
        int k = i % pieces * 8;
        float v[8] = {};
        if (k < columns) widen(format, m, n, k, columns, v);
        u32 words[4];
        for (int j = 0; j < 4; j++) {
            float low = k + 2 * j < columns ? v[2 * j] : 0, high = k + 2 * j + 1 < columns ? v[2 * j + 1] : 0;
            __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
            words[j] = *reinterpret_cast<u32*>(&pair);
        }
        *reinterpret_cast<uint4*>(out + n * m.stride + k) = make_uint4(words[0], words[1], words[2], words[3]);
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
        for (int i = 0; i < 8 && k + i < columns; i++)
            out[static_cast<long>(blockIdx.x) * columns + k + i] = known ? v[i] : __int_as_float(0x7fffffff);
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

// out = (1 + w) RMSNorm(x) in bf16, one block a row, any number of columns.
extern "C" __global__ void __launch_bounds__(256) norm_any(const float* x, const bf16* norm, bf16* out, int columns, float eps) {
    __shared__ float sums[8];
    release_successor();
    await_predecessor();
    long at = static_cast<long>(blockIdx.x) * columns;
    float squares = 0;
    for (int k = threadIdx.x; k < columns; k += 256) squares = fmaf(x[at + k], x[at + k], squares);
    squares = sum_of_warp(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < 8; w++) squares += sums[w];
    float scale = rsqrtf(squares / static_cast<float>(columns) + eps);
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

// out (rows, width) = silu(gate) * up, both bf16 with ``stride`` elements between rows; width % 8 == 0.
extern "C" __global__ void __launch_bounds__(256) swiglu_rows(const bf16* gate, const bf16* up, bf16* out, int rows, int width, int stride) {
    release_successor();
    await_predecessor();
    int pieces = width / 8;
    for (long i = blockIdx.x * 256L + threadIdx.x; i < static_cast<long>(rows) * pieces; i += gridDim.x * 256L) {
        long row = i / pieces, k = i % pieces * 8;
        uint4 a = *reinterpret_cast<const uint4*>(gate + row * stride + k);
        uint4 b = *reinterpret_cast<const uint4*>(up + row * stride + k);
        u32 g[4] = {a.x, a.y, a.z, a.w}, u[4] = {b.x, b.y, b.z, b.w}, words[4];
        for (int j = 0; j < 4; j++) {
            float x = as_float(g[j] << 16), y = as_float(g[j] & 0xffff0000u);
            __nv_bfloat162 pair = __floats2bfloat162_rn(x / (1.0f + __expf(-x)) * as_float(u[j] << 16),
                                                        y / (1.0f + __expf(-y)) * as_float(u[j] & 0xffff0000u));
            words[j] = *reinterpret_cast<u32*>(&pair);
        }
        *reinterpret_cast<uint4*>(out + row * width + k) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
