// One step of the recurrent Gated DeltaNet for more (value head, sequence) pairs than there are multiprocessors.
//
// A block takes every so-manieth pair, up to HELD at a time.  Their rows are prepared together, a warp a pair's q, k
// or v; then one state after the other is advanced, and the next pair's fetched into its place.  The first state is
// on the way to shared memory while the kernel before still runs, the second once rows have been asked for, the
// others once rows are there: what is asked for behind states, instructions too, waits for them.  The bits are those
// of delta_step.
//
// S need not be written in every step: what a token brings to it (k, u, the decay) may be noted down instead, a
// sixtieth of the bytes.  A step absorbs the notes of its lanes into the S that it has read, by the operations and in
// the order in which the steps before would have, so the bits are those of steps that write S.  Before anything else
// reads S, delta_catch_up must bring the notes in.
//
// The one thing a reader would get wrong: a thread copies exactly the elements of S that it reads, so no barrier
// stands between the two.
#include "delta_rows.cuh"
#include "pages.cuh"

constexpr int HELD = 3, HISTORY = TAPS - 1;
constexpr int NOTE = 2 * HEAD + 4;  // floats: k, u, the decay
constexpr int CREW = THREADS / 32 / HELD * 32;  // threads that fetch a pair's notes
constexpr int PIECES = PASSES * 4;  // of 16 bytes, that a thread has of a state
static_assert(4 * HELD + 1 <= THREADS / 32);

struct Workspace {
    float mixed[HELD][3][HEAD], o[HELD][HEAD];  // convolved q, k, v; outputs
    float decay[HELD], beta[HELD];
    int lag[HELD];
};

// Where lanes note down what is not in S yet: (lanes, layers, value heads, most, NOTE) floats.  lags[i] of sequence i:
// twice the notes that its lane has, and 1 if S is to be written; without lags S always is.
struct Notes {
    float* base;
    const int* lags;
    const int* lanes;
    long long lane_stride, layer_stride;  // floats
    int most, unused;

    __device__ __forceinline__ float* of(int sequence, int head) const {
        return base + lanes[sequence] * lane_stride + static_cast<long long>(head) * most * NOTE;
    }
};

// A value head of a sequence; the last one stands in for those behind it.
struct Pair {
    int head, slot, row, first, sequence;
    bool live;

    __device__ __forceinline__ Pair(const DeltaLayer& layer, const Sequences& of, const int* slots, int number, int total) : live(number < total) {
        sequence = min(number, total - 1) / layer.value_heads;
        head = min(number, total - 1) % layer.value_heads, slot = slots[sequence];
        row = of.offsets[sequence], first = of.frontiers[sequence];
    }
};

// Four channels of a pair's q, k or v: what is known before its row, and where the row is.
struct Channels {
    uint2 taps[TAPS], old[HISTORY];
    const bf16* x;
    bf16* column;  // of the ring, for the new row; null where another pair speaks for it

    __device__ __forceinline__ Channels(const DeltaLayer& layer, const DeltaRows& rows, const Images& images, const Pair& of, int part) {
        int share = layer.value_heads / layer.key_heads, channels = (2 * layer.key_heads + layer.value_heads) * HEAD;
        int at = (part == 2 ? of.head : of.head / share) * HEAD + threadIdx.x % 32 * 4;
        int index = part * layer.key_heads * HEAD + at;
        bf16* ring = ring_of(images, of.slot) + index;
#pragma unroll
        for (int j = 0; j < TAPS; j++) taps[j] = *reinterpret_cast<const uint2*>(layer.taps + j * channels + index);
#pragma unroll
        for (int j = 0; j < HISTORY; j++) old[j] = *reinterpret_cast<const uint2*>(ring + (of.first + j + 1) % TAPS * channels);
        x = (part == 0 ? rows.q : part == 1 ? rows.k : rows.v) + at + static_cast<long long>(of.row) * (part == 2 ? rows.value_stride : rows.key_stride);
        column = part == 2 || of.head % share == 0 ? ring + of.first % TAPS * channels : nullptr;
    }

    __device__ __forceinline__ float4 convolved(const uint2& now) const {
        float4 w[TAPS], v[TAPS];
#pragma unroll
        for (int j = 0; j < TAPS; j++) w[j] = wide4(taps[j]), v[j] = wide4(j < HISTORY ? old[min(j, HISTORY - 1)] : now);
        return make_float4(convolve({w[0].x, w[1].x, w[2].x, w[3].x}, v[0].x, v[1].x, v[2].x, v[3].x),
                           convolve({w[0].y, w[1].y, w[2].y, w[3].y}, v[0].y, v[1].y, v[2].y, v[3].y),
                           convolve({w[0].z, w[1].z, w[2].z, w[3].z}, v[0].z, v[1].z, v[2].z, v[3].z),
                           convolve({w[0].w, w[1].w, w[2].w, w[3].w}, v[0].w, v[1].w, v[2].w, v[3].w));
    }
};

// Start to copy this thread's pieces of a state.
__device__ __forceinline__ void fetch_state(float4* held, const float* state, bool live) {
    const float4* from = reinterpret_cast<const float4*>(state) + threadIdx.x / 8 * (HEAD / 4) + threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (live) copy16_async(held + (p * 4 + i) * THREADS + threadIdx.x, from + p * LANES * (HEAD / 4) + 8 * i, true);
    copies_commit();
}

__device__ __forceinline__ void take_state(float4 (&s)[PASSES][4], const float4* held) {
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[p][i] = held[(p * 4 + i) * THREADS + threadIdx.x];
}

__device__ __forceinline__ void absorb_note(float4 (&s)[PASSES][4], const float* note) {
    float u[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) u[p] = note[HEAD + p * LANES + threadIdx.x / 8];
    absorb_all(s, note, u, note[2 * HEAD]);
}

__device__ __forceinline__ void note_down(float* note, const float* k, const float (&u)[PASSES], float decay) {
    if (threadIdx.x < HEAD) note[threadIdx.x] = k[threadIdx.x];
    if (threadIdx.x == HEAD) note[2 * HEAD] = decay;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        if (threadIdx.x % 8 == 0) note[HEAD + p * LANES + threadIdx.x / 8] = u[p];
}

// out (sequences, value_heads * HEAD); z alike; one row a sequence.  Grid at most a block a multiprocessor, THREADS
// threads.  As in delta_step, what the pass before wrote is read before the predecessor has ended; but nothing is
// rehearsed, since most blocks begin only when the predecessor ends.
extern "C" __global__ void __launch_bounds__(THREADS, 1) delta_lanes(bf16* out, const bf16* z, DeltaRows rows,
                                                                    DeltaLayer layer, Images images, Sequences of,
                                                                    const int* slots, Notes notes) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(16) Workspace ws;
    release_successor();
    float4* held = reinterpret_cast<float4*>(memory);
    int total = of.count * layer.value_heads, hop = gridDim.x, stride = HELD * hop, start = blockIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* noted = reinterpret_cast<float*>(held + HELD * PIECES * THREADS);
    auto lag_of = [&](const Pair& pair) { return notes.lags ? notes.lags[pair.sequence] : 1; };
    auto fetch = [&](int i, int number) {
        Pair pair(layer, of, slots, number, total);
        fetch_state(held + i * PIECES * THREADS, state_of(images, pair.slot, pair.head), pair.live);
    };
#pragma unroll 1
    for (int base = start; base < total; base += stride) {
        if (int i = threadIdx.x / CREW; i < HELD) {  // notes of all, before any state
            Pair pair(layer, of, slots, base + i * hop, total);
            int pieces = pair.live ? lag_of(pair) / 2 * (NOTE / 4) : 0;
            const float* from = pieces ? notes.of(pair.sequence, pair.head) : nullptr;
#pragma unroll 1
            for (int t = threadIdx.x % CREW; t < pieces; t += CREW) copy16_async(noted + i * notes.most * NOTE + t * 4, from + t * 4, true);
        }
        copies_commit();
        bool mixes = warp < 3 * HELD, ends = !mixes && warp < 4 * HELD;
        int mine = mixes ? warp / 3 : ends ? warp - 3 * HELD : min(lane, HELD - 1), part = warp % 3;
        Pair pair(layer, of, slots, base + mine * hop, total);
        long long at = (static_cast<long long>(pair.row) * layer.value_heads + pair.head) * HEAD + lane * 4;
        uint2 norm = *reinterpret_cast<const uint2*>(layer.norm + lane * 4);
        Channels channels(layer, rows, images, pair, part);
        HeadGates gates(layer, pair.head);
        if (base == start) {
            fetch(0, start);
            await_predecessor();
        }
        uint2 now = make_uint2(0, 0);
        if (pair.live && (mixes || ends)) now = *reinterpret_cast<const uint2*>(mixes ? channels.x : z + at);
        if (base == start) fetch(1, start + hop);
        if (mixes) {
            if (pair.live && channels.column) *reinterpret_cast<uint2*>(channels.column) = now;
            float4 y = channels.convolved(now);
            float factor = part == 2 ? 1.0f : key_factor(y);
            if (part == 0) factor *= QUERY_FACTOR;
            reinterpret_cast<float4*>(ws.mixed[mine][part])[lane] = part == 2 ? y : y * factor;
        } else if (warp == 4 * HELD && lane < HELD) {
            int place = pair.row * rows.gate_stride + pair.head;
            bf16 a = __float2bfloat16(0.0f), b = a;
            if (pair.live) a = rows.a[place], b = rows.b[place];
            ws.decay[lane] = gates.decay(__bfloat162float(a)), ws.beta[lane] = beta_of(__bfloat162float(b));
            ws.lag[lane] = lag_of(pair);
        }
        if (base == start) copies_wait<2>();  // notes are there
        else copies_wait<0>();
        __syncthreads();
        if (base == start)
            for (int i = 2; i < HELD; i++) fetch(i, start + i * hop);
#pragma unroll 1
        for (int i = 0; i < HELD; i++) {
            float4 s[PASSES][4], *place = held + i * PIECES * THREADS;
            int number = base + i * hop;
            if (number >= total) break;
            copies_wait<HELD - 1>();
            take_state(s, place);
            Pair done(layer, of, slots, number, total);
            int lag = ws.lag[i];
            float u[PASSES];
#pragma unroll 1
            for (int n = 0; n < lag >> 1; n++) absorb_note(s, noted + (i * notes.most + n) * NOTE);
            advance<true>(s, ws.mixed[i], ws.decay[i], ws.beta[i], ws.o[i], u);
            if (lag & 1) save_state(s, state_of(images, done.slot, done.head));
            else note_down(notes.of(done.sequence, done.head) + (lag >> 1) * NOTE, ws.mixed[i][1], u, ws.decay[i]);
            fetch(i, number + stride);
        }
        __syncthreads();
        if (ends) {
            float4 y = gated_norm(reinterpret_cast<const float4*>(ws.o[mine])[lane], wide4(norm), wide4(now), layer.eps);
            if (pair.live) store4(out + at, y);
        }
    }
}

// Bring what lanes have noted down into S, in all layers: counts[i] notes of lanes[i] into slots[i].  Grid
// (value_heads, lanes, layers), THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS, 1) delta_catch_up(Notes notes, const int* slots, const int* counts, Images images,
                                                                     long long recurrent_stride) {
    release_successor();
    await_predecessor();
    int count = counts[blockIdx.y];
    if (count == 0) return;
    images.recurrent += blockIdx.z * recurrent_stride;
    float* state = state_of(images, slots[blockIdx.y], blockIdx.x);
    const float* note = notes.of(blockIdx.y, blockIdx.x) + blockIdx.z * notes.layer_stride;
    float4 s[PASSES][4];
    load_state(s, state);
    for (int n = 0; n < count; n++) absorb_note(s, note + n * NOTE);
    save_state(s, state);
}
