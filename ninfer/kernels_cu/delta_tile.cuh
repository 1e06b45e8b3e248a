// How the Gated DeltaNet of a prompt cuts its rows into tiles of 64 tokens, and how tiles lie in memory.
//
// With G the running sum of g inside a tile, D_ij = exp(G_i - G_j) for j <= i, and S the state before it:
//   A = strictly lower part of (beta_i k_i . k_j D_ij),   T = (I + A)^-1 beta,   M = Q K^T . D,
//   V' = T (V - exp(G) K S),   O = exp(G) Q S + M V',   S <- exp(G_63) S + (exp(G_63 - G) K)^T V'
// tiles_prepare (delta_prepare.cu) convolves, norms, and finds T and M of every tile and head at once, inverting
// in float32; tiles_run (delta_tiles.cu) walks the tiles with S in registers.
//
// Tiles begin at multiples of 64 of the sequence; rows that are not there have g = beta = 0 and change
// nothing, so a prompt's bits do not depend on cuts that fall on multiples of 64.
//
// The one thing a reader would get wrong: rows of tiles are not rows of the pass: row 0 is the first of its
// tile, and the first `lead` rows (frontier % 64) may be padding.
#pragma once
#include "delta.cuh"

constexpr int TILE = 64, HALF = 64;  // HALF: value dimensions of a tiles_run block
constexpr int BLOCK = 16 * 16;                  // elements of a square of T or M
constexpr int LOWER = 10 * BLOCK;               // the ten squares on and below the diagonal

__device__ __forceinline__ int lead_of(const int* frontiers) { return frontiers[0] % TILE; }

// A tile of HEAD columns is two of HALF, one behind the other.  16-byte runs of a row are permuted so that eight rows
// meet no bank twice.
__device__ __forceinline__ int cell(int row, int chunk) {
    return chunk / 8 * TILE * HALF + row * HALF + ((chunk % 8 ^ (row & 7)) << 3);
}

// Square (i, j) of a lower triangle.  Lane g * 4 + t holds 16 bytes of it: columns 2t, 2t + 1 and 2t + 8, 2t + 9
// of row g, then of row g + 8, which are the B fragments of x @ square^T for its first and its last eight rows.
__device__ __forceinline__ int square(int i, int j) { return (i * (i + 1) / 2 + j) * BLOCK + threadIdx.x % 32 * 8; }

constexpr float LOG2_E = 1.4426950408889634f;

// x / (1 + exp(-x)) without the care that decode takes.
__device__ __forceinline__ float quick_silu(float x) { return x * reciprocal_fast(1.0f + exp2_fast(-LOG2_E * x)); }

__device__ __forceinline__ u32 pack2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

__device__ __forceinline__ void wide8(float (&v)[8], const uint4& raw) {
    float4 a = wide4(make_uint2(raw.x, raw.y)), b = wide4(make_uint2(raw.z, raw.w));
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Where a lane reads fragments, from the beginning of a tile: the rest of an address is known when compiling.
struct Lanes {
    int rows[4], columns[4];

    __device__ __forceinline__ Lanes() {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rows[i] = cell(lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2);
            columns[i] = cell(lane % 16, i * 2 + lane / 16);
        }
    }
};

// A fragment of rows m .. m + 15, columns 16 step .. + 15.
__device__ __forceinline__ void left(u32 (&a)[4], const bf16* tile, const Lanes& lanes, int m, int step) {
    ldmatrix4(a, tile + lanes.columns[step % 4] + step / 4 * TILE * HALF + m * HALF);
}

// B fragments of x @ tile^T: rows n .. n + 15 of the tile are columns of the product.
__device__ __forceinline__ void right_rows(u32 (&b)[4], const bf16* tile, const Lanes& lanes, int n, int step) {
    ldmatrix4(b, tile + lanes.rows[step % 4] + step / 4 * TILE * HALF + n * HALF);
}

// B fragments of x @ tile: columns n .. n + 15 of the tile.
__device__ __forceinline__ void right_columns(u32 (&b)[4], const bf16* tile, const Lanes& lanes, int n, int step) {
    ldmatrix4_transposed(b, tile + lanes.columns[n / 16 % 4] + n / 64 * TILE * HALF + step * 16 * HALF);
}
