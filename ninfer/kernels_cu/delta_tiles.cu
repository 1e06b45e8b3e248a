// The Gated DeltaNet over many rows of one sequence, tile after tile on tensor cores (mathematics: delta_tile.cuh).
//
// A warp owns 16 value dimensions of a head and all 128 key dimensions: its share of S^T stays in float32 registers,
// and every product is taken transposed (value dims are rows), so that a result is the next product's A operand as
// it lies.  Warps meet once a tile, where its operands arrive.  delta_norm gates and norms; delta_ring
// (delta_step.cu) moves the convolution history.
//
// The one thing a reader would get wrong: V is read transposed out of its tile, T and M come in the order of B
// fragments (square of delta_tile.cuh); neither is ever a matrix in rows here.
//
//: variants STAGES 1 2 3
#include "delta_tile.cuh"

constexpr int THREADS = 128, SHARE = 16;  // of tiles_run; SHARE: value dimensions of a warp
constexpr int KEYS = HEAD / 8;            // groups of eight key dimensions

// One tile's operands in shared memory; lower: T, then M.
struct Stage {
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

// held = (K S)^T and o = (Q S)^T for tokens 32 part .. + 31, four groups of eight.
__device__ __forceinline__ void ask(float (&held)[4][4], float (&o)[4][4], const u32 (&s)[KEYS / 2][4], const Stage& now,
                                    const Lanes& lanes, int part) {
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++)
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            u32 b[4];
            right_rows(b, now.k, lanes, part * 32 + n * 8, step);
            mma_bf16(held[n], s[step], b[0], b[1]);
            mma_bf16(held[n + 1], s[step], b[2], b[3]);
            right_rows(b, now.q, lanes, part * 32 + n * 8, step);
            mma_bf16(o[n], s[step], b[0], b[1]);
            mma_bf16(o[n + 1], s[step], b[2], b[3]);
        }
}

// x = (V - exp(G) K S)^T as A fragments, and o = (exp(G) Q S)^T.
__device__ __forceinline__ void differ(u32 (&x)[2][4], float (&held)[4][4], float (&o)[4][4], const Stage& now,
                                       const bf16* values, int part) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
        u32 v[4];  // (tokens, values): (first, first), (last, first), (first, last), (last, last) eight of each
        ldmatrix4_transposed(v, values + (part * 2 + n / 2) * 16 * HALF);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float2 into = pair_of(now.into, part * 4 + n + m);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 value = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&v[half * 2 + m]));
                held[n + m][half * 2] = fmaf(-into.x, held[n + m][half * 2], value.x);
                held[n + m][half * 2 + 1] = fmaf(-into.y, held[n + m][half * 2 + 1], value.y);
                o[n + m][half * 2] *= into.x;
                o[n + m][half * 2 + 1] *= into.y;
            }
        }
        as_left(x[n / 2], held[n], held[n + 1]);
    }
}

// sum += (lower x)^T for the two groups of eight rows of row i of squares; x holds columns of squares 0 .. i.
__device__ __forceinline__ void apply(float (&first)[4], float (&last)[4], const u32 (&x)[4][4], const bf16* lower, int i) {
#pragma unroll
    for (int j = 0; j <= i; j++) {
        uint4 b = *reinterpret_cast<const uint4*>(lower + square(i, j));
        mma_bf16(first, x[j], b.x, b.y);
        mma_bf16(last, x[j], b.z, b.w);
    }
}

// V' of row i of squares, plain and times exp(G_63 - G), as A fragments.
__device__ __forceinline__ void renew(u32 (&fresh)[4][4], u32 (&faded)[4][4], const u32 (&x)[4][4], const Stage& now, int i) {
    float first[4] = {}, last[4] = {};
    apply(first, last, x, now.lower, i);
    as_left(fresh[i], first, last);
    float2 a = pair_of(now.out_of, i * 2), b = pair_of(now.out_of, i * 2 + 1);
    float c[4] = {first[0] * a.x, first[1] * a.y, first[2] * a.x, first[3] * a.y};
    float d[4] = {last[0] * b.x, last[1] * b.y, last[2] * b.x, last[3] * b.y};
    as_left(faded[i], c, d);
}

// S <- exp(G_63) S + K^T (exp(G_63 - G) V').
__device__ __forceinline__ void absorb_tile(float (&s)[KEYS][4], const u32 (&faded)[4][4], const Stage& now, const Lanes& lanes) {
    float fade = now.into[TILE - 1];
#pragma unroll
    for (int n = 0; n < KEYS; n += 2) {
#pragma unroll
        for (int e = 0; e < 8; e++) s[n + e / 4][e % 4] *= fade;
#pragma unroll
        for (int step = 0; step < TILE / 16; step++) {
            u32 b[4];
            right_columns(b, now.k, lanes, n * 8, step);
            mma_bf16(s[n], faded[step], b[0], b[1]);
            mma_bf16(s[n + 1], faded[step], b[2], b[3]);
        }
    }
}

// Eight tokens of o^T to the row of this lane's, if it is one.
__device__ __forceinline__ void store_tokens(u32* at, const float (&o)[4], bool live) {
    u32 first = transpose8x8(pack2(o[0], o[1])), last = transpose8x8(pack2(o[2], o[3]));
    if (live) at[0] = first, at[4] = last;
}

// One tile: o to `out` (this lane's place in the tile's row lane / 4), S to what follows it.  Rows from .. to are there.
__device__ __forceinline__ void walk_tile(u32* out, int stride, float (&s)[KEYS][4], const Stage& now, const Lanes& lanes,
                                          const bf16* values, int from, int to) {
    int g = threadIdx.x % 32 / 4;
    u32 left[KEYS / 2][4], x[4][4], fresh[4][4], faded[4][4];
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++) as_left(left[step], s[2 * step], s[2 * step + 1]);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        float held[4][4] = {}, o[4][4] = {};
        u32 fragments[2][4];
        ask(held, o, left, now, lanes, part);
        differ(fragments, held, o, now, values, part);
#pragma unroll
        for (int e = 0; e < 8; e++) x[part * 2 + e / 4][e % 4] = fragments[e / 4][e % 4];
#pragma unroll
        for (int i = part * 2; i < part * 2 + 2; i++) {
            renew(fresh, faded, x, now, i);
            apply(o[i % 2 * 2], o[i % 2 * 2 + 1], fresh, now.lower + LOWER, i);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int row = part * 32 + n * 8 + g;
            store_tokens(out, o[n], row >= from && row < to);
            out += 8 * stride;
        }
    }
    absorb_tile(s, faded, now, lanes);
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

// out (count, value_heads * HEAD), untiled and not normed.  Grid (2, value_heads), 128 threads, shared STAGES stages.
extern "C" __global__ void __launch_bounds__(THREADS) tiles_run(bf16* out, Run run, Images images, const int* slots,
                                                               const int* frontiers, int count) {
    extern __shared__ __align__(128) unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>(memory);
    int half = blockIdx.x, head = blockIdx.y;
    int lead = lead_of(frontiers), tiles = min(run.tiles, (lead + count + TILE - 1) / TILE);
    float* state = state_of(images, slots[0], head) + half * HALF * HEAD;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = run.value_heads * HEAD / 2;  // in pairs
    u32* first = reinterpret_cast<u32*>(out + head * HEAD + half * HALF + warp * SHARE) + lane % 4;
    Lanes lanes;
    Ahead ahead(run, head, half);
    float s[KEYS][4];
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles) ahead.fetch_tile(stages[tile], run);
        copies_commit();
    }
    each_of_state(state, [&](int n, int at, float2* p) { s[n][at] = p->x, s[n][at + 1] = p->y; });
    for (int tile = 0; tile < tiles; tile++) {
        int next = tile + STAGES - 1;
        if (STAGES == 1) __syncthreads();  // nobody needs the tile before
        if (STAGES == 1) ahead.fetch_tile(stages[0], run), copies_commit();
        copies_wait<STAGES == 1 ? 0 : STAGES - 2>();
        __syncthreads();  // the tile is there, and nobody needs the one before it
        if (STAGES > 1 && next < tiles) ahead.fetch_tile(stages[next % STAGES], run);
        if (STAGES > 1) copies_commit();
        Stage& now = stages[tile % STAGES];
        int row = tile * TILE - lead;
        walk_tile(first + static_cast<long long>(row + lane / 4) * stride, stride, s, now, lanes,
                  now.v + cell(lane % 16, warp * 2 + lane / 16), -row, count - row);
    }
    each_of_state(state, [&](int n, int at, float2* p) { *p = make_float2(s[n][at], s[n][at + 1]); });
}

constexpr int AT_ONCE = 4;  // heads that half a warp of delta_norm has in hand

// out = w-RMSNorm of each head of o, times SiLU(z); `heads` in all.  Half a warp a head; 256 threads.
extern "C" __global__ void __launch_bounds__(256) delta_norm(bf16* out, const bf16* o, const bf16* z, const bf16* norm,
                                                            int heads, float eps) {
    int lane = threadIdx.x % 16, index = blockIdx.x * (16 * AT_ONCE) + threadIdx.x / 16;
    uint4 raw[AT_ONCE], gate[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {  // all loads first
        long long at = (static_cast<long long>(min(index + i * 16, heads - 1)) * HEAD) + lane * 8;
        raw[i] = load_once(o + at);
        gate[i] = load_once(z + at);
    }
    float w[8];
    wide8(w, *reinterpret_cast<const uint4*>(norm + lane * 8));
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float x[8], y[8], sum = 0.0f;
        wide8(x, raw[i]);
        wide8(y, gate[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = fmaf(x[j], x[j], sum);
#pragma unroll
        for (int m = 8; m; m /= 2) sum += __shfl_xor_sync(~0u, sum, m);
        float f = rsqrtf(fmaf(sum, 1.0f / HEAD, eps));
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = x[j] * f * w[j] * quick_silu(y[j]);
#pragma unroll
        for (int j = 0; j < 4; j++) words[j] = pack2(x[2 * j], x[2 * j + 1]);
        if (index + i * 16 < heads)
            *reinterpret_cast<uint4*>(out + static_cast<long long>(index + i * 16) * HEAD + lane * 8) =
                make_uint4(words[0], words[1], words[2], words[3]);
    }
}
