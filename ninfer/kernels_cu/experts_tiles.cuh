// Tiles of grouped rows and of stacked experts in shared memory, and what becomes of their products.
//
// A row of a tile is BK elements, 128 bytes, whose 16-byte runs are permuted by the row's number modulo 8: eight rows
// meet no bank twice, and Hopper's products read the same layout.  Tiles of experts are widened on the way.
//
// The one thing a reader would get wrong: gate and up rows alternate by eights, so that one thread holds both
// halves of a SwiGLU.
#pragma once
#include "bank.cuh"

constexpr int BN = 128, BK = 64, STAGES = 3;  // stages of rows; experts have two

// Rows of BK elements in shared memory; 16-byte runs permuted so that eight rows meet no bank twice.
__device__ __forceinline__ bf16* cell(bf16* tile, int row, int chunk) { return tile + row * BK + ((chunk ^ (row & 7)) << 3); }

// The rows of A that a thread copies, null for zeros; column 0.
struct Left {
    const bf16* rows[BM / 32];

    __device__ __forceinline__ void fetch(bf16* stage, int k, int columns) const {
        int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        bool inside = k + chunk * 8 < columns;
#pragma unroll
        for (int i = 0; i < BM / 32; i++) {
            bool live = inside && rows[i];
            copy16_async(cell(stage, row + i * 32, chunk), live ? rows[i] + k + chunk * 8 : fallback, live);
        }
    }
    // Start the copies of a step of so many into its stage; always one group of copies.
    __device__ __forceinline__ void fetch_step(bf16* stages, int step, int steps, int columns) const {
        if (step < steps) fetch(stages + step % STAGES * BM * BK, step * BK, columns);
        copies_commit();
    }
    const bf16* fallback;  // any address that may be named
};

// Widen half a row of experts into a tile.
template <int F>
__device__ __forceinline__ void put_right(bf16* tile, const Raw<F>& raw) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<uint4*>(cell(tile, threadIdx.x / 2, threadIdx.x % 2 * 4 + i)) = raw.widen(i);
}

// The rows of x that belong to places first ..
__device__ __forceinline__ Left rows_of_pairs(const bf16* x, const int* sources, int first, int per_token, int columns) {
    Left from;
    from.fallback = x;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int pair = sources[first + threadIdx.x / 8 + i * 32];
        from.rows[i] = pair < 0 ? nullptr : x + static_cast<long long>(pair / per_token) * columns;
    }
    return from;
}

// Places first .. themselves, but for padding.
__device__ __forceinline__ Left rows_of_places(const bf16* act, const int* sources, int first, int width) {
    Left from;
    from.fallback = act;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int place = first + threadIdx.x / 8 + i * 32;
        from.rows[i] = sources[place] < 0 ? nullptr : act + static_cast<long long>(place) * width;
    }
    return from;
}

// The row of gate or of up that this thread widens, of a block whose outputs begin at `begin`.
__device__ __forceinline__ int paired_row(int begin, int width) {
    int r = threadIdx.x / 2;
    return min(begin + r / 16 * 8 + r % 8, width - 1);
}

// act of 16 places from sums of gate (even n) and up (odd n); column `at` is that of acc[0] in lane 0.
template <int N>
__device__ __forceinline__ void keep_act(bf16* act, const float (&acc)[N][4], int place, int at, int width) {
    int lane = threadIdx.x % 32;
    place += lane / 4, at += lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n += 2)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (at + n * 4 >= width) continue;
            float y[2];
            for (int j = 0; j < 2; j++) {
                float g = acc[n][half * 2 + j];
                y[j] = g / (1.0f + __expf(-g)) * acc[n + 1][half * 2 + j];
            }
            *reinterpret_cast<u32*>(act + static_cast<long long>(place + half * 8) * width + at + n * 4) = round2(y[0], y[1]);
        }
}

// parts of 16 places: the sums times the pair's weight.
template <int N>
__device__ __forceinline__ void keep_parts(bf16* parts, const float (&acc)[N][4], const int* sources, const float* weights,
                                           int place, int at, int hidden) {
    int lane = threadIdx.x % 32;
    place += lane / 4, at += lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int pair = sources[place + half * 8];
        if (pair < 0) continue;
        float weight = weights[pair];
        bf16* to = parts + static_cast<long long>(place + half * 8) * hidden + at;
#pragma unroll
        for (int n = 0; n < N; n++)
            if (at + n * 8 < hidden)
                *reinterpret_cast<u32*>(to + n * 8) = round2(acc[n][half * 2] * weight, acc[n][half * 2 + 1] * weight);
    }
}

// acc over all of K, by the tensor cores of the kind that the including file knows; this thread widens columns
// 32 (thread % 2) .. + 31 of row `n` of the experts in every step.
template <int F, class Sums>
__device__ __forceinline__ void product(Sums& acc, bf16* memory, const Left& from, const Matrix& right, long n, int columns);

template <class Sums>
__device__ __forceinline__ void product_of(int format, Sums& acc, bf16* memory, const Left& from, const Matrix& right, long n, int columns) {
    switch (format) {
        case BF16: return product<BF16>(acc, memory, from, right, n, columns);
        case FP8: return product<FP8>(acc, memory, from, right, n, columns);
        case Q8: return product<Q8>(acc, memory, from, right, n, columns);
        case Q4: return product<Q4>(acc, memory, from, right, n, columns);
        case Q5: return product<Q5>(acc, memory, from, right, n, columns);
        case Q6: return product<Q6>(acc, memory, from, right, n, columns);
        case NVFP4: return product<NVFP4>(acc, memory, from, right, n, columns);
    }
}
