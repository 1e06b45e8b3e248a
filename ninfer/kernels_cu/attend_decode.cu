// Attention of single rows over the paged cache, in one launch: norms, rotation, cache, softmax, gate.
//
// A block takes one (split of keys, kv head, row): two pages at a time, 16 tokens a warp.  Every block makes its
// queries anew, and enters those new keys and values that its pages hold: rows of one sequence see one another,
// and blocks of several rows write the same bytes.  Then a warp a head adds up the block's warps, and the one that
// comes last of a head's splits adds up the splits, divides, multiplies by sigmoid(gate) and stores.
// The number of splits follows from the row's own length alone and splits are added in order, so a row gives the
// same bits in any batch.
//
// The one thing a reader would get wrong: what is loaded before await_predecessor() are pages that an earlier pass
// filled; a page that this pass adds to is read only after this block's own stores.  A drafting step (first_key > 0) may
// begin while the draft before it still writes, so the last full page, where that wrote, is not among the first.
//
// What spills is kept from pass to pass; the loop over pages touches none of it.
//: variants KV 0 1 2 3 4
//: spills attend_rows 256
#include "kv_fragments.cuh"
#include "rope.cuh"

constexpr int SPLITS = 32;  // at most; fewer blocks do when no sequence has as many pages
constexpr int WARPS = 8, AT_ONCE = WARPS * 16 / PAGE_TOKENS;  // pages
constexpr int GROUP = 8;    // query heads of one kv head, at most: a warp each
constexpr int OUT_ROW = 265, OUT_WARP = GROUP * OUT_ROW;  // floats of a head's sums, which are spread over the banks
constexpr int FIRST_WAVE = 132;  // about the blocks that begin together

using Keys = KvFragments<KV>::Keys;
using Values = KvFragments<KV>::Values;
using Formats = KvFormats<KV>;

// Rows as they were projected, and what makes them queries, keys and values.
struct Raw {
    const bf16* q;
    const bf16* k;
    const bf16* v;
    const bf16* gate;
    const bf16* q_norm;
    const bf16* k_norm;
    const float* table;
    int heads, pairs, gate_stride;
    float eps;
};

struct Reach {
    int sequence, length, first_row, frontier, pages, per_split, splits;
};

__device__ __forceinline__ Reach reach_of(const Sequences& of, int row) {
    Reach r;
    r.sequence = sequence_of(of.offsets, of.count, row);
    r.first_row = of.offsets[r.sequence], r.frontier = of.frontiers[r.sequence];
    r.length = r.frontier + row - r.first_row + 1;
    r.pages = (r.length + PAGE_TOKENS - 1) / PAGE_TOKENS;
    r.per_split = (r.pages + SPLITS * AT_ONCE - 1) / (SPLITS * AT_ONCE) * AT_ONCE;
    r.splits = (r.pages + r.per_split - 1) / r.per_split;
    return r;
}

// A kv head of a layer's cache, as one sequence sees it.
struct Cache {
    const Pool& pool;
    long long layer;
    const int* table;
    int head;

    __device__ __forceinline__ u8* keys(int page) const { return page_keys(pool, table[page], layer, head); }
    __device__ __forceinline__ u8* values(int page) const { return page_values(pool, table[page], layer, head); }
};

// Make the row's queries (turned, DIM apart, and gates alike) and, of pages page .. last - 1, enter what this pass adds up to
// the row: a warp a head or token.  What is not real changes nothing but the shared rows.
__device__ __forceinline__ void prepare(bf16* turned, uint4* gates, const Raw& raw, const Cache& cache, const Reach& r, int page, int last, bool real) {
    int lane = threadIdx.x % 32, group = raw.heads / cache.pool.kv_heads;
    int begin = max(r.frontier, page * PAGE_TOKENS), end = min(r.length, last * PAGE_TOKENS);
#pragma unroll 1
    for (int task = threadIdx.x / 32; task < group + max(0, end - begin); task += WARPS) {
        bool query = task < group;
        int token = query ? r.length - 1 : begin + task - group, from = r.first_row + token - r.frontier;
        long long at = query ? static_cast<long long>(from) * raw.heads + cache.head * group + task : static_cast<long long>(from) * cache.pool.kv_heads + cache.head;
        const bf16* norm = query ? raw.q_norm : raw.k_norm;
        uint4 mine = raw_row(real ? (query ? raw.q : raw.k) + at * ROW : norm, lane);
        const bf16* gate = raw.gate + static_cast<long long>(from) * raw.gate_stride + (cache.head * group + task) * DIM;
        uint4 beside = raw_row(!real ? norm : query ? gate : raw.v + at * ROW, lane);
        int turning = real ? raw.pairs : min(raw.pairs, 64);
        float4 turns[4] = {};
        load_turns(turns, real ? raw.table + static_cast<long long>(from) * raw.pairs * 2 : reinterpret_cast<const float*>(norm), turning, lane);
        float x[8], w[8];
        load_row(w, norm, lane);
        widen_row(x, mine);
        norm_head(x, w, raw.eps);
        turn_head(x, turns, turning, lane);
        if (query) {
            gates[task * 32 + lane] = beside;
            if (Formats::KEY == KV_NVFP4) rotate_row(x, lane);
            store_bf16(reinterpret_cast<u8*>(turned + task * DIM), 0, lane, x);
        } else if (real) {
            store_row<Formats::KEY>(cache.keys(token / PAGE_TOKENS), token % PAGE_TOKENS, lane, x);
            widen_row(x, beside);
            store_row<Formats::VALUE>(cache.values(token / PAGE_TOKENS), token % PAGE_TOKENS, lane, x);
        }
    }
}

// Queries of one kv head as B fragments [step][lane]; heads beyond the group are zero.
__device__ __forceinline__ void stage_queries(uint2* shared, const bf16* q, int group) {
    for (int i = threadIdx.x; i < DIM / 16 * 32; i += WARPS * 32) {
        int g = i % 32 / 4;
        shared[i] = g < group ? Keys::query(q + g * DIM, i / 32, i % 4) : make_uint2(0, 0);
    }
}

__device__ __forceinline__ float over_tokens_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

__device__ __forceinline__ float over_tokens_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

// Running softmax of one warp: heads 2t and 2t + 1, log2 domain; `total` is this lane's share.
struct Softmax {
    float top[2], total[2];

    // Turn scores (token g: s[0..1], token g + 8: s[2..3]) into probabilities; -> factors for `o`.
    __device__ __forceinline__ float2 step(float (&s)[4]) {
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float now = fmaxf(top[h], over_tokens_max(fmaxf(s[h], s[h + 2])));
            float base = now == NEVER ? 0.0f : now;
            factor[h] = exp2_fast(top[h] - base);
            s[h] = exp2_fast(s[h] - base);
            s[h + 2] = exp2_fast(s[h + 2] - base);
            total[h] = total[h] * factor[h] + (s[h] + s[h + 2]);
            top[h] = now;
        }
        return make_float2(factor[0], factor[1]);
    }
};

// Sixteen tokens of a page in registers, and this warp's sums over what it has taken so far.
struct Share {
    Keys keys;
    Values values;
    float o[DIM / 16][4];
    Softmax soft;

    __device__ __forceinline__ void load(const Cache& cache, int page, int first_key, int length) {
        int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16 % PAGE_TOKENS;
        keys.load(cache.keys(page), token, lane);
        values.load(cache.values(page), token, first_key - page * PAGE_TOKENS, length - page * PAGE_TOKENS, lane);
    }

    // Attend to pages page, page + AT_ONCE, ... below `last`, of which the first is loaded.
    __device__ __forceinline__ void attend(const uint2* queries, const Cache& cache, int page, int last, int first_key, int length, float scale) {
        int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16 % PAGE_TOKENS;
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
        soft = {{NEVER, NEVER}, {0, 0}};
#pragma unroll 1
        for (; page < last; page += AT_ONCE) {
            int begin = first_key - page * PAGE_TOKENS, end = length - page * PAGE_TOKENS, next = page + AT_ONCE;
            float s[4] = {0, 0, 0, 0};
            keys.score(s, queries, lane);
            if (next < last) keys.load(cache.keys(next), token, lane);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = token + lane / 4 + i / 2 * 8;
                s[i] = at < end && at >= begin ? s[i] * scale : NEVER;
            }
            float2 factor = soft.step(s);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                o[i][0] *= factor.x; o[i][1] *= factor.y; o[i][2] *= factor.x; o[i][3] *= factor.y;
            }
            values.accumulate(o, s, lane);
            if (next < last) values.load(cache.values(next), token, begin - AT_ONCE * PAGE_TOKENS, end - AT_ONCE * PAGE_TOKENS, lane);
        }
    }
};

__device__ __forceinline__ int out_place(int head, int dim) { return head * OUT_ROW + dim + dim / 32; }

// Leave each warp's sums in shared memory: outs[warp][out_place(head, dim)], stats[warp][head] = (top, total).
__device__ __forceinline__ void leave_sums(float* outs, float2* stats, const Share& share) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float total0 = over_tokens_sum(share.soft.total[0]), total1 = over_tokens_sum(share.soft.total[1]);
    if (g == 0) {
        stats[warp * GROUP + 2 * t] = make_float2(share.soft.top[0], total0);
        stats[warp * GROUP + 2 * t + 1] = make_float2(share.soft.top[1], total1);
    }
    float* mine = outs + warp * OUT_WARP;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mine[out_place(2 * t + j % 2, Values::value_dim(i, g, j / 2))] = share.o[i][j];
}

__device__ __forceinline__ float weight_of(float top, float best) {
    return best == NEVER ? 0.0f : exp2_fast(top - best);
}

// Add up head h of the block's warps, eight dimensions a lane.  -> top and total weight.
__device__ __forceinline__ float2 join_warps(float (&x)[8], const float* outs, const float2* stats, int h, int lane) {
    float best = NEVER, total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, stats[w * GROUP + h].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float2 stat = stats[w * GROUP + h];
        float weight = weight_of(stat.x, best);
        const float* from = outs + w * OUT_WARP + out_place(h, lane * 8);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = w ? fmaf(weight, from[i], x[i]) : weight * from[i];
        total += weight * stat.y;
    }
    return make_float2(best, total);
}

// x[0..3] += weight * a, x[4..7] += weight * b.
__device__ __forceinline__ void add_eight(float (&x)[8], const float4& a, const float4& b, float weight) {
    x[0] += weight * a.x; x[1] += weight * a.y; x[2] += weight * a.z; x[3] += weight * a.w;
    x[4] += weight * b.x; x[5] += weight * b.y; x[6] += weight * b.z; x[7] += weight * b.w;
}

// Eight dimensions a lane of a few splits, from split `first` on.
struct SomeSplits {
    static constexpr int COUNT = 4;
    float4 a[COUNT], b[COUNT];

    __device__ __forceinline__ void load(const float4* partial, int first, int splits, int lane) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            a[i] = b[i] = make_float4(0, 0, 0, 0);
            const float4* from = partial + (first + i) * (DIM / 4) + lane * 2;
            if (first + i < splits) a[i] = __ldcg(from), b[i] = __ldcg(from + 1);
        }
    }
};

// Add up a head's splits in order, eight dimensions a lane.  -> their total weight.
__device__ __forceinline__ float join_splits(float (&x)[8], const float4* partial, const float2* stats, int splits, int lane) {
    SomeSplits some;
    some.load(partial, 0, splits, lane);
    float2 mine = lane < splits ? __ldcg(stats + lane) : make_float2(NEVER, 0);
    float best = mine.x;
#pragma unroll
    for (int m = 16; m; m /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, m));
    float weight = weight_of(mine.x, best), total = weight * mine.y;
#pragma unroll
    for (int m = 16; m; m /= 2) total += __shfl_xor_sync(~0u, total, m);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
    int first = 0;
#pragma unroll 1
    do {
#pragma unroll
        for (int i = 0; i < SomeSplits::COUNT; i++) add_eight(x, some.a[i], some.b[i], __shfl_sync(~0u, weight, first + i));
        first += SomeSplits::COUNT;
        if (first < splits) some.load(partial, first, splits, lane);
    } while (first < splits);
    return total;
}

// Leave this split's sums; true for the warp that comes last, which then holds the sums of all, and for one that is not
// `real`, which leaves nothing.
__device__ __forceinline__ bool meet(float (&x)[8], float2& stat, float* partial, float* stats, u32* counter, long long place, int split, int splits, int lane, bool real) {
    float4* sums = reinterpret_cast<float4*>(partial + place * DIM);
    float2* pairs = reinterpret_cast<float2*>(stats) + place;
    u32 seen = splits - 1;
    if (real) {
        __stcg(sums + split * (DIM / 4) + lane * 2, make_float4(x[0], x[1], x[2], x[3]));
        __stcg(sums + split * (DIM / 4) + lane * 2 + 1, make_float4(x[4], x[5], x[6], x[7]));
        if (lane == 0) __stcg(pairs + split, stat);
        __syncwarp();
        if (lane == 0) seen = count_release(counter);
        seen = __shfl_sync(~0u, seen, 0);
        __syncwarp();  // so that what lane 0 has seen of others orders all lanes' reads
    }
    if (seen + 1 != static_cast<u32>(splits)) return false;
    if (real && lane == 0) *counter = 0;
    stat.y = join_splits(x, sums, pairs, real ? splits : 0, lane);
    return true;
}

// Ask for a page's keys and values of one head, without reading them.
__device__ __forceinline__ void ask_for_page(const Cache& cache, int page) {
    const u8 *keys = cache.keys(page), *values = cache.values(page);
    for (int at = threadIdx.x * 128; at < cache.pool.key_bytes; at += WARPS * 32 * 128) prefetch_l2(keys + at);
    for (int at = threadIdx.x * 128; at < cache.pool.value_bytes; at += WARPS * 32 * 128) prefetch_l2(values + at);
}

// out (rows, heads * DIM).  partial (rows, heads, gridDim.x, DIM) and stats (rows, heads, gridDim.x, 2) hold each
// split's sums, their top in the log2 domain and their total weight; counters (rows, heads) are zero between
// launches.  Grid (min(SPLITS, pairs of pages of a context), kv_heads, rows), 256 threads.  A launch that begins
// early rehearses: three warps take what is there already, if not a row, through a part of the code each, and wait
// for nobody.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attend_rows(bf16* out, float* partial, float* stats, u32* counters, Raw raw, Pool pool,
                                                             long long layer, Sequences of, float scale) {
    extern __shared__ __align__(16) float outs[];
    __shared__ __align__(16) bf16 turned[GROUP * DIM];
    __shared__ uint4 gates[GROUP * 32];
    __shared__ uint2 queries[DIM / 16 * 32];
    __shared__ float2 warp_stats[WARPS * GROUP];
    release_successor();
    int split = blockIdx.x, row = blockIdx.z, group = raw.heads / pool.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Reach r = reach_of(of, row);
    if (split >= r.splits) return;
    Cache cache = {pool, layer, of.tables + r.sequence * pool.table_stride, static_cast<int>(blockIdx.y)};
    int begin = split * r.per_split, last = min(begin + r.per_split, r.pages), page = begin + warp / (WARPS / AT_ONCE);
    int settled = of.first_key > 0 ? r.frontier - PAGE_TOKENS : r.frontier;
    bool old = page < last && (page + 1) * PAGE_TOKENS <= settled;
    bool early = REHEARSES && (row * pool.kv_heads + cache.head) * r.splits + split < FIRST_WAVE;
    Share share;
    if (old) share.load(cache, page, of.first_key, r.length);
    if (early && last == r.pages) ask_for_page(cache, last - 1);
#pragma unroll 1
    for (int real = early ? 0 : 1; real < 2; real++) {
        if (real) await_predecessor();
        if (real || warp == 0) prepare(turned, gates, raw, cache, r, begin, last, real);
        if (real) __syncthreads();
        if (real && !old && page < last) share.load(cache, page, of.first_key, r.length);
        if (real || warp == 1) stage_queries(queries, turned, group);
        if (real) __syncthreads();
        if (real || warp == 1) share.attend(queries, cache, page, real ? last : min(last, page + 1), of.first_key, r.length, scale * 1.4426950408889634f);
        if (real || warp == 2) leave_sums(outs, warp_stats, share);
        if (real) __syncthreads();
        if (real ? warp >= group : warp != 2) continue;
        float x[8], g[8];
        float2 stat = join_warps(x, outs, warp_stats, warp, lane);
        long long place = static_cast<long long>(row) * raw.heads + cache.head * group + warp;
        if (r.splits > 1 && !meet(x, stat, partial, stats, counters + place, place * gridDim.x, split, r.splits, lane, real)) continue;
        if (Formats::VALUE == KV_NVFP4) rotate_back(x, lane);
        float inverse = stat.y > 0.0f ? __fdividef(1.0f, stat.y) : 0.0f;
        widen_row(g, gates[warp * 32 + lane]);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = x[i] * inverse * __fdividef(1.0f, 1.0f + __expf(-g[i]));
        if (real) store_bf16(reinterpret_cast<u8*>(out + place * DIM), 0, lane, x);
    }
}
