// bf16 rows of x on their way to shared memory in chunks of columns, first needed first: a warp that does nothing
// else fetches them, and working warps wait for a chunk when they come to it.  Where no team has more than one tile,
// rows need not stay: chunks take turns in a window that all teams of the block pass through together, which leaves
// the rings more room and lets a block take whole rows however many columns they have.
//
// A chunk holds ``1 << call.shift`` bytes of every row, one row after the other, their runs in the places of those of
// codes.  Chunks begin anew with each part.
//
// The one thing a reader would get wrong: a warp gives a chunk back when it comes to the next one, and never the last.
#pragma once
#include "linear_ring.cuh"

__device__ __forceinline__ int chunk_stride(const Call& call) { return 1 << call.shift; }

// How many teams of a block have a tile where none has two.
__device__ __forceinline__ int busy_teams(const Group& group) {
    int busy = 0;
    for (int tile = blockIdx.x; tile < group.tiles && busy < TEAMS; tile += group.blocks) busy++;
    return busy;
}

// By one thread, before all others begin.  Matrices of one format are one group.
__device__ __forceinline__ void begin_chunks(const Call& call, Control& control) {
    for (int c = 0; c < call.window; c++) phase_init(&control.x_full[c], 32 + ARRIVALS);
    for (int c = 0; c < call.window && call.streams; c++) phase_init(&control.x_empty[c], SPANS * ARRIVALS * busy_teams(call.groups[0]));
}

// Start to fetch ``width`` bytes of every row, which ``full`` tells of; the rest of a unit becomes zeros.
__device__ __forceinline__ void fetch_chunk(const Call& call, u8* to, const u8* from, int width, u64* full) {
    int lane = threadIdx.x % 32, stride = chunk_stride(call);
#pragma unroll 1
    for (int at = lane * 16; at < (width + 63) / 64 * 64; at += 512) {
        const u8* row = from + at;
        u8* place = to;
#pragma unroll
        for (int r = 0; r < ROWS; r++, row += call.columns * 2, place += stride)
            if (r < call.rows) copy16_async(place + spread<BF16>(at, r), row, at < width);
    }
    phase_arrive_after_copies(full);
    __syncwarp();
    if (WATCHED || lane == 0) phase_arrive(full);  // copies' arrivals order copies alone, not scales
}

// The warp that fetches.  It finds the rows' scales too, which the last chunk's barrier makes known, unless they
// are sums yet.
__device__ __forceinline__ void fetch_chunks(const Call& call, Share share, Control& control, u8* x) {
    int lane = threadIdx.x % 32, size = call.rows * chunk_stride(call), slot = 0, parity = 1;
    await_predecessor();
    bool tells = lane < call.rows && call.beginning != ROWS_LEFT;
    float scale = tells && call.beginning == ROWS_SCALED ? call.scale[lane] : 1.0f;
    for (int p = share.first; p < share.last; p++) {
        Part part = control.parts[p];
        const u8* from = static_cast<const u8*>(call.x) + part.begin * 64;
        int bytes = min(part.units * 64, call.columns * 2 - part.begin * 64);
#pragma unroll 1
        for (int c = 0; c < bytes; c += 1 << call.shift) {
            if (call.streams) phase_wait(&control.x_empty[slot], parity);
            if (p + 1 == share.last && c + (1 << call.shift) >= bytes && tells) control.scale[lane] = scale;
            fetch_chunk(call, x + slot * size, from + c, min(1 << call.shift, bytes - c), &control.x_full[slot]);
            if (++slot == call.window) slot = 0, parity ^= 1;
        }
    }
}

// Where a working warp is in x: bytes of a row of the part that have come; from such a byte to its place in shared
// memory; chunks before the part's first one in this lap; the chunk that the warp holds.
struct Chunks {
    int ready, shifted, base, held, parity;

    __device__ __forceinline__ void begin_part(bool first) {
        ready = 0;
        if (first) base = parity = 0, held = -1;
    }
    __device__ __forceinline__ void end_part(const Call& call, int bytes) { base += (bytes + (1 << call.shift) - 1) >> call.shift; }

    // Come to the chunk that has byte ``at``, if there is one: teams that share a tile may be past the end.
    __device__ __forceinline__ void come_to(const Call& call, Control& control, int at, int bytes) {
        int chunk = at >> call.shift, slot = base + chunk;
        if (chunk << call.shift >= bytes) return;
        if (call.streams && held >= 0 && (WATCHED || threadIdx.x % 32 == 0)) phase_arrive(&control.x_empty[held]);
        if (slot >= call.window) base -= call.window, slot -= call.window, parity ^= 1;
        phase_wait(&control.x_full[slot], parity);
        held = slot, ready = (chunk + 1) << call.shift;
        shifted = slot * call.rows * chunk_stride(call) - (chunk << call.shift);
    }
};
