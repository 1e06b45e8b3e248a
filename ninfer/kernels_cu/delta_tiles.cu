// The Gated DeltaNet over many rows of one sequence, tile after tile on tensor cores (mathematics: delta_tile.cuh).
//
// Warps meet once a tile, where its operands arrive; STAGES tiles are under way.  delta_norm gates and norms; delta_ring
// (delta_step.cu) moves the convolution history.
//
// The one thing a reader would get wrong: tiles_run does what that of delta_hopper.cu does, bits aside, on every card.
//
//: variants STAGES 1 2 3
#include "delta_run.cuh"

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

// V' of row i of squares, as A fragments.
__device__ __forceinline__ void renew(u32 (&fresh)[4][4], u32 (&faded)[4][4], const u32 (&x)[4][4], const Stage& now, int i) {
    float first[4] = {}, last[4] = {};
    apply(first, last, x, now.lower, i);
    fade(fresh[i], faded[i], first, last, now, i);
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
        ask(held, o, left, now, lanes, part);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            int i = part * 2 + n / 2;
            Values of;
            of.load(now, values, i);
            differ(x[i], held[n], held[n + 1], of);
            enter(o[n], o[n + 1], now, i);
            renew(fresh, faded, x, now, i);
            apply(o[n], o[n + 1], fresh, now.lower + LOWER, i);
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

// out (count, value_heads * HEAD), untiled and not normed.  Grid (2, value_heads), 128 threads, shared STAGES stages.
extern "C" __global__ void __launch_bounds__(THREADS) tiles_run(bf16* out, Run run, Images images, const int* slots,
                                                               const int* frontiers, int count) {
    extern __shared__ __align__(1024) unsigned char memory[];
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

// out = w-RMSNorm of each head of o, times SiLU(z); `all` heads, `heads` a row; rows of z are `stride` elements apart.
// Half a warp a head; 256 threads.
extern "C" __global__ void __launch_bounds__(256) delta_norm(bf16* out, const bf16* o, const bf16* z, int stride,
                                                            const bf16* norm, int heads, int all, float eps) {
    int lane = threadIdx.x % 16, index = blockIdx.x * (16 * AT_ONCE) + threadIdx.x / 16;
    uint4 raw[AT_ONCE], gate[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {  // all loads first
        int head = min(index + i * 16, all - 1), row = head / heads;
        raw[i] = load_once(o + static_cast<long long>(head) * HEAD + lane * 8);
        gate[i] = load_once(z + static_cast<long long>(row) * stride + (head - row * heads) * HEAD + lane * 8);
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
        if (index + i * 16 < all)
            *reinterpret_cast<uint4*>(out + static_cast<long long>(index + i * 16) * HEAD + lane * 8) =
                make_uint4(words[0], words[1], words[2], words[3]);
    }
}
