// The Gated DeltaNet over many rows of one sequence, with the products of Hopper's warpgroups (see delta_run.cuh).
//
// A block has 64 value dimensions of a head.  Walkers, one warpgroup, carry S from tile to tile and do nothing else;
// tellers, another, make outputs of the S and V' that walkers leave them; a thread of a third copies tiles, a few runs
// of memory each.  Every warp of the tellers has the value dimensions of one warp of the walkers, lane by lane, so what is
// handed over lies as registers do.
//
// The one thing a reader would get wrong: walkers are a tile ahead of tellers, and each has tiles of its own, so
// operands of one tile are released at different times.
//
//: arch sm_90a
#include "delta_run.cuh"
#include "hopper.cuh"
#include "ring.cuh"

constexpr int TEAM = 128, WARPS = 4;
constexpr int WALKED = 4, TOLD = 3;      // tiles under way for walkers, for tellers
constexpr u32 SLAB = TILE * HALF * 2;    // bytes between the halves of a tile
constexpr int GIVEN = KEYS / 2 + 4;      // fragments that are handed over: S, then V'

// A tile's operands for walkers, and for tellers.
struct alignas(1024) Walked {
    bf16 k[TILE * HEAD], v[TILE * HALF], lower[LOWER];
    float into[TILE], out_of[TILE];
};
struct alignas(1024) Told {
    bf16 q[TILE * HEAD], lower[LOWER];
    float into[TILE];
};

struct Tiles {
    Walked walked[WALKED];
    Told told[TOLD];
    uint4 given[GIVEN][TEAM];
    u64 walked_full[WALKED], walked_empty[WALKED], told_full[TOLD], told_empty[TOLD], given_full[WARPS], given_empty[WARPS];

    __device__ __forceinline__ void begin() {
        for (int i = 0; i < WALKED; i++) phase_init(walked_full + i, 1), phase_init(walked_empty + i, WARPS * ARRIVALS);
        for (int i = 0; i < TOLD; i++) phase_init(told_full + i, 1), phase_init(told_empty + i, WARPS * ARRIVALS);
        for (int i = 0; i < WARPS; i++) phase_init(given_full + i, ARRIVALS), phase_init(given_empty + i, ARRIVALS);
        copies_to_products();
    }
};

// This warp is through with what the barrier guards.
__device__ __forceinline__ void arrive_warp(u64* barrier) {
    __syncwarp();
    if (WATCHED || threadIdx.x % 32 == 0) phase_arrive(barrier);
}

template <class T, int N>
__device__ __forceinline__ void carry(T (&to)[N], const T* from, u64* barrier) {
    copy_bulk(to, from, N * sizeof(T), barrier);
}

// Copy all tiles: one thread.
struct Carrier {
    Tiles& w;
    const Run& run;
    int head, half;
    Turn<WALKED> walked = {};
    Turn<TOLD> told = {};

    __device__ __forceinline__ long long key(int tile) const {
        return (static_cast<long long>(tile) * run.key_heads + head / (run.value_heads / run.key_heads)) * TILE * HEAD;
    }
    __device__ __forceinline__ long long value(int tile) const { return static_cast<long long>(tile) * run.value_heads + head; }
    __device__ __forceinline__ long long gate(int tile) const { return (static_cast<long long>(head) * run.tiles + tile) * TILE; }

    __device__ __forceinline__ void carry_walked(int tile) {
        Walked& to = w.walked[walked.slot];
        u64* full = w.walked_full + walked.slot;
        phase_wait(w.walked_empty + walked.slot, walked.parity ^ 1);
        phase_expect(full, sizeof(to.k) + sizeof(to.v) + sizeof(to.lower) + sizeof(to.into) + sizeof(to.out_of));
        carry(to.k, run.k + key(tile), full);
        carry(to.v, run.v + (value(tile) * HEAD + half * HALF) * TILE, full);
        carry(to.lower, run.lower + value(tile) * 2 * LOWER, full);
        carry(to.into, run.into + gate(tile), full);
        carry(to.out_of, run.out_of + gate(tile), full);
        walked.next();
    }

    __device__ __forceinline__ void carry_told(int tile) {
        Told& to = w.told[told.slot];
        u64* full = w.told_full + told.slot;
        phase_wait(w.told_empty + told.slot, told.parity ^ 1);
        phase_expect(full, sizeof(to.q) + sizeof(to.lower) + sizeof(to.into));
        carry(to.q, run.q + key(tile), full);
        carry(to.lower, run.lower + value(tile) * 2 * LOWER + LOWER, full);
        carry(to.into, run.into + gate(tile), full);
        told.next();
    }
};

// sum = (tile S)^T for the 64 tokens of a tile of keys or queries.
__device__ __forceinline__ void ask(float (&sum)[TILE / 8][4], const u32 (&s)[KEYS / 2][4], const bf16* tile) {
    u64 at = tile_of(tile, SLAB);
    products_begin();
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++)
        product_64_of(sum, s[step], further(at, step / 4 * SLAB + step % 4 * 32), step > 0);
    products_commit();
}

// V' from (K S)^T, and the products S += (exp(G_63 - G) K)^T V', each under way as soon as its sixteen rows of V' are there.
__device__ __forceinline__ void absorb(float (&s)[KEYS][4], u32 (&fresh)[4][4], u32 (&faded)[4][4], float (&held)[TILE / 8][4],
                                       const Values (&values)[4], const Walked& now) {
    float sum[4][2][4] = {};
    u64 keys = tile_of(now.k, SLAB);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 x[4];
        differ(x, held[2 * j], held[2 * j + 1], values[j]);
#pragma unroll
        for (int i = j; i < 4; i++) apply_square(sum[i][0], sum[i][1], x, now.lower, i, j);
        fade(fresh[j], faded[j], sum[j][0], sum[j][1], now, j);
        products_begin();
        product_128(s, faded[j], further(keys, j * 16 * HALF * 2));
    }
    products_commit();
}

// Leave fragments to the tellers.
template <int N>
__device__ __forceinline__ void give(uint4 (*to)[TEAM], const u32 (&f)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i][threadIdx.x] = make_uint4(f[i][0], f[i][1], f[i][2], f[i][3]);
}

// S to what follows a tile.
__device__ __forceinline__ void walk_tile(Tiles& w, float (&s)[KEYS][4], const Walked& now, const bf16* values, u32 parity) {
    u32 left[KEYS / 2][4], fresh[4][4], faded[4][4];
    float held[TILE / 8][4];
    Values of[4];
#pragma unroll
    for (int step = 0; step < KEYS / 2; step++) as_left(left[step], s[2 * step], s[2 * step + 1]);
    ask(held, left, now.k);
#pragma unroll
    for (int i = 0; i < 4; i++) of[i].load(now, values, i);
    float fading = now.into[TILE - 1];
#pragma unroll
    for (int e = 0; e < KEYS * 4; e++) s[e / 4][e % 4] *= fading;
    phase_wait(w.given_empty + threadIdx.x / 32, parity ^ 1);
    products_wait<0>();
    settle(held);
    give(w.given, left);  // as it was before the tile; memory has little to do while T is applied
    absorb(s, fresh, faded, held, of, now);
    give(w.given + KEYS / 2, fresh);
    arrive_warp(w.given_full + threadIdx.x / 32);
    products_wait<0>();
    settle(s);
}

__device__ __forceinline__ void walk(Tiles& w, float* state, int tiles) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = cell(lane % 16, warp * 2 + lane / 16);
    float s[KEYS][4];
    Turn<WALKED> turn;
    each_of_state(state, [&](int n, int at, float2* p) { s[n][at] = p->x, s[n][at + 1] = p->y; });
    for (int tile = 0; tile < tiles; tile++, turn.next()) {
        const Walked& now = w.walked[turn.slot];
        phase_wait(w.walked_full + turn.slot, turn.parity);
        walk_tile(w, s, now, now.v + place, tile & 1);
        arrive_warp(w.walked_empty + turn.slot);
    }
    each_of_state(state, [&](int n, int at, float2* p) { *p = make_float2(s[n][at], s[n][at + 1]); });
}

// Take S and V' of a tile.
__device__ __forceinline__ void take(u32 (&left)[KEYS / 2][4], u32 (&fresh)[4][4], Tiles& w, u32 parity) {
    int warp = threadIdx.x / 32 % WARPS;
    phase_wait(w.given_full + warp, parity);
#pragma unroll
    for (int i = 0; i < GIVEN; i++) {
        uint4 v = w.given[i][threadIdx.x % TEAM];
        u32(&f)[4] = i < KEYS / 2 ? left[i] : fresh[i - KEYS / 2];
        f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
    }
    arrive_warp(w.given_empty + warp);
}

// o of a tile, of which rows from .. to - 1 are there, to `out` (this lane's place in the tile's row lane / 4).
__device__ __forceinline__ void tell_tile(u32* out, int stride, const u32 (&left)[KEYS / 2][4], const u32 (&fresh)[4][4],
                                          const Told& now, int from, int to) {
    int g = threadIdx.x % 32 / 4;
    float o[TILE / 8][4];
    ask(o, left, now.q);
    products_wait<0>();
    settle(o);
#pragma unroll
    for (int i = 0; i < 4; i++) enter(o[2 * i], o[2 * i + 1], now, i);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = j; i < 4; i++) apply_square(o[2 * i], o[2 * i + 1], fresh[j], now.lower, i, j);
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        store_tokens(out, o[n], n * 8 + g >= from && n * 8 + g < to);
        out += 8 * stride;
    }
}

// `out` is this lane's place in row 0 of the pass.
__device__ __forceinline__ void tell(Tiles& w, u32* out, int stride, int tiles, int lead, int count) {
    Turn<TOLD> turn;
    for (int tile = 0; tile < tiles; tile++, turn.next()) {
        u32 left[KEYS / 2][4], fresh[4][4];
        int row = tile * TILE - lead;
        take(left, fresh, w, tile & 1);
        phase_wait(w.told_full + turn.slot, turn.parity);
        long long at = row + static_cast<int>(threadIdx.x) % 32 / 4;
        tell_tile(out + at * stride, stride, left, fresh, w.told[turn.slot], -row, count - row);
        arrive_warp(w.told_empty + turn.slot);
    }
}

// out (count, value_heads * HEAD), untiled and not normed.  Grid (2, value_heads), 384 threads, shared sizeof(Tiles).
extern "C" __global__ void __launch_bounds__(3 * TEAM) tiles_run(bf16* out, Run run, Images images, const int* slots,
                                                                     const int* frontiers, int count) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Tiles& w = *reinterpret_cast<Tiles*>(memory);
    int half = blockIdx.x, head = blockIdx.y, team = __shfl_sync(~0u, threadIdx.x / TEAM, 0);
    int lead = lead_of(frontiers), tiles = min(run.tiles, (lead + count + TILE - 1) / TILE);
    if (threadIdx.x == 0) w.begin();
    __syncthreads();
    if (team == 0) {
        registers_claim<232>();
        walk(w, state_of(images, slots[0], head) + half * HALF * HEAD, tiles);
    } else if (team == 1) {
        registers_claim<232>();
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS;
        u32* first = reinterpret_cast<u32*>(out + head * HEAD + half * HALF + warp * SHARE) + lane % 4;
        tell(w, first, run.value_heads * HEAD / 2, tiles, lead, count);
    } else {
        registers_release<40>();
        if (threadIdx.x != 2 * TEAM) return;
        Carrier carrier = {w, run, head, half};
        for (int tile = 0; tile <= tiles; tile++) {
            if (tile < tiles) carrier.carry_walked(tile);
            if (tile > 0) carrier.carry_told(tile - 1);
        }
    }
}
