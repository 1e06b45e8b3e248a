// One warp's stream of expert weights: 16 rows at a time through a ring of its own, times one row of x.
//
// A stage holds 16 rows x 64 bytes of codes in 16-byte chunks, then the high bits, then the scales of
// those rows.  The few rows of an expert leave no time to fill a block-wide ring, so each warp feeds itself.
//
// The one thing a reader would get wrong: chunk (row, c) lies at c / 2 * 16 + (row * 2 + c % 2) ^ (c / 2 * 4) within its
// half of 8 rows; the xor keeps both the 16-byte writes and the 8-byte reads free of bank conflicts.
#pragma once
#include "formats.cuh"

template <int F>
struct Layout {
    static constexpr bool NIBBLES = F >= Q4;
    static constexpr int COLUMNS = F == BF16 ? 32 : NIBBLES ? 128 : 64;  // of one stage
    static constexpr int HIGH = F == Q5 ? 256 : F == Q6 ? 512 : 0;
    static constexpr int SCALES = F == NVFP4 ? 128 : F == BF16 || F == FP8 ? 0 : 64;
    static constexpr int STAGE = 1024 + HIGH + SCALES;
    static constexpr int X_PIECE = F == BF16 ? 8 : NIBBLES ? 32 : 16;    // bytes of x a lane reads at once
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// Where a lane copies from: the 16 rows of a tile, which may lie in two matrices, at column 0.
template <int F>
struct Source {
    using L = Layout<F>;
    const u8 *low, *up, *high, *scale;

    // Rows ra .. ra + 7 of `a` above rows rb .. rb + 7 of `b`; rows past the end repeat the last.
    __device__ __forceinline__ void aim(const Matrix& a, int ra, const Matrix& b, int rb, int K) {
        int lane = threadIdx.x % 32;
        long bytes = row_bytes<F>(K);
        low = a.codes + min(ra + lane / 4, a.rows - 1) * bytes + lane % 4 * 16;
        up = b.codes + min(rb + lane / 4, b.rows - 1) * bytes + lane % 4 * 16;
        if constexpr (L::SCALES == 0) return;
        int row = F == NVFP4 ? lane / 2 : lane % 16;
        const Matrix& m = row < 8 ? a : b;
        long n = min((row < 8 ? ra : rb) + row % 8, m.rows - 1);
        if constexpr (F == NVFP4) scale = m.scales + nvfp4_scale(m.first + n, lane % 2 * 4, K);
        else scale = m.scales + n * (padded(K) / (F == Q8 ? 32 : 64)) * 2;
        if constexpr (F == Q5) high = m.high + n * (padded(K) / 8);
        if constexpr (F == Q6) {
            row = lane / 2;
            const Matrix& w = row < 8 ? a : b;
            n = min((row < 8 ? ra : rb) + row % 8, w.rows - 1);
            high = w.high + n * (padded(K) / 4) + lane % 2 * 16;
        }
    }

    // Start the copies of unit u of every row.
    __device__ __forceinline__ void fetch(u8* stage, int u, int K) const {
        int lane = threadIdx.x % 32, c = lane % 4;
        bool valid = u * 64 + c * 16 < row_bytes<F>(K);
        u8* to = stage + (c / 2 * 16 + ((lane / 4 * 2 + c % 2) ^ (c / 2 * 4))) * 16;
        copy16_stream(to, low + u * 64, valid);
        copy16_stream(to + 512, up + u * 64, valid);
        if constexpr (F == Q5)
            if (lane < 16) copy16_stream(stage + 1024 + lane * 16, high + u * 16, true);
        if constexpr (F == Q6) copy16_stream(stage + 1024 + lane * 16, high + u * 32, true);
        if constexpr (F == NVFP4)
            copy4_async(stage + 1024 + lane * 4, scale + u * 1024, (u * 2 + lane % 2) * 64 < K);
        else if constexpr (L::SCALES > 0)
            if (lane < 16) copy4_async(stage + 1024 + L::HIGH + lane * 4, scale + u * 4, true);
    }
};

__device__ __forceinline__ uint2 piece(const u8* stage, int half, int h, int lane) {
    int t = lane % 4;
    return *reinterpret_cast<const uint2*>(
        stage + half * 512 + (h * 16 + ((lane / 4 * 2 + t / 2) ^ (h * 4))) * 16 + t % 2 * 8);
}

// The bits above the nibbles of word w of a piece, spread for unpack_word.
template <int F>
__device__ __forceinline__ u32 high_bits(const u8* stage, int half, int h, int w, int lane) {
    const u8* row = stage + 1024 + (half * 8 + lane / 4) * (F == Q5 ? 16 : 32);
    if constexpr (F == Q5) {
        u32 bits = reinterpret_cast<const u16*>(row + h * 8)[lane % 4] >> w * 8 & 0xff;
        return bits | bits << 12;
    }
    if constexpr (F == Q6)
        return __byte_perm(reinterpret_cast<const u32*>(row + h * 16)[lane % 4], 0, w ? 0x4342 : 0x4140);
    return 0;
}

// Four pairs of signed codes out of one word of nibbles; ``high`` holds the word's bits above the nibbles.
template <int F>
__device__ __forceinline__ void unpack_signed(u32 (&pair)[4], u32 word, u32 high) {
    constexpr u32 OFFSET = F == Q4 ? 0x43084308u : F == Q5 ? 0x43104310u : 0x43204320u;
    constexpr u32 BASE = F == Q4 ? 0xc308c308u : F == Q5 ? 0xc310c310u : 0xc320c320u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 code = ((word >> 4 * i) & 0x000f000fu) ^ OFFSET;
        if constexpr (F == Q5) code ^= (high << (4 - i)) & 0x00100010u;
        if constexpr (F == Q6) code ^= (i < 3 ? high << (4 - 2 * i) : high >> 2) & 0x00300030u;
        pair[i] = fma_bf16x2(code, 0x3f803f80u, BASE);
    }
}

// Pairs of word w of a piece (half of the tile, h of the stage).
template <int F>
__device__ __forceinline__ void unpack(u32 (&pairs)[4], uint2 raw, const u8* stage, int half, int h, int w, int lane, u32 multiplier) {
    u32 word = w ? raw.y : raw.x;
    if constexpr (F == NVFP4) unpack_nvfp4(pairs, word, multiplier);
    else if constexpr (F == FP8) unpack_fp8(pairs[0], pairs[1], word);
    else if constexpr (F == Q8) unpack_q8(pairs[0], pairs[1], word);
    else unpack_signed<F>(pairs, word, high_bits<F>(stage, half, h, w, lane));
}

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float a, float b) {
    sum[0] = fmaf(part[0], a, sum[0]);
    sum[2] = fmaf(part[2], b, sum[2]);
}

// sum += one stage of weights times its columns of x.  Only sum[0] and sum[2] of lanes 4g mean something:
// rows g and g + 8 (x is the one column of the B fragment, repeated).
template <int F>
__device__ __forceinline__ void multiply(float (&sum)[4], const u8* stage, const u8* x, int lane) {
    using L = Layout<F>;
    constexpr bool GROUPED = L::SCALES == 64;
    u32 scales[2] = {0, 0};
    if constexpr (GROUPED)
        for (int half = 0; half < 2; half++)
            scales[half] = *reinterpret_cast<const u32*>(stage + 1024 + L::HIGH + (half * 8 + lane / 4) * 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 raw[2] = {piece(stage, 0, h, lane), piece(stage, 1, h, lane)};
        if constexpr (F == BF16) {
            u32 a[4] = {raw[0].x, raw[1].x, raw[0].y, raw[1].y};
            uint2 b = *reinterpret_cast<const uint2*>(x + h * 32);
            mma_bf16(sum, a, b.x, b.y);
            continue;
        }
        float part[4] = {};
        u32 multiplier[2] = {0, 0};
        if constexpr (F == NVFP4)
            for (int half = 0; half < 2; half++)
                multiplier[half] = nvfp4_multiplier(stage[1024 + (half * 8 + lane / 4) * 8 + h * 4 + lane % 4]);
        float(&into)[4] = GROUPED ? part : sum;
#pragma unroll
        for (int w = 0; w < 2; w++) {
            u32 pairs[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++) unpack<F>(pairs[half], raw[half], stage, half, h, w, lane, multiplier[half]);
            u32 a[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
            u32 c[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
            const u8* from = x + h * (L::NIBBLES ? 128 : 64);
            if constexpr (L::NIBBLES) {
                uint4 b = *reinterpret_cast<const uint4*>(from + w * 16);
                mma_bf16(into, a, b.x, b.y);
                mma_bf16(into, c, b.z, b.w);
            } else {
                uint2 b = *reinterpret_cast<const uint2*>(from + w * 8);
                mma_bf16(into, a, b.x, b.y);
            }
        }
        if constexpr (GROUPED) add_scaled(sum, part, half_float(scales[0] >> h * 16), half_float(scales[1] >> h * 16));
    }
}
