// What both ways of walking the tiles of the Gated DeltaNet share (delta_tiles.cu, delta_hopper.cu): a tile's operands in
// shared memory, and the products with T and M.
//
// A warp owns 16 value dimensions of a head and all 128 key dimensions: its share of S^T stays in float32 registers,
// and every product is taken transposed (value dims are rows), so that a result is the next product's A operand as
// it lies.
//
// The one thing a reader would get wrong: V is read transposed out of its tile, T and M come in the order of B
// fragments (square of delta_tile.cuh); neither is ever a matrix in rows here.
#pragma once
#include "delta_tile.cuh"

constexpr int THREADS = 128, SHARE = 16;  // of a block; SHARE: value dimensions of a warp
constexpr int KEYS = HEAD / 8;            // groups of eight key dimensions

// One tile's operands in shared memory; lower: T, then M.
struct alignas(1024) Stage {
    bf16 q[TILE * HEAD], k[TILE * HEAD], v[TILE * HALF], lower[2 * LOWER];
    float into[TILE], out_of[TILE];
};

// What tiles_prepare left (delta_prepare.cu).
struct Run {
    const bf16* q;
    const bf16* k;
    const bf16* v;
    const bf16* lower;
    const float* into;
    const float* out_of;
    int key_heads, value_heads, tiles, unused;
};

// Start copying COUNT elements, this thread's beginning at `from`.
template <int COUNT>
__device__ __forceinline__ void fetch(bf16* to, const bf16* from) {
    static_assert(COUNT % (8 * THREADS) == 0, "every thread copies alike");
#pragma unroll
    for (int i = 0; i < COUNT / 8 / THREADS; i++) copy16_async(to + (i * THREADS + threadIdx.x) * 8, from + i * THREADS * 8, true);
}

// This thread's pieces of the next tile to be copied.
struct Ahead {
    const bf16 *q, *k, *v, *lower;
    const float* gates;

    __device__ __forceinline__ Ahead(const Run& run, int head, int half) {
        int piece = threadIdx.x * 8, key = head / (run.value_heads / run.key_heads), gate = threadIdx.x % (TILE / 4) * 4;
        q = run.q + key * TILE * HEAD + piece;
        k = run.k + key * TILE * HEAD + piece;
        v = run.v + (head * HEAD + half * HALF) * TILE + piece;
        lower = run.lower + head * 2 * LOWER + piece;
        gates = (threadIdx.x < TILE / 4 ? run.into : run.out_of) + static_cast<long long>(head) * run.tiles * TILE + gate;
    }

    __device__ __forceinline__ void fetch_tile(Stage& to, const Run& run) {
        fetch<TILE * HEAD>(to.k, k);
        fetch<TILE * HEAD>(to.q, q);
        fetch<TILE * HALF>(to.v, v);
        fetch<2 * LOWER>(to.lower, lower);
        if (threadIdx.x < 2 * TILE / 4) copy16_async(to.into + threadIdx.x * 4, gates, true);  // out_of lies behind
        k += run.key_heads * TILE * HEAD, q += run.key_heads * TILE * HEAD;
        v += run.value_heads * TILE * HEAD, lower += run.value_heads * 2 * LOWER, gates += TILE;
    }
};

__device__ __forceinline__ float2 pair_of(const float* gates, int group) {
    return reinterpret_cast<const float2*>(gates)[group * 4 + threadIdx.x % 4];
}

// Two groups of eight columns side by side as an A fragment.
__device__ __forceinline__ void as_left(u32 (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = pack2(x[0], x[1]), a[1] = pack2(x[2], x[3]), a[2] = pack2(y[0], y[1]), a[3] = pack2(y[2], y[3]);
}

// V of tokens 16 i .. + 15, transposed, and their exp(G).
struct Values {
    u32 v[4];  // (tokens, values): (first, first), (last, first), (first, last), (last, last) eight of each
    float2 first, last;

    template <class Tile>
    __device__ __forceinline__ void load(const Tile& now, const bf16* values, int i) {
        ldmatrix4_transposed(v, values + i * 16 * HALF);
        first = pair_of(now.into, i * 2), last = pair_of(now.into, i * 2 + 1);
    }
};

// x = (V - exp(G) K S)^T of those tokens as an A fragment, from (K S)^T of both groups of eight.
__device__ __forceinline__ void differ(u32 (&x)[4], float (&first)[4], float (&last)[4], Values of) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float2 c = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&of.v[half * 2]));
        float2 d = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&of.v[half * 2 + 1]));
        first[half * 2] = fmaf(-of.first.x, first[half * 2], c.x);
        first[half * 2 + 1] = fmaf(-of.first.y, first[half * 2 + 1], c.y);
        last[half * 2] = fmaf(-of.last.x, last[half * 2], d.x);
        last[half * 2 + 1] = fmaf(-of.last.y, last[half * 2 + 1], d.y);
    }
    as_left(x, first, last);
}

// o = exp(G) (Q S)^T for the same tokens.
template <class Tile>
__device__ __forceinline__ void enter(float (&first)[4], float (&last)[4], const Tile& now, int i) {
    float2 a = pair_of(now.into, i * 2), b = pair_of(now.into, i * 2 + 1);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        first[half * 2] *= a.x, first[half * 2 + 1] *= a.y;
        last[half * 2] *= b.x, last[half * 2 + 1] *= b.y;
    }
}

// sum += (square x)^T for the two groups of eight rows of square (i, j); x holds column j of squares.
__device__ __forceinline__ void apply_square(float (&first)[4], float (&last)[4], const u32 (&x)[4], const bf16* lower, int i, int j) {
    uint4 b = *reinterpret_cast<const uint4*>(lower + square(i, j));
    mma_bf16(first, x, b.x, b.y);
    mma_bf16(last, x, b.z, b.w);
}

// The same for row i of squares; x holds columns of squares 0 .. i.
__device__ __forceinline__ void apply(float (&first)[4], float (&last)[4], const u32 (&x)[4][4], const bf16* lower, int i) {
#pragma unroll
    for (int j = 0; j <= i; j++) apply_square(first, last, x[j], lower, i, j);
}

// V' of row i of squares, plain and times exp(G_63 - G), as A fragments.
template <class Tile>
__device__ __forceinline__ void fade(u32 (&fresh)[4], u32 (&faded)[4], const float (&first)[4], const float (&last)[4], const Tile& now, int i) {
    as_left(fresh, first, last);
    float2 a = pair_of(now.out_of, i * 2), b = pair_of(now.out_of, i * 2 + 1);
    float c[4] = {first[0] * a.x, first[1] * a.y, first[2] * a.x, first[3] * a.y};
    float d[4] = {last[0] * b.x, last[1] * b.y, last[2] * b.x, last[3] * b.y};
    as_left(faded, c, d);
}

// Eight tokens of o^T to the row of this lane's, if it is one: lanes by twos exchange a word, for stores of eight bytes.
__device__ __forceinline__ void store_tokens(u32* at, const float (&o)[4], bool live) {
    u32 first = transpose8x8(pack2(o[0], o[1])), last = transpose8x8(pack2(o[2], o[3]));
    bool odd = threadIdx.x % 2;
    u32 other = __shfl_xor_sync(~0u, odd ? first : last, 1);
    if (live) *reinterpret_cast<uint2*>(at + (odd ? 3 : 0)) = odd ? make_uint2(other, last) : make_uint2(first, other);
}

// Element (key dim, value dim) of S lies at state[value dim * HEAD + key dim].
template <class F>
__device__ __forceinline__ void each_of_state(float* state, F f) {
    int lane = threadIdx.x % 32, value = threadIdx.x / 32 * SHARE + lane / 4;
#pragma unroll
    for (int n = 0; n < KEYS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            f(n, half * 2, reinterpret_cast<float2*>(state + (value + half * 8) * HEAD + n * 8 + lane % 4 * 2));
}
