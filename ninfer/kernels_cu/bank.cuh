// Stacked experts in their stored format, and runs of 32 of their columns on the way to bf16.
//
// A run is loaded as raw bits first and widened later, so that the loads of the next step can be under way
// while this one is multiplied.  Widening rounds once, from the float32 product of code and scale, as
// dequantise (plain.cu) does.
//
// The one thing a reader would get wrong: nibbles leave a word as the pairs (0,4) (1,5) (2,6) (3,7); ``widen``
// puts them back in order.
#pragma once
#include "formats.cuh"

// Experts laid at equal distances in one matrix: row r of expert e is row e * step + r.
struct Bank {
    Matrix rows;
    int format, step;
};

__device__ __forceinline__ u32 round2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

template <int F>
struct Raw {
    static constexpr int WORDS = F == BF16 ? 16 : F == FP8 || F == Q8 ? 8 : 4;
    u32 word[WORDS];
    u32 high[F == Q6 ? 2 : 1];
    float scale[2];

    // Columns k .. k + 31 of row n; k % 32 == 0.  Zeros unless `live`.
    __device__ __forceinline__ void load(const Matrix& m, long n, int k, int columns, bool live) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) word[i] = 0;
        high[0] = 0;
        if (F == Q6) high[sizeof(high) / 4 - 1] = 0;
        scale[0] = scale[1] = 0.0f;
        if (!live) return;
        long wide = padded(columns);
        const u8* at = m.codes + n * row_bytes<F>(columns) + (F == BF16 ? 2 * k : F == FP8 || F == Q8 ? k : k / 2);
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 v = load_stream(at + 16 * i);
            word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
        }
        const u16* scales = reinterpret_cast<const u16*>(m.scales);
        if constexpr (F == FP8) scale[0] = bf16_float(scales[n]);
        if constexpr (F == Q8) scale[0] = half_float(scales[n * (wide / 32) + k / 32]);
        if constexpr (F == Q4 || F == Q5 || F == Q6) scale[0] = half_float(scales[n * (wide / 64) + k / 64]);
        if constexpr (F == Q5) high[0] = *reinterpret_cast<const u32*>(m.high + n * (wide / 8) + k / 8);
        if constexpr (F == Q6) {
            uint2 v = *reinterpret_cast<const uint2*>(m.high + n * (wide / 4) + k / 4);
            high[0] = v.x, high[sizeof(high) / 4 - 1] = v.y;
        }
        if constexpr (F == NVFP4) {
            float divisor = *m.divisor;
            for (int i = 0; i < 2; i++)
                scale[i] = e4m3_float(m.scales[nvfp4_scale(m.first + n, k / 16 + i, columns)]) / divisor;
        }
    }

    // Four pairs of columns 8 i .. 8 i + 7.
    __device__ __forceinline__ uint4 widen(int i) const {
        if constexpr (F == BF16) return make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if constexpr (F == FP8) v[j] = e4m3_float(word[2 * i + j / 4] >> j % 4 * 8 & 0xff);
            if constexpr (F == Q8) v[j] = static_cast<float>(static_cast<signed char>(word[2 * i + j / 4] >> j % 4 * 8));
            if constexpr (F >= Q4) {
                u32 code = word[i] >> 4 * j & 15;
                if constexpr (F == Q5) code |= (high[0] >> (8 * i + j) & 1) << 4;
                if constexpr (F == Q6) code |= (high[i / 2] >> (16 * (i % 2) + 2 * j) & 3) << 4;
                v[j] = F == NVFP4 ? e2m1_float(code) : signed_code(code, F == Q4 ? 4 : F == Q5 ? 5 : 6);
            }
            v[j] *= scale[F == NVFP4 ? i / 2 : 0];
        }
        return make_uint4(round2(v[0], v[1]), round2(v[2], v[3]), round2(v[4], v[5]), round2(v[6], v[7]));
    }
};
