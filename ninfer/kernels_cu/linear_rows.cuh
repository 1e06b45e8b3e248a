// x of the linear kernel on its way to shared memory: normed if asked, in the order in which codes come out,
// and in the numbers that the codes multiply.  Every 64 columns of a row have a power of two of their own:
// as fixed point of 15 bits they err by less than 2^-14 of their largest, where bf16 itself has 2^-9 of each.
//
// The one thing a reader would get wrong: rows lie one after the other with a pad that keeps eight rows out
// of each other's banks, and in fixed point the upper bytes of 64 columns come before their lower bytes.
#pragma once
#include "linear_ring.cuh"

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// By one warp, from the sums of the working warps.
__device__ __forceinline__ float inverse_rms(const float* squares, int columns, float eps) {
    int lane = threadIdx.x % 32;
    float sum = warp_sum(lane < WORKERS / 32 ? squares[lane] : 0.0f);
    return rsqrtf(sum / static_cast<float>(columns) + eps);
}

__device__ __forceinline__ u32 pair_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Eight columns of x (1 + norm) in bf16; their squares are added to ``squares``.
__device__ __forceinline__ uint4 normed(const float* x, const bf16* norm, float& squares) {
    float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
    uint4 w = *reinterpret_cast<const uint4*>(norm);
    float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    u32 words[4] = {w.x, w.y, w.z, w.w}, out[4];
#pragma unroll
    for (int i = 0; i < 8; i++) squares = fmaf(v[i], v[i], squares);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = pair_bf16(v[2 * i] * (1.0f + as_float(words[i] << 16)),
                           v[2 * i + 1] * (1.0f + as_float(words[i] & 0xffff0000u)));
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// The exponent, as bf16 has it, of the largest of 64 columns, eight of which each of eight lanes holds.
__device__ __forceinline__ u32 top_exponent(uint4 v) {
    constexpr u32 MAGNITUDE = 0x7fff7fffu, LEAST = 24;  // leaves room for every power of two made of it
    u32 top = __vmaxu2(__vmaxu2(v.x & MAGNITUDE, v.y & MAGNITUDE), __vmaxu2(v.z & MAGNITUDE, v.w & MAGNITUDE));
#pragma unroll
    for (int d = 4; d; d /= 2) top = __vmaxu2(top, __shfl_xor_sync(~0u, top, d));
    return max(max(top >> 16, top & 0xffff) >> 7, LEAST);
}

__device__ __forceinline__ float power_of_two(u32 exponent) { return as_float(exponent << 23); }

// Eight numbers in fixed point, the largest of 64 below 2^14: upper bytes to ``to``, lower bytes 64 behind,
// each signed and in the order of the codes.
template <int F>
__device__ __forceinline__ void keep_fixed(uint4 v, float scale, u8* to, int column) {
    constexpr float BASE = 12582912.0f + 128.0f;  // rounds to integers, and makes lower bytes signed once flipped
    constexpr u32 FLIP = 0x80808080u;
    u32 words[4] = {v.x, v.y, v.z, v.w}, n[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        n[2 * i] = __float_as_uint(fmaf(as_float(words[i] << 16), scale, BASE));
        n[2 * i + 1] = __float_as_uint(fmaf(as_float(words[i] & 0xffff0000u), scale, BASE));
    }
    if constexpr (F == Q5) {
        u16* pairs = reinterpret_cast<u16*>(to + column / 16 * 16 + column % 16 / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 both = __byte_perm(n[i], n[i + 4], 0x5140) ^ (FLIP >> 16);
            pairs[2 * i] = both >> 16, pairs[2 * i + 32] = both;
        }
    } else {
        constexpr int STEP = F == Q8 ? 1 : 2, NEXT = F == Q8 ? 4 : 1;
        uint2* place = reinterpret_cast<uint2*>(to + (F == Q8 ? column % 32 * 2 + column / 32 * 8 : column));
        u32 upper[2], lower[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 a = __byte_perm(n[i * NEXT], n[i * NEXT + STEP], 0x5140);
            u32 b = __byte_perm(n[i * NEXT + 2 * STEP], n[i * NEXT + 3 * STEP], 0x5140);
            upper[i] = __byte_perm(a, b, 0x7632), lower[i] = __byte_perm(a, b, 0x5410) ^ FLIP;
        }
        place[0] = make_uint2(upper[0], upper[1]), place[8] = make_uint2(lower[0], lower[1]);
    }
}

// Eight numbers in fp16, the largest of 64 below 2^15.
template <int F>
__device__ __forceinline__ void keep_halves(uint4 v, float scale, u8* to) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 pair = __floats2half2_rn(as_float(words[i] << 16) * scale, as_float(words[i] & 0xffff0000u) * scale);
        words[i] = *reinterpret_cast<u32*>(&pair);
    }
    v = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint4*>(to) = F == NVFP4 ? in_code_order<F>(v) : v;
}

// Eight columns of row t of x, if inside, go to shared memory as the products want them, and what undoes their
// scale of 64 columns to ``scales``: a factor for fp16; for fixed point a factor and what clears the bases.
// Infinities and NaN make the fixed point's sums NaN.
template <int F>
__device__ __forceinline__ void keep(uint4 v, bool inside, u8* x, float* scales, int stride, int t, int column) {
    using L = Layout<F>;
    u8* row = x + t * stride;
    u32 top = F == BF16 ? 0 : top_exponent(v);
    if (!inside) return;
    bool first = threadIdx.x % 8 == 0;
    if constexpr (L::FIXED) {
        keep_fixed<F>(v, power_of_two(267 - top), row + column / 64 * 128, column % 64);
        float factor = power_of_two(top - (F == Q4 ? 9 : 5)), clear = top == 255 ? as_float(~0u) : factor * -(UPPER_BASE + LOWER_BASE);
        if (first) reinterpret_cast<float2*>(scales)[(column / 64 * 2 + t / 4) * 4 + t % 4] = make_float2(factor, clear);
    } else if constexpr (L::HALVES) {
        keep_halves<F>(v, power_of_two(268 - top), row + column * 2);
        if (first) scales[column / 64 * ROWS + t] = power_of_two(top - (F == NVFP4 ? 15 : 14));
    } else {
        *reinterpret_cast<uint4*>(row + column * 2) = v;
    }
}

// Rows that are bf16 already: the block's columns of all of them, four rows' loads in flight.
template <int F>
__device__ __forceinline__ void stage_plain(const Call& call, u8* x, float* scales, int stride, int begin, int columns) {
    constexpr int AHEAD = 4;
    int K = call.columns, reach = (columns + 255) / 256 * 256;  // whole warps, for the scales of 64 columns
    const bf16* from = static_cast<const bf16*>(call.x) + begin;
    for (int c = threadIdx.x * 8; c < reach; c += WORKERS * 8) {
        for (int t = 0; t < call.rows; t += AHEAD) {
            uint4 v[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                v[j] = make_uint4(0, 0, 0, 0);
                if (t + j < call.rows && c < columns && begin + c < K)
                    v[j] = *reinterpret_cast<const uint4*>(from + static_cast<long>(t + j) * K + c);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (t + j < call.rows) keep<F>(v[j], c < columns, x, scales, stride, t + j, c);
        }
    }
}

// Rows that come in float32 with a norm: one after the other, their squares summed over all columns.
template <int F>
__device__ __forceinline__ void stage_normed(const Call& call, Control& control, u8* x, float* scales, int stride, int begin, int columns) {
    int K = call.columns, reach = (max(K, begin + columns) + WORKERS * 8 - 1) / (WORKERS * 8) * (WORKERS * 8);
    for (int t = 0; t < call.rows; t++) {
        float squares = 0;
        for (int c = threadIdx.x * 8; c < reach; c += WORKERS * 8) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (c < K) v = normed(static_cast<const float*>(call.x) + static_cast<long>(t) * K + c, call.norm + c, squares);
            keep<F>(v, c >= begin && c < begin + columns, x, scales, stride, t, c - begin);
        }
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) control.squares[t][threadIdx.x / 32] = squares;
    }
}

// Put the block's columns of every row of x into shared memory and find the rows' scales.
template <int F>
__device__ __forceinline__ void stage_rows(const Call& call, Control& control, u8* x, float* scales, int begin, int columns) {
    int stride = Layout<F>::x_stride(columns), t = threadIdx.x / 32;
    bool norms = call.beginning == ROWS_NORMED;
    if (norms) stage_normed<F>(call, control, x, scales, stride, begin, columns);
    else stage_plain<F>(call, x, scales, stride, begin, columns);
    team_barrier(15, WORKERS);
    if (t < call.rows) {
        float scale = norms ? inverse_rms(control.squares[t], call.columns, call.eps)
                      : call.beginning == ROWS_SCALED ? call.scale[t] : 1.0f;
        if (threadIdx.x % 32 == 0) control.scale[t] = scale;
    }
    team_barrier(15, WORKERS);
}
