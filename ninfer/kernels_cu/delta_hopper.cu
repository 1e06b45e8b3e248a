// The Gated DeltaNet over many rows of one sequence, with the products of a Hopper warpgroup (see delta_run.cuh).
//
// A block is one warpgroup with 64 value dimensions of a head: S^T, as fragments, times keys and queries that stay in
// shared memory, so a tile is read once for all four warps.  Q S is under way while T is applied, the new S while
// M is.
//
// The one thing a reader would get wrong: between `products_begin` and a wait nothing may touch S or o; T and M are
// products of single warps and wait for nobody.
//
//: arch sm_90a
#include "delta_run.cuh"
#include "hopper.cuh"

constexpr int STAGES = 3;
constexpr u32 SLAB = TILE * HALF * 2;  // bytes between the halves of a tile

// sum = (tile S)^T for the 64 tokens of a tile of keys or queries.
__device__ __forceinline__ void ask(float (&sum)[TILE / 8][4], const u32 (&s)[KEYS / 2][4], const bf16* tile) {
    u64 at = tile_of(tile, SLAB);
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++)
        product_64_of(sum, s[step], further(at, step / 4 * SLAB + step % 4 * 32), step > 0);
    products_commit();
}

// One tile, as in delta_tiles.cu.
__device__ __forceinline__ void walk_tile(u32* out, int stride, float (&s)[KEYS][4], const Stage& now, const bf16* values,
                                          int from, int to) {
    int g = threadIdx.x % 32 / 4;
    u32 left[KEYS / 2][4], x[4][4], fresh[4][4], faded[4][4];
    float held[TILE / 8][4], o[TILE / 8][4], fade = now.into[TILE - 1];
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++) as_left(left[step], s[2 * step], s[2 * step + 1]);
#pragma unroll
    for (int e = 0; e < KEYS * 4; e++) s[e / 4][e % 4] *= fade;
    products_begin();
    ask(held, left, now.k);
    ask(o, left, now.q);
    products_wait<1>();
    settle(held);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        differ(x[i], held[2 * i], held[2 * i + 1], now, values, i);
        renew(fresh, faded, x, now, i);
    }
    products_wait<0>();
    settle(o);
    products_begin();
    u64 keys = tile_of(now.k, SLAB);
#pragma unroll
    for (int step = 0; step < 4; step++) product_128(s, faded[step], further(keys, step * 16 * HALF * 2));
    products_commit();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        enter(o[2 * i], o[2 * i + 1], now, i);
        apply(o[2 * i], o[2 * i + 1], fresh, now.lower + LOWER, i);
#pragma unroll
        for (int n = 2 * i; n < 2 * i + 2; n++) {
            store_tokens(out, o[n], n * 8 + g >= from && n * 8 + g < to);
            out += 8 * stride;
        }
    }
    products_wait<0>();
    settle(s);
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
        copies_wait<STAGES - 2>();
        copies_to_products();
        __syncthreads();  // the tile is there, and nobody needs the one before it
        if (next < tiles) ahead.fetch_tile(stages[next % STAGES], run);
        copies_commit();
        Stage& now = stages[tile % STAGES];
        int row = tile * TILE - lead;
        walk_tile(first + static_cast<long long>(row + lane / 4) * stride, stride, s, now,
                  now.v + cell(lane % 16, warp * 2 + lane / 16), -row, count - row);
    }
    each_of_state(state, [&](int n, int at, float2* p) { *p = make_float2(s[n][at], s[n][at + 1]); });
}
