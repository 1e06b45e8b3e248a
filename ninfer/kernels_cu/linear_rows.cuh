// x of the linear kernel on its way to shared memory: normed if asked, in the order in which codes come out,
// and in the numbers that the codes multiply.  Every 64 columns of a row (128 for nvfp4) have a power of two of their own:
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

// Lanes have sums of 16 columns in twos: a working warp's sum of its columns, neighbours first.
__device__ __forceinline__ float sum_of_tiles(float x) {
#pragma unroll
    for (int d = 2; d < 32; d *= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// The same as inverse_rms by one warp from sums of 16 columns, as ``norm_rows<true>`` and it sum them: a lane's ``n``th
// four, with those a whole round of the working warps behind each, belong to working warp 8 n + lane / 4.
__device__ __forceinline__ float inverse_rms_of_tiles(const float* tiles, int columns, float eps) {
    float4 mine[TEAMS] = {};
#pragma unroll 1
    for (int at = threadIdx.x % 32 * 4; at < columns / 16; at += WORKERS / 2)
#pragma unroll
        for (int n = 0; n < TEAMS; n++)
            if (at + n * 128 < columns / 16) mine[n] = plus(mine[n], __ldcg(reinterpret_cast<const float4*>(tiles + at + n * 128)));
    float warps[4] = {};
#pragma unroll
    for (int n = 0; n < TEAMS; n++) {
        warps[n] = mine[n].x + mine[n].y + (mine[n].z + mine[n].w);
        warps[n] += __shfl_xor_sync(~0u, warps[n], 1);
        warps[n] += __shfl_xor_sync(~0u, warps[n], 2);
    }
    float sum = warps[0] + warps[2] + (warps[1] + warps[3]);
#pragma unroll
    for (int d = 16; d > 2; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
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

// The exponent, as bf16 has it, of the largest of 64 columns, or for nvfp4 of 128; a lane holds 16 of them.
template <int F>
__device__ __forceinline__ u32 top_exponent(const u32 (&words)[8]) {
    constexpr u32 MAGNITUDE = 0x7fff7fffu, LEAST = 24;  // leaves room for every power of two made of it
    u32 top = words[0] & MAGNITUDE;
#pragma unroll
    for (int i = 1; i < 8; i++) top = __vmaxu2(top, words[i] & MAGNITUDE);
    top = __vmaxu2(top, __shfl_xor_sync(~0u, top, 1));
    top = __vmaxu2(top, __shfl_xor_sync(~0u, top, 2));
    if constexpr (F == NVFP4) top = __vmaxu2(top, __shfl_xor_sync(~0u, top, 4));
    return max(max(top >> 16, top & 0xffff) >> 7, LEAST);
}

__device__ __forceinline__ float power_of_two(u32 exponent) { return as_float(exponent << 23); }

// Which of 16 columns is byte b of word r of the codes.
template <int F>
__device__ __forceinline__ int column_of(int r, int b) {
    return F == Q8 ? 4 * r + b : F == Q5 ? r + 4 * b : r / 2 * 8 + r % 2 + 2 * b;
}

// A quarter of 64 numbers in fixed point, the largest of them below 2^14: upper bytes to ``to``, lower bytes 64
// behind, each signed and in the order of the codes.
template <int F>
__device__ __forceinline__ void keep_fixed(const u32 (&words)[8], float scale, u8* to, u32 quarter) {
    constexpr float BASE = UPPER_BASE + 128.0f;  // rounds to integers, and makes lower bytes signed once flipped
    u32 n[16], upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        n[2 * i] = __float_as_uint(fmaf(as_float(words[i] << 16), scale, BASE));
        n[2 * i + 1] = __float_as_uint(fmaf(as_float(words[i] & 0xffff0000u), scale, BASE));
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        u32 a = __byte_perm(n[column_of<F>(r, 0)], n[column_of<F>(r, 1)], 0x5140);
        u32 b = __byte_perm(n[column_of<F>(r, 2)], n[column_of<F>(r, 3)], 0x5140);
        upper[r] = __byte_perm(a, b, 0x7632), lower[r] = __byte_perm(a, b, 0x5410) ^ 0x80808080u;
    }
    if constexpr (F == Q8) {  // two lanes' eight columns, of either half of a unit
        uint2* place = reinterpret_cast<uint2*>(to + quarter % 2 * 32 + quarter / 2 * 8);
        place[0] = make_uint2(upper[0], upper[1]), place[2] = make_uint2(upper[2], upper[3]);
        place[8] = make_uint2(lower[0], lower[1]), place[10] = make_uint2(lower[2], lower[3]);
    } else {
        uint4* place = reinterpret_cast<uint4*>(to + quarter * 16);
        place[0] = make_uint4(upper[0], upper[1], upper[2], upper[3]);
        place[4] = make_uint4(lower[0], lower[1], lower[2], lower[3]);
    }
}

// Sixteen numbers in fp16, the ``n``th of a row, the largest of all under their power of two below 2^15.  For
// nvfp4 eight are a piece, and the same piece of four lanes' 32 columns lie side by side.
template <int F>
__device__ __forceinline__ void keep_halves(const u32 (&words)[8], float scale, u8* row, u32 n) {
    u32 out[8], place = F == NVFP4 ? n / 8 * 16 + n % 2 * 8 + n / 2 % 4 : n * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        __half2 pair = __floats2half2_rn(as_float(words[i] << 16) * scale, as_float(words[i] & 0xffff0000u) * scale);
        out[i] = *reinterpret_cast<u32*>(&pair);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 v = make_uint4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
        reinterpret_cast<uint4*>(row)[place + i * (F == NVFP4 ? 4 : 1)] = F == NVFP4 ? in_code_order<F>(v) : v;
    }
}

// A warp's stretches of the rows in shared memory: 512 columns each, every so many.
struct Stretches {
    int columns, row, column;
    __device__ Stretches(int columns) : columns(columns), row(0), column(threadIdx.x / 32 * 512) { wrap(); }
    __device__ __forceinline__ void wrap() {
        int reach = (columns + 511) / 512 * 512;
        while (column >= reach) column -= reach, row++;
    }
    __device__ __forceinline__ void next() {
        column += WORKERS / 32 * 512;
        wrap();
    }
    // How many the warp has in so many rows.
    __device__ __forceinline__ int count(int rows) const {
        return (rows * ((columns + 511) / 512) + WORKERS / 32 - 1 - static_cast<int>(threadIdx.x) / 32) / (WORKERS / 32);
    }
};

// Wait until at most ``more`` groups of this warp's copies, or four, are under way.
__device__ __forceinline__ void await_copies(int more) {
    if (more > 3) copies_wait<4>();
    else if (more == 3) copies_wait<3>();
    else if (more == 2) copies_wait<2>();
    else if (more == 1) copies_wait<1>();
    else copies_wait<0>();
    __syncwarp();
}

// Where the scale of 64 columns of a row lies: in fixed point beside that of the other 64 of a unit, for one load
// of both; those of nvfp4 share one.
template <int F>
__device__ __forceinline__ u32 slot_of(u32 group, u32 row) {
    if constexpr (F == NVFP4) return group / 2 * ROWS + row;
    if constexpr (Layout<F>::NIBBLES) return (group / 2 * ROWS + row) * 2 + group % 2;
    return group * ROWS + row;
}

// Make the numbers that codes multiply of bf16 rows, in place, and leave what undoes the scale of 64 columns:
// a factor for fp16; for fixed point a factor and what clears the bases.  Infinities, NaN, and in fixed point
// magnitudes from 2^105 make sums NaN.  (Exponents are biased by 127, so a scale is 2 * 127 + 13 or 14 - top.)
template <int F>
__device__ __forceinline__ void convert(int rows, u8* x, float* scales, int stride, int columns) {
    u32 lane = threadIdx.x % 32, quarter = lane % 4;
    int more = Stretches(columns).count(rows);
#pragma unroll 1
    for (Stretches at(columns); at.row < rows; at.next()) {
        await_copies(--more);
        u32 group = at.column / 64u + lane / 4, slot = slot_of<F>(group, at.row);
        bool inside = group * 64 < static_cast<u32>(columns);
        u8* place = x + at.row * stride + group * 128;
        const uint4* own = reinterpret_cast<const uint4*>(place) + quarter * 2;
        uint4 v[2] = {};
        if (inside) v[0] = own[0], v[1] = own[1];
        u32 words[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w}, top = top_exponent<F>(words);
        if constexpr (Layout<F>::FIXED || F == NVFP4) __syncwarp();  // what one lane has read, another writes
        if (!inside) continue;
        if constexpr (Layout<F>::FIXED) {
            keep_fixed<F>(words, power_of_two(267 - top), place, quarter);
            float factor = power_of_two(top - (F == Q4 ? 9 : 5));
            float clear = top == 255 ? as_float(~0u) : factor * -(UPPER_BASE + LOWER_BASE);
            if (quarter == 0) reinterpret_cast<float2*>(scales)[slot] = make_float2(factor, clear);
        } else {
            keep_halves<F>(words, power_of_two(268 - top), x + at.row * stride, group * 4 + quarter);
            if (quarter == 0) scales[slot] = power_of_two(top - (F == NVFP4 ? 8 : 14));
        }
    }
}

// Start to fetch a warp's own stretches of rows that are bf16 already, a group of copies each.
__device__ __forceinline__ void fetch(const Call& call, u8* x, int stride, int begin, int columns) {
    const bf16* from = static_cast<const bf16*>(call.x) + begin;
#pragma unroll 1
    for (Stretches at(columns); at.row < call.rows; at.next()) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int column = at.column + i * 256 + threadIdx.x % 32 * 8;
            if (column < columns)
                copy16_async(x + at.row * stride + column * 2, from + static_cast<long>(at.row) * call.columns + column, begin + column < call.columns);
        }
        copies_commit();
    }
}

// Rows that come in float32 with a norm: one after the other, their squares summed over all columns.  ``TILES``: eight
// columns and two such sums first, which is as far as a launch before may have summed those of its tiles.
template <bool TILES>
__device__ __forceinline__ void norm_rows(const Call& call, Control& control, u8* x, int stride, int begin, int columns) {
    int K = call.columns;
    for (int t = 0; t < call.rows; t++) {
        float squares = 0;
        for (int c = threadIdx.x * 8; (TILES ? c / 256 * 256 : c) < max(K, begin + columns); c += WORKERS * 8) {
            uint4 v = make_uint4(0, 0, 0, 0);
            float eight = 0;
            if (c < K) v = normed(static_cast<const float*>(call.x) + static_cast<long>(t) * K + c, call.norm + c, TILES ? eight : squares);
            if constexpr (TILES) squares += eight + __shfl_xor_sync(~0u, eight, 1);
            if (c >= begin && c < begin + columns) *reinterpret_cast<uint4*>(x + t * stride + (c - begin) * 2) = v;
        }
        squares = TILES ? sum_of_tiles(squares) : warp_sum(squares);
        if (threadIdx.x % 32 == 0) control.squares[t][threadIdx.x / 32] = squares;
    }
    team_barrier(14, WORKERS);
}

// Until x is staged.  Warps that finish tiles see the rows' scales because they see sums; if WATCHED, they wait too.
template <bool APART>
__device__ __forceinline__ void await_rows() {
    team_barrier(15, WORKERS + (WATCHED && APART ? TEAMS * 32 : 0));
}

// Put the block's columns of every row of x into shared memory and find the rows' scales.
template <int F, bool APART, bool TILES>
__device__ __forceinline__ void stage_rows(const Call& call, Control& control, u8* x, float* scales, int begin, int columns) {
    int stride = Layout<F>::x_stride(columns), t = threadIdx.x / 32;
    bool norms = call.beginning == ROWS_NORMED;
    if (norms) norm_rows<TILES>(call, control, x, stride, begin, columns);
    else fetch(call, x, stride, begin, columns);
    if constexpr (F != BF16) convert<F>(call.rows, x, scales, stride, columns);
    else await_copies(0);
    if (t < call.rows) {
        float scale = norms ? inverse_rms(control.squares[t], call.columns, call.eps)
                      : call.beginning == ROWS_SCALED ? call.scale[t] : 1.0f;
        if (threadIdx.x % 32 == 0) control.scale[t] = scale;
    }
    await_rows<APART>();
}
