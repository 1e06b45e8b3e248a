// Mixture of experts for rows that are taken one by one (decode, verification).
//
// experts_score norms a row, multiplies it by the router and takes its best experts (experts_route only takes
// them, after any product); experts_up multiplies it by gate and up of those
// experts and of the shared one; experts_down multiplies the products by their down matrices and adds
// everything up, best expert first, then the shared one, then the residual.  Weights stream through
// the stages of experts_stage.cuh; a row meets only its own experts, so its bits depend on nothing else.
//
// Which weights are read is known only after the router's kernel has ended, so experts_up fetches nothing before that.
// experts_down does: it begins when every block of experts_up has seen the router's kernel end.
//
// The one thing a reader would get wrong: experts_up may release its successor only after its own wait, since
// experts_down reads the choice and the residual before it waits.
//
// A spill is allowed: 17 warps of one block leave 120 registers; sm_120 wants a few more.
//: spills experts_down 96
//: spills experts_up 64
#include "bank.cuh"
#include "experts_stage.cuh"
#include "keys.cuh"

constexpr int PARTS = 4;      // warps that share a tile of experts_up, each a part of the columns
constexpr int UP_WARPS = 8;
constexpr int MOST = 16;      // experts of a row, at most
constexpr int AHEAD = 4;      // stages of a warp under way at once

struct Choice {
    int* experts;    // (rows, per_token), best first
    float* weights;  // (rows, per_token), NaN where a logit is not finite
    float* shared;   // (rows,): the shared expert's gate
    int count, per_token;
};

struct Best {
    u64 keys[8][128], some[8 * MOST], best[MOST];
};

// How many of keys[from], keys[from + step] ... below `count` are larger than `key`.
__device__ __forceinline__ int larger(const u64* keys, u64 key, int from, int step, int count) {
    int found = 0;
#pragma unroll 8
    for (int j = from; j < count; j += step) found += keys[j] > key;
    return found;
}

// Take the best experts of a row of logits; all 256 threads.  A key's place is the number of larger ones: first among
// those of its warp, then among the best of all warps.  Ends in the first warp's stores.
__device__ __forceinline__ void choose(const Choice& to, Best& work, const float* logits, float score, long long row) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = (to.count + 7) / 8, per_token = to.per_token;
    u64* mine = work.keys[warp];
    for (int n = lane; n < each; n += 32) {
        int e = warp * each + n;
        mine[n] = e < to.count ? key_of(__ldcg(logits + e), e) : 0;
    }
    if (lane < per_token) work.some[warp * per_token + lane] = work.best[lane] = 0;
    __syncwarp();
    for (int n = lane; n < each; n += 32) {
        int place = larger(mine, mine[n], 0, 1, each);
        if (mine[n] && place < per_token) work.some[warp * per_token + place] = mine[n];
    }
    __syncthreads();
    int all = 8 * per_token, pair = threadIdx.x / 2;
    u64 key = pair < all ? work.some[pair] : 0;
    int place = larger(work.some, key, threadIdx.x % 2, 2, all);
    place += __shfl_xor_sync(~0u, place, 1);
    if (key && place < per_token) work.best[place] = key;
    __syncthreads();
    if (warp) return;
    key = work.best[min(lane, MOST - 1)];
    bool sound = work.best[0] != BAD;
    float chance = sound ? expf(value_of(key) - value_of(work.best[0])) : 0.0f, total = 0;
    for (int j = 0; j < per_token; j++) total += __shfl_sync(~0u, chance, j);
    if (lane == 0) to.shared[row] = 1.0f / (1.0f + expf(-score));
    if (lane >= per_token) return;
    to.experts[row * per_token + lane] = sound ? id_of(key) : 0;
    to.weights[row * per_token + lane] = sound ? chance / total : __int_as_float(0x7fffffff);
}

// The factor of a row's RMSNorm, of this thread's sum of squares; all 256 threads.
__device__ __forceinline__ float norm_factor(float squares, int columns, float eps, float* sums) {
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < 8; w++) squares += sums[w];
    return rsqrtf(squares / static_cast<float>(columns) + eps);
}

// normed (rows, columns) = (1 + w) RMSNorm(x), and each row's choice.  Rows of logits hold count products of
// the router, rows of score one of the shared gate.  Grid rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_route(bf16* normed, Choice to, const float* x,
                                                               const bf16* norm, const float* logits,
                                                               int logits_stride, const float* score,
                                                               int score_stride, int columns, float eps) {
    __shared__ float sums[8];
    __shared__ Best work;
    release_successor();
    await_predecessor();
    long long row = blockIdx.x, at = row * columns;
    float squares = 0;
    for (int k = threadIdx.x; k < columns; k += 256) squares = fmaf(x[at + k], x[at + k], squares);
    float factor = norm_factor(squares, columns, eps, sums);
    for (int k = threadIdx.x; k < columns; k += 256)
        normed[at + k] = __float2bfloat16(x[at + k] * factor * (1.0f + __bfloat162float(norm[k])));
    choose(to, work, logits + row * logits_stride, score[row * score_stride], row);
}

constexpr int FIRST = 2048;  // columns whose weights are there before the predecessor has ended

__device__ __forceinline__ float dot8(const uint4& w, const float* n) {
    float4 a = reinterpret_cast<const float4*>(n)[0], b = reinterpret_cast<const float4*>(n)[1];
    float even = fmaf(bf16_float(w.x), a.x, fmaf(bf16_float(w.y), a.z, fmaf(bf16_float(w.z), b.x, bf16_float(w.w) * b.z)));
    float odd = fmaf(as_float(w.x & 0xffff0000u), a.y, as_float(w.y & 0xffff0000u) * a.w);
    return even + fmaf(as_float(w.z & 0xffff0000u), b.y, fmaf(as_float(w.w & 0xffff0000u), b.w, odd));
}

// Route in one launch, for bf16 routers: a warp a router row (row `count` is the shared gate's), and the block
// that comes last of a row chooses.  logits (rows, count + 1) and counters (rows,), zero before and after, are
// scratch.  columns % 8 == 0.  Grid (count / 8 + 1, rows), 256 threads, shared columns * 4 bytes.
extern "C" __global__ void __launch_bounds__(256) experts_score(bf16* normed, Choice to, const float* x,
                                                               const bf16* norm, const bf16* router,
                                                               const bf16* gate, float* logits, u32* counters,
                                                               int columns, float eps) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ float sums[8];
    __shared__ Best work;
    __shared__ bool last;
    float* n = reinterpret_cast<float*>(memory);
    int lane = threadIdx.x % 32, mine = blockIdx.x * 8 + threadIdx.x / 32;
    long long row = blockIdx.y;
    const bf16* weights = mine < to.count ? router + static_cast<long long>(mine) * columns : gate;
    uint4 held[FIRST / 256];
    float weight[FIRST / 256], v[FIRST / 256];
    release_successor();
#pragma unroll
    for (int i = 0; i < FIRST / 256; i++) {
        int k = i * 256 + lane * 8, own = i * 256 + threadIdx.x;
        held[i] = k < columns && mine <= to.count ? load_stream(weights + k) : make_uint4(0, 0, 0, 0);
        weight[i] = own < columns ? 1.0f + __bfloat162float(norm[own]) : 0.0f;
    }
    await_predecessor();
    x += row * columns;
    float squares = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < FIRST / 256; i++) v[i] = i * 256 + threadIdx.x < columns ? x[i * 256 + threadIdx.x] : 0.0f;
#pragma unroll
    for (int i = 0; i < FIRST / 256; i++) squares = fmaf(v[i], v[i], squares);
    for (int k = FIRST + threadIdx.x; k < columns; k += 256) squares = fmaf(x[k], x[k], squares);
    float factor = norm_factor(squares, columns, eps, sums);
    auto put = [&](int k, float value) {
        if (k >= columns) return;
        n[k] = value;
        if (blockIdx.x == 0) normed[row * columns + k] = __float2bfloat16(value);
    };
#pragma unroll
    for (int i = 0; i < FIRST / 256; i++) put(i * 256 + threadIdx.x, v[i] * factor * weight[i]);
    for (int k = FIRST + threadIdx.x; k < columns; k += 256) put(k, x[k] * factor * (1.0f + __bfloat162float(norm[k])));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < FIRST / 256; i++)
        if (i * 256 + lane * 8 < columns) sum += dot8(held[i], n + i * 256 + lane * 8);
    for (int k = FIRST + lane * 8; k < columns && mine <= to.count; k += 256) sum += dot8(load_stream(weights + k), n + k);
    sum = warp_sum(sum);
    logits += row * (to.count + 1);
    if (lane == 0 && mine <= to.count) logits[mine] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counters + row, 1u) == gridDim.x - 1;
        __threadfence();
        if (last) counters[row] = 0;
    }
    __syncthreads();
    if (!last) return;
    choose(to, work, logits, __ldcg(logits + to.count), row);
}

// One row of bf16 into shared memory in the order in which codes of format F come; zero beyond `columns`.
template <int F>
__device__ __forceinline__ void stage_row(u8* to, const bf16* x, int columns, int reach, int thread, int threads) {
    for (int c = thread * 8; c < reach; c += threads * 8) {
        uint4 v = c < columns ? __ldcg(reinterpret_cast<const uint4*>(x + c)) : make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(to + c * 2) = in_code_order<F>(v);
    }
}

// Start the copies of a warp's first stages.
template <int F>
__device__ __forceinline__ void fill(const Source<F>& source, u8* ring, int begin, int units, int columns) {
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (s < units) source.fetch(ring + s * Layout<F>::STAGE, begin + s, columns);
        copies_commit();
    }
}

// 16 rows times the row in x, over units begin .. begin + units - 1; the ring has been filled.  A ring of AHEAD
// stages is enough for as many units; more units need one stage more.
template <int F>
__device__ __forceinline__ float4 stream(const Source<F>& source, u8* ring, const u8* x, int begin, int units,
                                         int columns) {
    using L = Layout<F>;
    int lane = threadIdx.x % 32, slot = 0, spare = AHEAD;
    float sum[4] = {};
    const u8* mine = x + lane % 4 * L::X_PIECE + begin * L::COLUMNS * 2;
    for (int u = 0; u < units; u++) {
        copies_wait<AHEAD - 1>();
        __syncwarp();
        if (u + AHEAD < units) source.fetch(ring + spare * L::STAGE, begin + u + AHEAD, columns);
        copies_commit();
        multiply<F>(sum, ring + slot * L::STAGE, mine + u * L::COLUMNS * 2, lane);
        slot = slot == AHEAD ? 0 : slot + 1;
        spare = spare == AHEAD ? 0 : spare + 1;
    }
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

template <int F>
__device__ __forceinline__ int units_of(int columns) {
    return (columns + Layout<F>::COLUMNS - 1) / Layout<F>::COLUMNS;
}

struct Up {
    Bank gate, up, shared_gate, shared_up;
    const bf16* x;       // (rows, columns)
    const int* experts;  // (rows, per_token)
    bf16* out;           // (rows, stride): per_token * width products, then shared_width
    int columns, per_token, width, shared_width, stride;
    int blocks, room, unused;  // blocks of routed experts; bytes of a warp's ring
};

template <int F>
__device__ __forceinline__ void run_up(const Up& call, const Bank& gate, const Bank& up, int width, int tiles, int tile,
                                       bool routed, u8* memory) {
    using L = Layout<F>;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, span = warp % PARTS, row = tile * 8 % width;
    int all = units_of<F>(call.columns), begin = all * span / PARTS, units = all * (span + 1) / PARTS - begin;
    float4* meet = reinterpret_cast<float4*>(memory) + warp * 32;
    u8* x = memory + UP_WARPS * 512;
    u8* ring = x + all * L::COLUMNS * 2 + 64 + warp * call.room;
    bool mine = tile < tiles;
    int expert = routed && mine ? call.experts[blockIdx.y * call.per_token + tile * 8 / width] : 0;
    int a = expert * gate.step + row, b = expert * up.step + row;
    Source<F> source;
    if (mine) source.aim(gate.rows, a, up.rows, b, call.columns);
    else units = 0;
    fill<F>(source, ring, begin, units, call.columns);
    stage_row<F>(x, call.x + static_cast<long long>(blockIdx.y) * call.columns, call.columns, all * L::COLUMNS,
                 threadIdx.x, UP_WARPS * 32);
    __syncthreads();
    float4 sum = meet[lane] = stream<F>(source, ring, x, begin, units, call.columns);
    __syncthreads();
    if (span || lane % 4 || !mine) return;
    for (int p = 1; p < PARTS; p++) sum.x += meet[p * 32 + lane].x, sum.z += meet[p * 32 + lane].z;
    float g = sum.x * row_factor<F>(gate.rows, a + lane / 4), u = sum.z * row_factor<F>(up.rows, b + lane / 4);
    long long at = static_cast<long long>(blockIdx.y) * call.stride + (routed ? 0 : call.per_token * call.width);
    call.out[at + tile * 8 + lane / 4] = __float2bfloat16(g / (1.0f + __expf(-g)) * u);
}

// out = silu(gate_e x) * up_e x of each row's experts, then of the shared expert.  A tile is 8 rows of gate
// and of up.  Grid (blocks of routed tiles + blocks of shared tiles, rows), 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_up(const __grid_constant__ Up call) {
    extern __shared__ __align__(128) u8 memory[];
    await_predecessor();
    release_successor();  // not before: experts_down reads the choice at once
    bool routed = static_cast<int>(blockIdx.x) < call.blocks;
    int tile = (blockIdx.x - (routed ? 0 : call.blocks)) * (UP_WARPS / PARTS) + threadIdx.x / 32 / PARTS;
    int width = routed ? call.width : call.shared_width, tiles = (routed ? call.per_token : 1) * width / 8;
    const Bank &gate = routed ? call.gate : call.shared_gate, &up = routed ? call.up : call.shared_up;
    switch (gate.format) {
        case BF16: return run_up<BF16>(call, gate, up, width, tiles, tile, routed, memory);
        case FP8: return run_up<FP8>(call, gate, up, width, tiles, tile, routed, memory);
        case Q8: return run_up<Q8>(call, gate, up, width, tiles, tile, routed, memory);
        case Q4: return run_up<Q4>(call, gate, up, width, tiles, tile, routed, memory);
        case Q5: return run_up<Q5>(call, gate, up, width, tiles, tile, routed, memory);
        case Q6: return run_up<Q6>(call, gate, up, width, tiles, tile, routed, memory);
        case NVFP4: return run_up<NVFP4>(call, gate, up, width, tiles, tile, routed, memory);
    }
}

struct Down {
    Bank down, shared_down;
    const bf16* y;        // (rows, stride), as experts_up left it
    const int* experts;   // (rows, per_token)
    const float* weights; // (rows, per_token)
    const float* shared;  // (rows,)
    const float* residual;
    float* out;           // (rows, hidden) float32, like residual
    int hidden, per_token, width, shared_width, stride, room;  // room: bytes of a warp's share of memory
};

template <int F>
__device__ __forceinline__ void run_down(const Down& call, const Bank& bank, int width, bool routed, float* meet, u8* memory) {
    using L = Layout<F>;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.y * call.per_token + warp;
    int units = units_of<F>(width), row = (routed ? __ldcg(call.experts + at) : 0) * bank.step + blockIdx.x * 16;
    float weight = __ldcg(routed ? call.weights + at : call.shared + blockIdx.y);
    u8* ring = memory + units * L::COLUMNS * 2 + 64;
    Source<F> source;
    source.aim(bank.rows, row, bank.rows, row + 8, width);
    const bf16* y = call.y + static_cast<long long>(blockIdx.y) * call.stride + warp * call.width;
    fill<F>(source, ring, 0, units, width);
    await_predecessor();
    stage_row<F>(memory, y, width, units * L::COLUMNS, lane, 32);
    __syncwarp();
    float4 sum = stream<F>(source, ring, memory, 0, units, width);
    if (lane % 4) return;
    meet[lane / 4] = sum.x * row_factor<F>(bank.rows, row + lane / 4) * weight;
    meet[8 + lane / 4] = sum.z * row_factor<F>(bank.rows, row + 8 + lane / 4) * weight;
}

// out = residual + sum over experts of weight * down_e y_e + shared gate * down y.  A warp an expert, the
// last warp the shared one.  Grid (hidden / 16, rows), 32 * (per_token + 1) threads.
extern "C" __global__ void __launch_bounds__(544) experts_down(const __grid_constant__ Down call) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ float meet[MOST + 1][16];
    release_successor();
    int warp = threadIdx.x / 32;
    bool routed = warp < call.per_token;
    int width = routed ? call.width : call.shared_width;
    const Bank& bank = routed ? call.down : call.shared_down;
    long long place = static_cast<long long>(blockIdx.y) * call.hidden + blockIdx.x * 16 + threadIdx.x;
    float sum = 0, rest = threadIdx.x < 16 ? __ldcg(call.residual + place) : 0.0f;
    u8* mine = memory + warp * call.room;
    switch (bank.format) {
        case BF16: run_down<BF16>(call, bank, width, routed, meet[warp], mine); break;
        case FP8: run_down<FP8>(call, bank, width, routed, meet[warp], mine); break;
        case Q8: run_down<Q8>(call, bank, width, routed, meet[warp], mine); break;
        case Q4: run_down<Q4>(call, bank, width, routed, meet[warp], mine); break;
        case Q5: run_down<Q5>(call, bank, width, routed, meet[warp], mine); break;
        case Q6: run_down<Q6>(call, bank, width, routed, meet[warp], mine); break;
        case NVFP4: run_down<NVFP4>(call, bank, width, routed, meet[warp], mine); break;
    }
    __syncthreads();
    if (threadIdx.x >= 16) return;
    for (int j = 0; j <= call.per_token; j++) sum += meet[j][threadIdx.x];
    call.out[place] = rest + sum;
}
