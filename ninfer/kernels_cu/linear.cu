// y = x @ W^T for 1 to 16 rows of x, weights streamed once in the layout of the file.
//
// The grid is one block a multiprocessor.  A block has two teams of eight warps; a team takes tiles of
// 16 weight rows (two halves of 8, which may lie in two matrices: gate and up), and its warps
// split the columns.  Each warp keeps a ring of cp.async stages in flight that runs on across tiles, decodes
// its pieces to bf16 fragments and multiplies on the tensor cores; x lies in shared memory in code order.
// Warps' sums meet in shared memory, and columns beyond MAX_PART are split over blocks whose sums meet in
// global memory, always in ascending order.  So a row's bits depend on its weights and its x alone: not on
// the number of rows, the grid, or which block came last.
//
// The one thing a reader would get wrong: everything before await_predecessor() may touch weights only.
//
//: variants TILES 1 2
#include "linear_stage.cuh"

// Sum the warps' partial tiles in order of their columns.
template <int NT>
__device__ __forceinline__ void gather(float4 (&total)[NT], const float4* meet, int lane) {
#pragma unroll
    for (int t = 0; t < NT; t++) {
        total[t] = meet[t * 32 + lane];
        for (int w = 1; w < SPANS; w++) total[t] = plus(total[t], meet[(w * NT + t) * 32 + lane]);
    }
}

// Leave this part's sums; true for the last part of the tile, which then holds the sum of all.
template <int NT>
__device__ __forceinline__ bool join_parts(float4 (&total)[NT], const Call& call, int tile, int part, int lane) {
    float4* place = call.partial + static_cast<long>(tile) * call.parts * NT * 32 + lane;
#pragma unroll
    for (int t = 0; t < NT; t++) __stcg(place + (part * NT + t) * 32, total[t]);
    __threadfence();
    __syncwarp();
    u32 seen = 0;
    if (lane == 0) seen = atomicAdd(call.counters + tile, 1u);
    seen = __shfl_sync(~0u, seen, 0);
    if (seen + 1 != static_cast<u32>(call.parts)) return false;
    __threadfence();
#pragma unroll
    for (int t = 0; t < NT; t++) {
        total[t] = __ldcg(place + t * 32);
        for (int p = 1; p < call.parts; p++) total[t] = plus(total[t], __ldcg(place + (p * NT + t) * 32));
    }
    if (lane == 0) call.counters[tile] = 0;
    return true;
}

__device__ __forceinline__ void put(const Call& call, const Matrix& m, int token, int row, float y) {
    long at = static_cast<long>(token) * m.stride + row;
    if (call.ending == STORE_BF16) static_cast<bf16*>(m.out)[at] = __float2bfloat16(y);
    if (call.ending == STORE_F32) static_cast<float*>(m.out)[at] = y;
    if (call.ending == ADD_RESIDUAL) static_cast<float*>(m.out)[at] = call.residual[at] + y;
}

// Scale a finished tile and store it.  Lane (g, t) holds rows g and g + 8 of tokens 2t and 2t + 1.
template <int F, int NT>
__device__ __forceinline__ void store(const float4 (&total)[NT], const Call& call, const Place& at, const float* token_scale, int lane) {
    const Matrix &low = call.matrices[at.matrix[0]], &high = call.matrices[at.matrix[1]];
    int g = lane / 4, a = at.row[0] + g, b = at.row[1] + g;
    float fa = a < low.rows ? row_factor<F>(low, a) : 0, fb = b < high.rows ? row_factor<F>(high, b) : 0;
#pragma unroll
    for (int t = 0; t < NT; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token = t * 8 + lane % 4 * 2 + i;
            if (token >= call.rows) continue;
            float scale = token_scale[token];
            float ya = (i ? total[t].y : total[t].x) * fa * scale, yb = (i ? total[t].w : total[t].z) * fb * scale;
            if (call.ending == SWIGLU) {
                float silu = ya / (1.0f + __expf(-ya));
                if (a < low.rows) static_cast<bf16*>(low.out)[static_cast<long>(token) * low.stride + a] = __float2bfloat16(silu * yb);
                continue;
            }
            if (a < low.rows) put(call, low, token, a, ya);
            if (b < high.rows) put(call, high, token, b, yb);
        }
    }
}

// All tiles of one team, for weights of one format.
template <int F, int NT>
__device__ __forceinline__ void run(const Call& call, const Group& group, u8* shared, Tokens* tokens) {
    using L = Layout<F>;
    constexpr int STAGES = NT == 1 ? L::STAGES : 2;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / SPANS, span = warp % SPANS;
    int block = blockIdx.x - group.first_block, part = block % call.parts;
    int width = group.blocks / call.parts;
    Feed<F> feed(call, group, part, span, block / call.parts + width * team, 2 * width);

    float4* meet = reinterpret_cast<float4*>(shared) + team * SPANS * NT * 32;
    u8* x = shared + TEAMS * SPANS * NT * 512;
    int x_stride = L::x_stride(feed.part_columns());
    u8* ring = x + x_stride * call.rows + warp * STAGES * L::STAGE;
    for (int s = 0; s < STAGES - 1; s++) feed.issue(ring + s * L::STAGE);
    await_predecessor();
    stage_tokens<F>(call, *tokens, x, x_stride, feed.part_begin() * L::COLUMNS, feed.part_columns());

    const u8* mine[NT];
#pragma unroll
    for (int t = 0; t < NT; t++)
        mine[t] = x + min(t * 8 + lane / 4, call.rows - 1) * x_stride + lane % 4 * L::X_PIECE +
                  (feed.begin - feed.part_begin()) * L::COLUMNS * 2;
    int slot = 0, spare = STAGES - 1, turn = 0;
    for (int tile = feed.first; tile < group.tiles; tile += feed.step, turn = (turn + 1) % SPANS) {
        float sum[NT][4] = {};
        for (int u = 0; u < feed.units; u++) {
            copies_wait<STAGES - 2>();
            __syncwarp();
            feed.issue(ring + spare * L::STAGE);
            multiply<F, NT>(sum, ring + slot * L::STAGE, mine, u * L::COLUMNS * 2, lane);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            spare = spare + 1 == STAGES ? 0 : spare + 1;
        }
        team_barrier(1 + team, SPANS * 32);  // the previous tile has been gathered
#pragma unroll
        for (int t = 0; t < NT; t++)
            meet[(span * NT + t) * 32 + lane] = make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
        team_barrier(1 + team, SPANS * 32);
        if (span != turn) continue;
        float4 total[NT];
        gather<NT>(total, meet, lane);
        if (call.parts > 1 && !join_parts<NT>(total, call, group.base + tile, part, lane)) continue;
        store<F, NT>(total, call, locate(call, group, tile), tokens->scale, lane);
    }
}

extern "C" __global__ void __launch_bounds__(512, 3 - TILES) linear(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Tokens tokens;
    release_successor();
    int g = 0;
    while (blockIdx.x >= call.groups[g].first_block + call.groups[g].blocks) g++;
    const Group& group = call.groups[g];
    switch (group.format) {
        case BF16: return run<BF16, TILES>(call, group, shared, &tokens);
        case FP8: return run<FP8, TILES>(call, group, shared, &tokens);
        case Q8: return run<Q8, TILES>(call, group, shared, &tokens);
        case Q4: return run<Q4, TILES>(call, group, shared, &tokens);
        case Q5: return run<Q5, TILES>(call, group, shared, &tokens);
        case Q6: return run<Q6, TILES>(call, group, shared, &tokens);
        case NVFP4: return run<NVFP4, TILES>(call, group, shared, &tokens);
    }
}

// x (1 + norm) in bf16 and 1 / rms of each row, as the fused prologue computes them, bit for bit.
extern "C" __global__ void __launch_bounds__(512, 2) scale_rows(const float* x, const bf16* norm, bf16* out, float* scale, int columns, float eps) {
    __shared__ float squares[16];
    release_successor();
    await_predecessor();
    const float* row = x + static_cast<long>(blockIdx.x) * columns;
    float mine = 0;
    for (int c = threadIdx.x * 8; c < columns; c += THREADS * 8)
        *reinterpret_cast<uint4*>(out + static_cast<long>(blockIdx.x) * columns + c) = normed(row + c, norm + c, mine);
    mine = warp_sum(mine);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) scale[blockIdx.x] = inverse_rms(squares, columns, eps);
}
