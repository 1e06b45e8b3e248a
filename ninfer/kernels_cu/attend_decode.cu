// Attention of single rows over the paged cache: split along the keys, merged in a fixed order.
//
// One block takes one (split of keys, kv head, row); its four warps take 16 tokens of every page.
// The number of splits follows from the row's own length alone, so a row gives the same bits in any
// batch.  The last block of a (row, kv head) to finish merges the splits in ascending order,
// multiplies by sigmoid(gate) and stores.
//
//: variants KV 0
//: variants HEAD_DIM 256
#include "kv_bf16.cuh"
#include "pages.cuh"

constexpr int SPLITS = 64;  // at most; fewer blocks do when no sequence has as many pages
constexpr int WARPS = 4;
constexpr int GROUP = 8;    // query heads of one kv head, at most

using bf16 = __nv_bfloat16;
constexpr int DIM = HEAD_DIM;
#if KV == 0
using Cache = KvBf16<DIM>;
#endif

struct Reach {
    int sequence, length, pages, per_split, splits;
};

__device__ __forceinline__ Reach reach_of(const Sequences& of, int row) {
    Reach r;
    r.sequence = sequence_of(of.offsets, of.count, row);
    r.length = of.frontiers[r.sequence] + row - of.offsets[r.sequence] + 1;
    r.pages = (r.length + PAGE_TOKENS - 1) / PAGE_TOKENS;
    r.per_split = (r.pages + SPLITS - 1) / SPLITS;
    r.splits = (r.pages + r.per_split - 1) / r.per_split;
    return r;
}

// Queries of one kv head as B fragments [step][lane]; heads beyond the group are zero.
__device__ void stage_queries(uint2* shared, const bf16* q, int group) {
    for (int i = threadIdx.x; i < DIM / 16 * 32; i += WARPS * 32) {
        int step = i / 32, g = i % 32 / 4, t = i % 4;
        uint2 pair = make_uint2(0, 0);
        if (g < group) {
            pair.x = *reinterpret_cast<const u32*>(q + g * DIM + Cache::query_dim(step, t, 0));
            pair.y = *reinterpret_cast<const u32*>(q + g * DIM + Cache::query_dim(step, t, 1));
        }
        shared[i] = pair;
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

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Running softmax of one warp: heads 2t and 2t + 1, log2 domain; `total` is this lane's share.
struct Softmax {
    float top[2], total[2];

    // Turn scores (token g: s[0..1], token g + 8: s[2..3]) into probabilities; -> factors for `o`.
    __device__ float2 step(float (&s)[4]) {
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float now = fmaxf(top[h], over_tokens_max(fmaxf(s[h], s[h + 2])));
            float base = now == -INFINITY ? 0.0f : now;
            factor[h] = exp2_fast(top[h] - base);
            s[h] = exp2_fast(s[h] - base);
            s[h + 2] = exp2_fast(s[h + 2] - base);
            total[h] = total[h] * factor[h] + (s[h] + s[h + 2]);
            top[h] = now;
        }
        return make_float2(factor[0], factor[1]);
    }
};

// This warp's sums over tokens first_key .. length - 1 of pages page .. last - 1.
__device__ void attend_pages(float (&o)[DIM / 16][4], Softmax& soft, const uint2* queries, const Pool& pool,
                             long long layer, int head, const int* table, int page, int last, int first_key,
                             int length, float scale) {
    int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16;
    Cache::Keys keys;
    Cache::Values values;
    keys.load(page_keys(pool, table[page], layer, head), token, lane);
    for (; page < last; page++) {
        int begin = first_key - page * PAGE_TOKENS, end = length - page * PAGE_TOKENS;
        values.load(page_values(pool, table[page], layer, head), token, begin, end, lane);
        float s[4] = {0, 0, 0, 0};
        keys.score(s, queries, lane);
        if (page + 1 < last) keys.load(page_keys(pool, table[page + 1], layer, head), token, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = token + lane / 4 + i / 2 * 8;
            s[i] = at < end && at >= begin ? s[i] * scale : -INFINITY;
        }
        float2 factor = soft.step(s);
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            o[i][0] *= factor.x; o[i][1] *= factor.y; o[i][2] *= factor.x; o[i][3] *= factor.y;
        }
        values.accumulate(o, transpose8x8(pack_bf16(s[0], s[1])), transpose8x8(pack_bf16(s[2], s[3])));
    }
}

// Leave each warp's sums in shared memory: outs[warp][head][dim], stats[warp][head] = (top, total).
__device__ void leave_sums(float* outs, float2* stats, const float (&o)[DIM / 16][4], const Softmax& soft) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float total0 = over_tokens_sum(soft.total[0]), total1 = over_tokens_sum(soft.total[1]);
    if (g == 0) {
        stats[warp * GROUP + 2 * t] = make_float2(soft.top[0], total0);
        stats[warp * GROUP + 2 * t + 1] = make_float2(soft.top[1], total1);
    }
    float* mine = outs + warp * GROUP * DIM;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            mine[(2 * t + j % 2) * DIM + Cache::value_dim(i, g, j / 2)] = o[i][j];
}

__device__ __forceinline__ float weight_of(float top, float best) {
    return best == -INFINITY ? 0.0f : exp2_fast(top - best);
}

__device__ __forceinline__ void store_gated(bf16* out, const bf16* gate, float sum, float total) {
    float g = __bfloat162float(*gate);
    float y = total > 0.0f ? sum / total : 0.0f;
    *out = __float2bfloat16(y / (1.0f + __expf(-g)));
}

// Merge `splits` partial sums of one (row, kv head) and store its gated outputs.
__device__ void merge_splits(bf16* out, const bf16* gate, const float* partial, const float2* stats, int splits,
                             int group, float* weights, float* totals) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int h = warp; h < group; h += WARPS) {
        float2 a = lane < splits ? __ldcg(stats + lane * group + h) : make_float2(-INFINITY, 0);
        float2 b = lane + 32 < splits ? __ldcg(stats + (lane + 32) * group + h) : make_float2(-INFINITY, 0);
        float best = fmaxf(a.x, b.x);
        for (int x = 16; x; x /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, x));
        float wa = weight_of(a.x, best), wb = weight_of(b.x, best), total = wa * a.y + wb * b.y;
        for (int x = 16; x; x /= 2) total += __shfl_xor_sync(~0u, total, x);
        weights[h * SPLITS + lane] = wa;
        weights[h * SPLITS + lane + 32] = wb;
        if (lane == 0) totals[h] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * DIM; i += WARPS * 32) {
        float sum = 0.0f;
#pragma unroll 8
        for (int s = 0; s < splits; s++)
            sum += weights[i / DIM * SPLITS + s] * __ldcg(partial + static_cast<long long>(s) * group * DIM + i);
        store_gated(out + i, gate + i, sum, totals[i / DIM]);
    }
}

// Whether this block is the last of `blocks` to arrive; its writes before are then visible to it.
__device__ bool arrive_last(unsigned* counter, int blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) == blocks - 1u;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Merge the warps' sums; store outputs when there is one split, a partial sum otherwise.
__device__ void merge_warps(bf16* out, const bf16* gate, float* partial, float2* stats, const float* outs,
                            const float2* warp_stats, int group, bool only) {
    for (int i = threadIdx.x; i < group * DIM; i += WARPS * 32) {
        int h = i / DIM;
        float best = -INFINITY, sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) best = fmaxf(best, warp_stats[w * GROUP + h].x);
        for (int w = 0; w < WARPS; w++) {
            float2 stat = warp_stats[w * GROUP + h];
            float weight = weight_of(stat.x, best);
            sum += weight * outs[w * GROUP * DIM + i];
            total += weight * stat.y;
        }
        if (only) {
            store_gated(out + i, gate + i, sum, total);
        } else {
            partial[i] = sum;
            if (i % DIM == 0) stats[h] = make_float2(best, total);
        }
    }
}

// out (rows, heads * DIM); q (rows, heads, DIM) normed and rotated; gate rows `gate_stride` apart.
// partial (rows, kv_heads, gridDim.x, group, DIM), stats (rows, kv_heads, gridDim.x, group, 2),
// counters (rows, kv_heads) zero before and after.  Grid (min(SPLITS, pages of a context), kv_heads, rows).
extern "C" __global__ void __launch_bounds__(128) attend_decode(
    bf16* out, const bf16* q, const bf16* gate, int gate_stride, Pool pool, long long layer, Sequences of,
    int heads, float scale, float* partial, float* stats, unsigned* counters) {
    __shared__ uint2 queries[DIM / 16 * 32];
    __shared__ float outs[WARPS * GROUP * DIM];
    __shared__ float2 warp_stats[WARPS * GROUP];
    __shared__ float weights[GROUP * SPLITS], totals[GROUP];
    release_successor();
    await_predecessor();
    int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z, group = heads / pool.kv_heads;
    Reach r = reach_of(of, row);
    if (split >= r.splits) return;
    long long place = (static_cast<long long>(row) * heads + head * group) * DIM;
    stage_queries(queries, q + place, group);
    __syncthreads();
    float o[DIM / 16][4] = {};
    Softmax soft = {{-INFINITY, -INFINITY}, {0, 0}};
    attend_pages(o, soft, queries, pool, layer, head, of.tables + r.sequence * pool.table_stride,
                 split * r.per_split, min((split + 1) * r.per_split, r.pages), of.first_key, r.length,
                 scale * 1.4426950408889634f);
    leave_sums(outs, warp_stats, o, soft);
    __syncthreads();
    gate += static_cast<long long>(row) * gate_stride + head * group * DIM;
    int block = row * pool.kv_heads + head, most = gridDim.x;
    partial += static_cast<long long>(block) * most * group * DIM;
    float2* pairs = reinterpret_cast<float2*>(stats) + block * most * group;
    merge_warps(out + place, gate, partial + split * group * DIM, pairs + split * group, outs, warp_stats, group,
                r.splits == 1);
    if (r.splits == 1 || !arrive_last(counters + block, r.splits)) return;
    merge_splits(out + place, gate, partial, pairs, r.splits, group, weights, totals);
}
