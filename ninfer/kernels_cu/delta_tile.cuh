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

constexpr int TILE = 64, SPAN = 16, HALF = 64;  // HALF: value dimensions of a tiles_run block
constexpr int BLOCK = 16 * 16;                  // elements of a square of T or M
constexpr int LOWER = 10 * BLOCK;               // the ten squares on and below the diagonal

__device__ __forceinline__ int lead_of(const int* frontiers) { return frontiers[0] % TILE; }

// Rows of WIDTH bf16; 16-byte runs are permuted so that eight rows meet no bank twice.
template <int WIDTH>
__device__ __forceinline__ bf16* cell(bf16* tile, int row, int chunk) {
    return tile + row * WIDTH + ((chunk ^ (row & 7)) << 3);
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

// A fragment of rows m .. m + 15, columns 16 step .. + 15.
template <int WIDTH>
__device__ __forceinline__ void left(u32 (&a)[4], bf16* tile, int m, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4(a, cell<WIDTH>(tile, m + lane % 16, step * 2 + lane / 16));
}

// B fragments of x @ tile^T: rows n .. n + 15 of the tile are columns of the product.
template <int WIDTH>
__device__ __forceinline__ void right_rows(u32 (&b)[4], bf16* tile, int n, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4(b, cell<WIDTH>(tile, n + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
}

// B fragments of x @ tile: columns n .. n + 15 of the tile.
template <int WIDTH>
__device__ __forceinline__ void right_columns(u32 (&b)[4], bf16* tile, int n, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4_transposed(b, cell<WIDTH>(tile, step * 16 + lane / 8 % 2 * 8 + lane % 8, n / 8 + lane / 16));
}
