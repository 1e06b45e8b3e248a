// y = x @ W^T for 1 to 8 rows of x, weights streamed once in the layout of the file.
//
// The grid is one block a multiprocessor.  A block has two or three teams of eight working warps, one that keeps
// the team's ring of stages full and, in most kernels, one that finishes its tiles.  A team takes tiles of 16
// weight rows (two halves of 8, which may lie in two matrices: gate and up); its warps take the units of every
// stage in turn, decode them to fragments and multiply on the tensor cores; x lies in shared memory as the codes
// want it.  The warps' sums meet in shared memory, part by part where there are many columns, and when x does not
// fit one block its parts are spread over blocks whose sums meet in global memory, always in ascending order.  So
// a row's bits depend on its weights and its x alone: not on the number of rows, the grid, or which block came last.
//
// The one thing a reader would get wrong: everything before await_predecessor() may touch weights only.
//: variants TEAMS 2 3
// What spills is kept from tile to tile; the loop over stages touches none of it.
//: spills linear 536
//: spills linear_bf16 8
//: spills linear_bf16_leaving 20
//: spills linear_fp8 8
//: spills linear_fp8_bf16 8
//: spills linear_q4 20
//: spills linear_q5 56
//: spills linear_q6 44
//: spills linear_q4_q5_bf16 232
#include "linear_chunks.cuh"
#include "linear_multiply.cuh"
#include "linear_rows.cuh"

// Sum the partial tiles of all warps in order of their columns.
template <int WARPS>
__device__ __forceinline__ float4 gather(const float4* meet, int lane) {
    float4 total = meet[lane];
#pragma unroll
    for (int w = 1; w < WARPS; w++) total = plus(total, meet[w * 32 + lane]);
    return total;
}

// Leave this part's sums; true for the last part of the tile, which then holds the sum of all.
__device__ __forceinline__ bool join_parts(float4& total, const Call& call, int tile, int part, int lane) {
    float4* place = call.partial + static_cast<long>(tile) * call.parts * 32 + lane;
    __stcg(place + part * 32, total);
    __syncwarp();
    u32 seen = 0;
    if (lane == 0) seen = count_release(call.counters + tile);
    seen = __shfl_sync(~0u, seen, 0);
    if (seen + 1 != static_cast<u32>(call.parts)) return false;
    total = __ldcg(place);
    for (int p = 1; p < call.parts; p++) total = plus(total, __ldcg(place + p * 32));
    if (lane == 0) call.counters[tile] = 0;
    return true;
}

__device__ __forceinline__ void put(const Call& call, const Matrix& m, int token, int row, float y) {
    long at = static_cast<long>(token) * m.stride + row;
    if (call.ending == STORE_BF16) static_cast<bf16*>(m.out)[at] = __float2bfloat16(y);
    if (call.ending == STORE_F32) static_cast<float*>(m.out)[at] = y;
    if (call.ending == ADD_RESIDUAL) static_cast<float*>(m.out)[at] = call.residual[at] + y;
}

// Scale a finished tile and store it, by a working warp, which has no registers to ask for anything early.  Lane
// (g, t) holds rows g and g + 8 of two tokens.
template <int F>
__device__ __forceinline__ void store(float4 total, const Call& call, const Place& at, const float* token_scale, int lane) {
    const Matrix &low = call.matrices[at.matrix[0]], &high = call.matrices[at.matrix[1]];
    int g = row_in_half<F>(lane / 4), a = at.row[0] + g, b = at.row[1] + g;
    bool has_a = static_cast<u32>(a) < low.rows, has_b = static_cast<u32>(b) < high.rows;
    float fa = has_a ? row_factor<F>(low, a) : 0, fb = has_b ? row_factor<F>(high, b) : 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = row_of<F>(lane, i);
        if (token >= call.rows) continue;
        float scale = token_scale[token];
        float ya = (i ? total.y : total.x) * fa * scale, yb = (i ? total.w : total.z) * fb * scale;
        if (call.ending == SWIGLU) {
            float silu = ya / (1.0f + __expf(-ya));
            if (has_a) static_cast<bf16*>(low.out)[static_cast<long>(token) * low.stride + a] = __float2bfloat16(silu * yb);
            continue;
        }
        if (has_a) put(call, low, token, a, ya);
        if (has_b) put(call, high, token, b, yb);
    }
}

// The same by a warp that does nothing else.  Made before the sums are there, so that row factors and residuals
// come meanwhile.  ``LEAVES``: adds a residual and leaves what the norm behind it needs.
template <int F, bool LEAVES>
struct Output {
    const Call& call;
    Place at;
    float factor[2], residual[2][2], weight[2];

    __device__ Output(const Call& call, const Group& group, int tile, int lane) : call(call), at(locate<F>(call, group, tile)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const Matrix& m = call.matrices[at.matrix[h]];
            int row = at.row[h] += row_in_half<F>(lane / 4);
            bool has = static_cast<u32>(row) < m.rows;
            factor[h] = has ? row_factor<F>(m, row) : 0;
            if (LEAVES && has) weight[h] = 1.0f + __bfloat162float(call.next[row]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if ((LEAVES || call.ending == ADD_RESIDUAL) && has && row_of<F>(lane, i) < call.rows)
                    residual[h][i] = call.residual[static_cast<long>(row_of<F>(lane, i)) * m.stride + row];
        }
    }
    __device__ __forceinline__ void store(float4 total, const float* token_scale, int lane, int tile, float* room) const {
        float kept[2][2] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token = row_of<F>(lane, i);
            if (token >= call.rows) continue;
            float scale = token_scale[token];
            float a = (i ? total.y : total.x) * factor[0] * scale, b = (i ? total.w : total.z) * factor[1] * scale;
            if (!LEAVES && call.ending == SWIGLU) a = a / (1.0f + __expf(-a)) * b;
            if (LEAVES) a = kept[0][i] = residual[0][i] + a, b = kept[1][i] = residual[1][i] + b;
            put(token, 0, i, a);
            if (LEAVES || call.ending != SWIGLU) put(token, 1, i, b);
        }
        if constexpr (LEAVES) leave_squares(kept, lane, tile, room);
    }
    __device__ __forceinline__ void put(int token, int h, int i, float y) const {
        const Matrix& m = call.matrices[at.matrix[h]];
        if (static_cast<u32>(at.row[h]) >= m.rows) return;
        long to = static_cast<long>(token) * m.stride + at.row[h];
        if constexpr (LEAVES) {
            static_cast<float*>(m.out)[to] = y, call.weighted[to] = __float2bfloat16(y * weight[h]);
            return;
        }
        if (call.ending == STORE_BF16 || call.ending == SWIGLU) static_cast<bf16*>(m.out)[to] = __float2bfloat16(y);
        if (call.ending == STORE_F32) static_cast<float*>(m.out)[to] = y;
        if (call.ending == ADD_RESIDUAL) static_cast<float*>(m.out)[to] = residual[h][i] + y;
    }
    // The squares of every row's 16 columns, in the order of norm_rows<true>: lane t * 4 + h * 2 + i finds those of half h
    // and the lane's token i.  ``room`` holds 128 numbers of the warp's own.
    __device__ __forceinline__ void leave_squares(const float (&kept)[2][2], int lane, int tile, float* room) const {
        static_assert(!LEAVES || F == BF16, "lane (g, t) has rows g and g + 8 of tokens 2 t and 2 t + 1");
        reinterpret_cast<float4*>(room)[lane] = make_float4(kept[0][0], kept[0][1], kept[1][0], kept[1][1]);
        __syncwarp();
        float squares = 0;
#pragma unroll
        for (int g = 0; g < 8; g++) squares = fmaf(room[g * 16 + lane % 16], room[g * 16 + lane % 16], squares);
        __syncwarp();
        squares += __shfl_xor_sync(~0u, squares, 2);
        int token = lane / 4 * 2 + lane % 2;
        if (lane < 16 && lane % 4 < 2 && token < call.rows) call.squares[token * call.matrices[0].tiles + tile] = squares;
    }
};

// Add what all warps have left of a part to the earlier parts; true once ``total`` is the sum of the tile.
__device__ __forceinline__ bool add_up(float4& total, const Call& call, int base, Share share, const float4* here, float4* carry, u64* gathered, int part, int tile) {
    int lane = threadIdx.x % 32;
    total = call.joint ? gather<TEAMS * SPANS>(here, lane) : gather<SPANS>(here, lane);
    phase_arrive(gathered);
    if (part > share.first) total = plus(carry[lane], total);
    if (part + 1 == share.last) return call.split == 1 || join_parts(total, call, base + tile, part, lane);
    carry[lane] = total;
    return false;
}

// The rows' scales from what another launch left, by the warps that finish tiles while there are none to finish.
__device__ __forceinline__ void find_scales(const Call& call, Control& control, int owner, int owners) {
#pragma unroll 1
    for (int row = owner; row < call.rows; row += owners) {
        float scale = inverse_rms_of_tiles(call.scale + row * (call.columns / 16), call.columns, call.eps);
        if (threadIdx.x % 32 == 0) control.scale[row] = scale;
    }
    team_barrier(13, owners * 32);
}

// The warp that finishes a team's tiles, where registers leave room for it.
template <int F, int WAY>
__device__ __forceinline__ void finish(const Call& call, const Group& group, Share share, const float4* meet, float4* carry, Control& control, int owner) {
    int lane = threadIdx.x % 32;
    await_predecessor();
    if (WAY == TILES_IN_CHUNKS && call.beginning == ROWS_LEFT) find_scales(call, control, owner, TEAMS / share.teams);
    for (int n = 0, round = 0;; n++) {
        phase_wait(&control.begun[owner][n & 1], n / 2 & 1);
        int tile = control.under_way[owner][n & 1];
        if (tile >= group.tiles) return;
        Output<F, WAY == TILES_LEAVING> output(call, group, tile, lane);
        for (int p = share.first; p < share.last; p++, round++) {
            int side = round & 1;
            await_sums(control, owner, round, (SPANS * share.teams + 1) * 32);
            float4 total;
            if (add_up(total, call, group.base, share, meet + side % SIDES<WAY> * SIDE, carry, &control.gathered[owner][side], p, tile))
                output.store(total, control.scale, lane, tile, reinterpret_cast<float*>(carry));
        }
    }
}

// Fill the team's ring with the stages of one tile.
template <int F>
struct Filling {
    const Call& call;
    const Group& group;
    Control& control;
    Share share;
    u8* ring;
    int team, slot, parity, number;
    Producer<F> producer;

    __device__ __forceinline__ void next() {
        if (++slot == call.stages) slot = 0, parity ^= 1;
    }
    // By an arrival of its own, because copies' arrivals order copies alone.  A ring holds fewer tiles than there are places.
    __device__ __forceinline__ void say(int tile) {
        phase_wait(&control.empty[team][slot], parity);
        if (threadIdx.x % 32 == 0) {
            control.tile[team][number % MAX_STAGES] = tile;
            phase_arrive(&control.named[team][number % MAX_STAGES]);
        }
        number++;
    }
    __device__ __forceinline__ void tile(int tile) {
        say(tile);
        for (int p = share.first; p < share.last; p++) {
            Part part = control.parts[p];
            producer.aim(group, tile, part, share);
            for (int s = 0, steps = share.steps(part.units); s < steps; s++, next()) {
                phase_wait(&control.empty[team][slot], parity);
                producer.fill(ring + slot * Layout<F>::STAGE, share.unit(s));
                phase_arrive_after_copies(&control.full[team][slot]);
            }
        }
    }
};

// Tiles of formats at the pace of memory belong to a block: its teams take the first by number, then whichever is next,
// so that none rests while another has two to go.  Where products set the pace, blocks that began late matter
// more, and tiles belong to all teams of the launch.
template <int F>
constexpr bool OWN_TILES = F == BF16 || F == FP8;

// A team's tiles.  Claims among all teams are made two tiles ahead, because an answer waits behind the weights that
// are on their way.  Teams that share tiles go by number alone.
template <int F>
__device__ __forceinline__ void produce(const Call& call, const Group& group, Share share, u8* ring, Control& control, int team, int block, u32* claims) {
    Filling<F> filling{call, group, control, share, ring, team, 0, 1, 0, Producer<F>(call)};
    int lane = threadIdx.x % 32, width = group.blocks / call.split, teams = call.joint ? width : TEAMS * width;
    int column = block / call.split, tile = column + (call.joint ? 0 : width * team);
    u32 next = 0, after = 0;
    bool asks = lane == 0 && !call.joint && !OWN_TILES<F>;
    if (asks) next = count_relaxed(claims);
    while (tile < group.tiles) {
        if (asks) after = count_relaxed(claims);
        filling.tile(tile);
        if (call.joint) tile += teams;
        else if (OWN_TILES<F>) tile = column + width * __shfl_sync(~0u, lane == 0 ? atomicAdd(&control.taken, 1u) : 0, 0);
        else tile = teams + __shfl_sync(~0u, next, 0);
        next = after;
    }
    filling.say(group.tiles + next);  // that there are no more, once the last claim has been answered
    if (asks && count_relaxed(claims + 1) + 1 == static_cast<u32>(teams)) claims[0] = claims[1] = 0;
    await_predecessor();
}

// Until the sums of a round, if there was such a round, have been read.
__device__ __forceinline__ void await_gathered(Control& control, int owner, int round) {
    if (round >= 0) phase_wait(&control.gathered[owner][round & 1], round / 2 & 1);
}

// Tell the warp that finishes which tile is next, or that there are no more.
__device__ __forceinline__ void announce(Control& control, int owner, int n, int round, int tile) {
    await_gathered(control, owner, round - 2);  // so it has read the announcement before the last
    if (threadIdx.x % 32 == 0) {
        control.under_way[owner][n & 1] = tile;
        phase_arrive(&control.begun[owner][n & 1]);
    }
}

// Where a working warp is in its team's ring; it begins at the lane's own codes.
template <int F>
struct Cursor {
    const u8* ring;
    u64* full;
    int slot, stages;
    u32 parity;
    __device__ Cursor(const u8* ring, u64* full, int stages) : ring(ring), full(full), slot(0), stages(stages), parity(0) {}
    __device__ __forceinline__ const u8* await() const {
        phase_wait(full + slot, parity);
        return ring + slot * Layout<F>::STAGE;
    }
    // Tell the copying warp that this one has read its unit of the stage.
    __device__ __forceinline__ void leave(int lane) {
        __syncwarp();
        if (WATCHED || lane == 0) phase_arrive(full + slot + TEAMS * MAX_STAGES);
        if (++slot == stages) slot = 0, parity ^= 1;
    }
};

// All tiles of one team, or of the teams that share them, for weights of one format.
template <int F, bool APART, int WAY>
__device__ __forceinline__ void run(const Call& call, const Group& group, u32* claims, u8* shared, Control& control) {
    using L = Layout<F>;
    constexpr int UNIT = L::COLUMNS * 2;  // bytes of x
    constexpr bool CHUNKS = WAY > TILES_AT_ONCE;
    int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), block = blockIdx.x - group.first_block;
    bool worker = warp < TEAMS * SPANS;
    int team = worker ? warp / SPANS : warp % TEAMS, span = warp % SPANS, number = block % call.split;
    Share share(call, number, team);
    Part all = share.all(control.parts);
    int columns = all.units * L::COLUMNS, stages = call.stages, hop = SPANS * share.teams * UNIT, crew = SPANS * share.teams, place = share.team * SPANS + span, owner = team - share.team;

    float4* meet = reinterpret_cast<float4*>(shared) + owner * SPANS * 32;
    float4* carry = reinterpret_cast<float4*>(shared) + SIDES<WAY> * SIDE + owner * 32;
    u8* ring = shared + (SIDES<WAY> * SIDE + TEAMS * 32) * 16 + team * stages * L::STAGE;
    float* scales = reinterpret_cast<float*>(shared + (SIDES<WAY> * SIDE + TEAMS * 32) * 16 + TEAMS * stages * L::STAGE);
    u8* x = reinterpret_cast<u8*>(scales) + columns / 64 * L::X_SCALES;
    if (CHUNKS && warp == TEAMS * (SPANS + 2)) return fetch_chunks(call, share, control, x);
    if (APART && warp >= TEAMS * (SPANS + 1)) {
        if (WATCHED && !CHUNKS) await_rows<APART>();
        if (team == owner) finish<F, WAY>(call, group, share, meet, carry, control, owner);
        return;
    }
    if (!worker) return produce<F>(call, group, share, ring, control, team, block, claims + number * 2);
    if constexpr (!CHUNKS) {
        await_predecessor();
        stage_rows<F, APART, WAY == TILES_AT_ONCE>(call, control, x, scales, all.begin * L::COLUMNS, columns);
    }
    Chunks chunks{};
    Operand<F, CHUNKS> mine(x, scales, call.rows, CHUNKS ? chunk_stride(call) : L::x_stride(columns), span, lane);
    Cursor<F> cursor(ring + mine.codes, control.full[team], stages);
    int round = 0;
    for (int n = 0, turn = 0;; n++, turn = turn + 1 == crew ? 0 : turn + 1) {
        phase_wait(&control.named[team][n % MAX_STAGES], n / MAX_STAGES & 1);
        int tile = control.tile[team][n % MAX_STAGES];
        if (APART && place == 0) announce(control, owner, n, round, tile);
        if (tile >= group.tiles) return;
        for (int p = share.first; p < share.last; p++, round++) {
            Part part = control.parts[p];
            float sum[4] = {};
            if (CHUNKS) chunks.begin_part(p == share.first);
            int begin = CHUNKS ? 0 : part.begin - all.begin, at = (begin + place) * UNIT, end = (begin + part.units) * UNIT;
            for (; at < end; at += hop) {
                const u8* stage = cursor.await();
                if (CHUNKS && at >= chunks.ready) chunks.come_to(call, control, at, end);
                multiply<F>(sum, stage, mine, CHUNKS ? at + chunks.shifted : at);
                cursor.leave(lane);
            }
            if (at - place * UNIT < end) {  // a stage that holds units of others alone
                cursor.await();
                if (CHUNKS && at >= chunks.ready) chunks.come_to(call, control, at, end);
                cursor.leave(lane);
            }
            if (CHUNKS) chunks.end_part(call, end);
            await_gathered(control, owner, round - SIDES<WAY>);
            int side = round & 1;
            float4 total, *here = meet + side % SIDES<WAY> * SIDE;
            here[place * 32 + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            if (WATCHED || APART || place != turn) bring_sums(control, owner, round, (crew + APART) * 32);
            if (APART || place != turn) continue;
            await_sums(control, owner, round, crew * 32);
            if (add_up(total, call, group.base, share, here, carry, &control.gathered[owner][side], p, tile))
                store<F>(total, call, locate<F>(call, group, tile), control.scale, lane);
            __syncwarp();
        }
    }
}

// One block's share of a launch whose matrices have these formats; ``APART``: with warps that finish tiles; ``WAY``:
// of x, which comes in chunks by a warp of its own.
template <bool APART, int WAY, int... FORMATS>
__device__ __forceinline__ void stream(const Call& call) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Control control;
    release_successor();
    int g = 0, part = static_cast<int>(threadIdx.x) - 32;
    while (blockIdx.x >= call.groups[g].first_block + call.groups[g].blocks) g++;
    const Group& group = call.groups[g];
    if (threadIdx.x == 0) {  // one after the other: what several lanes begin at once takes turns, and longer ones
        if (WAY > TILES_AT_ONCE) begin_chunks(call, control);
        control.taken = TEAMS;
        for (int team = 0; team < TEAMS; team++) {
            for (int s = 0; s < MAX_STAGES; s++) {
                phase_init(&control.named[team][s], 1);
                phase_init(&control.full[team][s], 32);
                phase_init(&control.empty[team][s], SPANS * ARRIVALS);
            }
            for (int side = 0; side < 2; side++) {
                phase_init(&control.begun[team][side], 1);
                if (WATCHED) phase_init(&control.met[team][side], SPANS * (call.joint ? TEAMS : 1) * 32);
                phase_init(&control.gathered[team][side], 32);
            }
        }
    }
    if (part >= 0 && part < call.parts) {
        int unit = group.format == BF16 ? 5 : group.format >= Q4 ? 7 : 6;  // log2 of its columns
        int all = (call.columns + (1 << unit) - 1) >> unit, begin = all * part / call.parts;
        control.parts[part] = {begin, all * (part + 1) / call.parts - begin};
    }
    __syncthreads();
    u32* claims = call.claims + g * MAX_PARTS * 2;
    ((group.format == FORMATS ? run<FORMATS, APART, WAY>(call, group, claims, shared, control) : void()), ...);
}

// One kernel for every set of formats that a model's launches have, besides that for any: a sixth of its
// instructions, and registers for what they would spill.  Those of 4, 5 and 6 bits have none left for warps that
// finish tiles: one of a team's working warps after the other does.
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear(const __grid_constant__ Call call) { stream<false, AT_ONCE, BF16, FP8, Q8, Q4, Q5, Q6, NVFP4>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_bf16(const __grid_constant__ Call call) { stream<true, TILES_AT_ONCE, BF16>(call); }
extern "C" __global__ void __launch_bounds__(FETCHING, 1) linear_bf16_chunks(const __grid_constant__ Call call) { stream<true, TILES_IN_CHUNKS, BF16>(call); }
extern "C" __global__ void __launch_bounds__(FETCHING, 1) linear_bf16_leaving(const __grid_constant__ Call call) { stream<true, TILES_LEAVING, BF16>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_fp8(const __grid_constant__ Call call) { stream<true, AT_ONCE, FP8>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_q8(const __grid_constant__ Call call) { stream<true, AT_ONCE, Q8>(call); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_q4(const __grid_constant__ Call call) { stream<false, AT_ONCE, Q4>(call); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_q5(const __grid_constant__ Call call) { stream<false, AT_ONCE, Q5>(call); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_q6(const __grid_constant__ Call call) { stream<false, AT_ONCE, Q6>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_nvfp4(const __grid_constant__ Call call) { stream<true, AT_ONCE, NVFP4>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_fp8_bf16(const __grid_constant__ Call call) { stream<true, AT_ONCE, FP8, BF16>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_q8_bf16(const __grid_constant__ Call call) { stream<true, AT_ONCE, Q8, BF16>(call); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_q4_q5_bf16(const __grid_constant__ Call call) { stream<false, AT_ONCE, Q4, Q5, BF16>(call); }
extern "C" __global__ void __launch_bounds__(FINISHING, 1) linear_nvfp4_bf16(const __grid_constant__ Call call) { stream<true, AT_ONCE, NVFP4, BF16>(call); }

// x (1 + norm) in bf16 and 1 / rms of each row, as the fused prologue computes them, bit for bit.
template <bool TILES>
__device__ __forceinline__ void scale_row(const float* x, const bf16* norm, bf16* out, float* scale, int columns, float eps) {
    __shared__ float squares[WORKERS / 32];
    release_successor();
    await_predecessor();
    const float* row = x + static_cast<long>(blockIdx.x) * columns;
    float mine = 0;
    for (int c = threadIdx.x * 8; (TILES ? c / 256 * 256 : c) < columns; c += WORKERS * 8) {
        float eight = 0;
        if (!TILES || c < columns)
            *reinterpret_cast<uint4*>(out + static_cast<long>(blockIdx.x) * columns + c) = normed(row + c, norm + c, TILES ? eight : mine);
        if constexpr (TILES) mine += eight + __shfl_xor_sync(~0u, eight, 1);
    }
    mine = TILES ? sum_of_tiles(mine) : warp_sum(mine);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float found = inverse_rms(squares, columns, eps);
    if (threadIdx.x == 0) scale[blockIdx.x] = found;
}

extern "C" __global__ void __launch_bounds__(WORKERS) scale_rows(const float* x, const bf16* norm, bf16* out, float* scale, int columns, float eps) { scale_row<false>(x, norm, out, scale, columns, eps); }
// For launches of bf16 alone.
extern "C" __global__ void __launch_bounds__(WORKERS) scale_rows_by_tiles(const float* x, const bf16* norm, bf16* out, float* scale, int columns, float eps) { scale_row<true>(x, norm, out, scale, columns, eps); }
