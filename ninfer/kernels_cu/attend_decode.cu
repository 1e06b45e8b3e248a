// Attention of single rows over the paged cache: split along the keys, merged in a fixed order.
//
// attend_rows: a block takes one (split of keys, kv head, row); its four warps take 16 tokens of every page.
// attend_merge: a block a (head, row) adds up the splits, divides, multiplies by sigmoid(gate) and stores.
// The number of splits follows from the row's own length alone, so a row gives the same bits in any batch.
//
//: variants KV 0 1 2 3 4
//: spills attend_merge 16
#include "kv_fragments.cuh"
#include "kv_store.cuh"

constexpr int SPLITS = 64;  // at most; fewer blocks do when no sequence has as many pages
constexpr int WARPS = 4;
constexpr int GROUP = 8;    // query heads of one kv head, at most
constexpr int MERGERS = 8;  // warps of attend_merge
constexpr int OUT_ROW = 265, OUT_WARP = GROUP * OUT_ROW;  // floats of a head's sums, which are spread over the banks

using Keys = KvFragments<KV>::Keys;
using Values = KvFragments<KV>::Values;

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

// This warp's sums over tokens first_key .. length - 1 of pages page .. last - 1; without `readable` the first
// page's keys are not read, whatever that makes of the sums.
__device__ __forceinline__ void attend_pages(float (&o)[DIM / 16][4], Softmax& soft, const uint2* queries,
                                             const Pool& pool, long long layer, int head, const int* table, int page,
                                             int last, int first_key, int length, float scale, bool readable) {
    int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16;
    Keys keys;
    Values values;
    if (readable) keys.load(page_keys(pool, table[page], layer, head), token, lane);
    for (; page < last; page++) {
        int begin = first_key - page * PAGE_TOKENS, end = length - page * PAGE_TOKENS;
        values.load(page_values(pool, table[page], layer, head), token, begin, end, lane);
        float s[4] = {0, 0, 0, 0};
        keys.score(s, queries, lane);
        if (page + 1 < last) keys.load(page_keys(pool, table[page + 1], layer, head), token, lane);
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
    }
}

__device__ __forceinline__ int out_place(int head, int dim) { return head * OUT_ROW + dim + dim / 32; }

// Leave each warp's sums in shared memory: outs[warp][out_place(head, dim)], stats[warp][head] = (top, total).
__device__ __forceinline__ void leave_sums(float* outs, float2* stats, const float (&o)[DIM / 16][4],
                                           const Softmax& soft) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float total0 = over_tokens_sum(soft.total[0]), total1 = over_tokens_sum(soft.total[1]);
    if (g == 0) {
        stats[warp * GROUP + 2 * t] = make_float2(soft.top[0], total0);
        stats[warp * GROUP + 2 * t + 1] = make_float2(soft.top[1], total1);
    }
    float* mine = outs + warp * OUT_WARP;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mine[out_place(2 * t + j % 2, Values::value_dim(i, g, j / 2))] = o[i][j];
}

__device__ __forceinline__ float weight_of(float top, float best) {
    return best == NEVER ? 0.0f : exp2_fast(top - best);
}

// Add up head h of the warps' sums, two dimensions a thread.
__device__ __forceinline__ void join_warps(float* partial, float* stats, const float* outs, const float2* warp_stats,
                                           long long place, int h, bool real) {
    int low = out_place(h, threadIdx.x), high = out_place(h, threadIdx.x + DIM / 2);
    float best = NEVER, total = 0.0f, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = fmaxf(best, warp_stats[w * GROUP + h].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float2 stat = warp_stats[w * GROUP + h];
        float weight = weight_of(stat.x, best);
        sum[0] += weight * outs[w * OUT_WARP + low];
        sum[1] += weight * outs[w * OUT_WARP + high];
        total += weight * stat.y;
    }
    if (!real) return;
    partial[(place + h) * DIM + threadIdx.x] = sum[0];
    partial[(place + h) * DIM + threadIdx.x + DIM / 2] = sum[1];
    if (threadIdx.x == 0) reinterpret_cast<float2*>(stats)[place + h] = make_float2(best, total);
}

// Ask for a page's keys and values of one head, without reading them.
__device__ __forceinline__ void ask_for_page(const Pool& pool, int page, long long layer, int head) {
    const u8 *keys = page_keys(pool, page, layer, head), *values = page_values(pool, page, layer, head);
    for (int at = threadIdx.x * 128; at < pool.key_bytes; at += WARPS * 32 * 128) prefetch_l2(keys + at);
    for (int at = threadIdx.x * 128; at < pool.value_bytes; at += WARPS * 32 * 128) prefetch_l2(values + at);
}

// q (rows, heads, DIM) normed and rotated.  partial (rows, kv_heads, gridDim.x, group, DIM) and stats (rows,
// kv_heads, gridDim.x, group, 2) hold each split's sums, their top in the log2 domain and their total weight.
// Grid (min(SPLITS, pages of a context), kv_heads, rows), 128 threads.  A launch that begins early rehearses with
// its first page, which is read then only if no row of this pass is entered into it.
extern "C" __global__ void __launch_bounds__(128) attend_rows(float* partial, float* stats, const bf16* q, Pool pool,
                                                             long long layer, Sequences of, int heads, float scale) {
    __shared__ uint2 queries[DIM / 16 * 32];
    __shared__ float outs[WARPS * OUT_WARP];
    __shared__ float2 warp_stats[WARPS * GROUP];
    release_successor();
    int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z, group = heads / pool.kv_heads;
    Reach r = reach_of(of, row);
    if (split >= r.splits) return;
    int page = split * r.per_split, last = min(page + r.per_split, r.pages);
    const int* table = of.tables + r.sequence * pool.table_stride;
    bool old = (page + 1) * PAGE_TOKENS <= of.frontiers[r.sequence];
    if (REHEARSES && !old) ask_for_page(pool, table[page], layer, head);
#pragma unroll 1
    for (int real = REHEARSES ? 0 : 1; real < 2; real++) {
        if (real) {
            await_predecessor();
            stage_queries(queries, q + (static_cast<long long>(row) * heads + head * group) * DIM, group);
            __syncthreads();
        }
        float o[DIM / 16][4] = {};
        Softmax soft = {{NEVER, NEVER}, {0, 0}};
        attend_pages(o, soft, queries, pool, layer, head, table, page, real ? last : page + 1, of.first_key,
                     real || old ? r.length : 0, scale * 1.4426950408889634f, real || old);
        leave_sums(outs, warp_stats, o, soft);
        __syncthreads();
        long long place = ((static_cast<long long>(row) * pool.kv_heads + head) * gridDim.x + split) * group;
#pragma unroll 2
        for (int h = 0; h < group; h++) join_warps(partial, stats, outs, warp_stats, place, h, real);
    }
}

// x[0..3] += weight * a, x[4..7] += weight * b.
__device__ __forceinline__ void add_eight(float (&x)[8], const float4& a, const float4& b, float weight) {
    x[0] += weight * a.x; x[1] += weight * a.y; x[2] += weight * a.z; x[3] += weight * a.w;
    x[4] += weight * b.x; x[5] += weight * b.y; x[6] += weight * b.z; x[7] += weight * b.w;
}

// This lane's eight dimensions, summed over splits warp, warp + MERGERS, ...: all loads first, then sums.
__device__ __forceinline__ void sum_splits(float (&x)[8], const float* partial, long long step, int warp, int splits,
                                           const float* weights) {
    float4 a[SPLITS / MERGERS], b[SPLITS / MERGERS];
#pragma unroll
    for (int i = 0; i < SPLITS / MERGERS; i++) {
        int s = warp + i * MERGERS;
        const float4* from = reinterpret_cast<const float4*>(partial + s * step);
        a[i] = b[i] = make_float4(0, 0, 0, 0);
        if (s < splits) a[i] = from[0], b[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < SPLITS / MERGERS; i++) add_eight(x, a[i], b[i], weights[warp + i * MERGERS]);
}

// out (rows, heads * DIM) = merged splits * sigmoid(gate); gate rows are `gate_stride` apart, `most` is
// gridDim.x of attend_rows.  Grid (heads, rows), 256 threads.
extern "C" __global__ void __launch_bounds__(256) attend_merge(bf16* out, const bf16* gate, int gate_stride,
                                                              const float* partial, const float* stats, int most,
                                                              int kv_heads, Sequences of) {
    __shared__ float weights[SPLITS];
    __shared__ __align__(16) float sums[MERGERS][DIM];
    release_successor();
    int heads = gridDim.x, head = blockIdx.x, row = blockIdx.y, group = heads / kv_heads;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, splits = reach_of(of, row).splits;
    await_predecessor();
    uint4 raw_gate = reinterpret_cast<const uint4*>(gate + static_cast<long long>(row) * gate_stride + head * DIM)[lane];
    long long place = (static_cast<long long>(row) * kv_heads + head / group) * most * group + head % group;
    const float2* pairs = reinterpret_cast<const float2*>(stats) + place;
    float2 a = lane < splits ? pairs[lane * group] : make_float2(NEVER, 0);
    float2 b = lane + 32 < splits ? pairs[(lane + 32) * group] : make_float2(NEVER, 0);
    float best = fmaxf(a.x, b.x);
    for (int m = 16; m; m /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, m));
    float wa = weight_of(a.x, best), wb = weight_of(b.x, best), total = wa * a.y + wb * b.y;
    for (int m = 16; m; m /= 2) total += __shfl_xor_sync(~0u, total, m);
    if (warp == 0) weights[lane] = wa, weights[lane + 32] = wb;
    __syncthreads();
    float x[8] = {};
    sum_splits(x, partial + place * DIM + lane * 8, static_cast<long long>(group) * DIM, warp, splits, weights);
#pragma unroll
    for (int i = 0; i < 8; i++) sums[warp][lane * 8 + i] = x[i];
    __syncthreads();
    if (warp) return;
    for (int w = 1; w < MERGERS; w++) {
        const float4* from = reinterpret_cast<const float4*>(&sums[w][lane * 8]);
        add_eight(x, from[0], from[1], 1.0f);
    }
    if (KvFormats<KV>::VALUE == KV_NVFP4) rotate_back(x, lane);
    float inverse = total > 0.0f ? __fdividef(1.0f, total) : 0.0f, g[8];
    widen_row(g, raw_gate);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * inverse * __fdividef(1.0f, 1.0f + __expf(-g[i]));
    store_bf16(reinterpret_cast<u8*>(out + (static_cast<long long>(row) * heads + head) * DIM), 0, lane, x);
}
