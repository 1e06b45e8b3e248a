// The recurrent Gated DeltaNet: one token after another, a block a (value head, sequence).
//
// delta_step serves decode (one row a sequence; the slot advances) and verification (several rows;
// the slot stays, and the raw rows go to the lane's record).  delta_fold advances slots over the first
// rows of their records, all layers at once; delta_ring then moves the convolution history.  A fold does
// the additions of as many decode steps in the same order, so it ends in the same bits.
#include "delta.cuh"
#include "pages.cuh"

constexpr int THREADS = 256;        // with at most 128 registers: half of a multiprocessor
constexpr int LANES = THREADS / 8;  // rows of S in hand at once
constexpr int PASSES = HEAD / LANES;

// Where verification leaves raw rows: (lanes, layers, rows, width), width = channels + 2 value heads.
struct Record {
    bf16* base;
    int* frontiers;  // by lane: tokens before its recorded rows
    const int* lanes;
    long long lane_stride, layer_stride;  // elements
    int width, write;
};

struct Workspace {
    float q[HEAD], k[HEAD], v[HEAD], o[HEAD];
};

// One of the 3 * HEAD convolution channels of a value head.
struct Channel {
    const bf16* x;      // its column in the first row
    int stride, index;  // elements between rows; channel number in q, k, v order
    float* out;
    bool owner;         // whether this block speaks for the channel (key heads are shared by blocks)

    __device__ __forceinline__ Channel(const DeltaLayer& layer, const DeltaRows& rows, int head, Workspace& ws, int which) {
        int share = layer.value_heads / layer.key_heads, key = head / share, at = which % HEAD;
        int width = layer.key_heads * HEAD;
        if (which < 2 * HEAD) {
            x = (which < HEAD ? rows.q : rows.k) + key * HEAD + at;
            index = (which < HEAD ? 0 : width) + key * HEAD + at;
            out = (which < HEAD ? ws.q : ws.k) + at;
            stride = rows.key_stride;
            owner = head % share == 0;
        } else {
            x = rows.v + head * HEAD + at;
            index = 2 * width + head * HEAD + at;
            out = ws.v + at;
            stride = rows.value_stride;
            owner = true;
        }
    }

    // Convolve row `begin` + i; columns before `begin` are in the ring, where `begin` has index `first`.
    __device__ __forceinline__ bf16 step(const DeltaLayer& layer, const bf16* ring, int channels, int begin, int first,
                                         int i) const {
        float w[TAPS], past[TAPS];
        bf16 raw;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            int back = i + j - (TAPS - 1);
            raw = back >= 0 ? x[static_cast<long long>(begin + back) * stride]
                            : ring[((first + back + TAPS) % TAPS) * channels + index];
            w[j] = __bfloat162float(layer.taps[j * channels + index]);
            past[j] = __bfloat162float(raw);
        }
        *out = convolve(w, past[0], past[1], past[2], past[3]);
        return raw;
    }
};

__device__ __forceinline__ void load_state(float4 (&s)[PASSES][4], const float* state) {
    int row = threadIdx.x / 8, lane = threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[p][i] = reinterpret_cast<const float4*>(state + (p * LANES + row) * HEAD)[lane + 8 * i];
}

__device__ __forceinline__ void save_state(const float4 (&s)[PASSES][4], float* state) {
    int row = threadIdx.x / 8, lane = threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            reinterpret_cast<float4*>(state + (p * LANES + row) * HEAD)[lane + 8 * i] = s[p][i];
}

// The dot products of every row in hand with a vector in shared memory, as dot() and row_sum() of delta.cuh.
__device__ __forceinline__ void dots(float (&to)[PASSES], const float4 (&s)[PASSES][4], const float* vector) {
    float sum[PASSES][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 v = reinterpret_cast<const float4*>(vector)[threadIdx.x % 8 + 8 * i];
#pragma unroll
        for (int p = 0; p < PASSES; p++) sum[p][i] = dot4(s[p][i], v);
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) to[p] = row_sum((sum[p][0] + sum[p][1]) + (sum[p][2] + sum[p][3]));
}

// Make q and k of the workspace unit vectors, q over sqrt(HEAD); the first two warps' work.
__device__ __forceinline__ void normalise(Workspace& ws) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp > 1) return;
    float4& mine = reinterpret_cast<float4*>(warp ? ws.k : ws.q)[lane];
    mine = mine * (warp ? key_factor(mine) : query_factor(mine));
}

// Advance S by the token whose q, k, v are in the workspace; outputs go to ws.o.
__device__ __forceinline__ void advance(float4 (&s)[PASSES][4], Workspace& ws, float decay, float beta) {
    int row = threadIdx.x / 8, part = threadIdx.x % 8;
    float u[PASSES], o[PASSES];
    dots(u, s, ws.k);
#pragma unroll
    for (int p = 0; p < PASSES; p++) u[p] = delta_of(ws.v[p * LANES + row], u[p], decay, beta);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 k = reinterpret_cast<const float4*>(ws.k)[part + 8 * i];
#pragma unroll
        for (int p = 0; p < PASSES; p++) absorb(s[p][i], k, u[p], decay);
    }
    dots(o, s, ws.q);
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        if (part == 0) ws.o[p * LANES + row] = o[p];
}

// Convolve row `begin` + i of a head's channels; raw columns go to `line` and to `column`, where given.
__device__ __forceinline__ void convolve_row(const DeltaLayer& layer, const DeltaRows& rows, const bf16* ring, int head,
                                             int channels, int begin, int first, int i, Workspace& ws, bf16* line,
                                             bf16* column) {
    for (int which = threadIdx.x; which < 3 * HEAD; which += THREADS) {
        Channel channel(layer, rows, head, ws, which);
        bf16 raw = channel.step(layer, ring, channels, begin, first, i);
        if (line && channel.owner) line[channel.index] = raw;
        if (column && channel.owner) column[channel.index] = raw;
    }
}

// out (rows, value_heads * HEAD); z alike.  Grid (value_heads, sequences), 256 threads.  What the pass before
// wrote (S, rings) is read before the predecessor has ended; that is sound because the first kernel of every
// pass is an ordinary launch.
extern "C" __global__ void __launch_bounds__(256, 2) delta_step(bf16* out, const bf16* z, DeltaRows rows,
                                                               DeltaLayer layer, Images images, Sequences of,
                                                               const int* slots, Record record) {
    __shared__ __align__(16) Workspace ws;
    release_successor();
    int head = blockIdx.x, sequence = blockIdx.y, thread = threadIdx.x, slot = slots[sequence];
    int begin = of.offsets[sequence], end = of.offsets[sequence + 1], first = of.frontiers[sequence];
    int channels = (2 * layer.key_heads + layer.value_heads) * HEAD;
    float* state = state_of(images, slot, head);
    bf16 *ring = ring_of(images, slot), *saved = record.base;
    float4 s[PASSES][4];
    load_state(s, state);
    await_predecessor();
    if (record.write) {
        int lane = record.lanes[sequence];
        saved += lane * record.lane_stride;
        if (head == 0 && thread == 0) record.frontiers[lane] = first;
    }
    for (int row = begin; row < end; row++) {
        bf16* line = record.write ? saved + static_cast<long long>(row - begin) * record.width : nullptr;
        convolve_row(layer, rows, ring, head, channels, begin, first, row - begin, ws, line,
                     line ? nullptr : ring + first % TAPS * channels);
        bf16 a = rows.a[row * rows.gate_stride + head], b = rows.b[row * rows.gate_stride + head];
        if (line && thread == 0) line[channels + head] = a, line[channels + layer.value_heads + head] = b;
        float decay = decay_of(layer, head, __bfloat162float(a)), beta = beta_of(__bfloat162float(b));
        __syncthreads();
        normalise(ws);
        __syncthreads();
        advance(s, ws, decay, beta);
        __syncthreads();
        if (thread < 32) {
            long long at = (static_cast<long long>(row) * layer.value_heads + head) * HEAD + thread * 4;
            float4 w = load4(layer.norm + thread * 4);
            store4(out + at, gated_norm(reinterpret_cast<float4*>(ws.o)[thread], w, load4(z + at), layer.eps));
        }
    }
    if (!record.write) save_state(s, state);
}

// Advance slots over keeps[i] rows of the records of lanes[i]; `frontiers` is the records' own, by lane.
// `layers` lies on the device; the images' offsets step by the strides given.  Grid (value_heads,
// sequences, layers), 256 threads.
extern "C" __global__ void __launch_bounds__(256, 2) delta_fold(const bf16* records, long long lane_stride,
                                                               long long layer_stride, int width,
                                                               const DeltaLayer* layers, Images images,
                                                               long long recurrent_stride, long long ring_stride,
                                                               const int* lanes, const int* slots, const int* keeps,
                                                               const int* frontiers) {
    __shared__ __align__(16) Workspace ws;
    release_successor();
    await_predecessor();
    int head = blockIdx.x, sequence = blockIdx.y, slot = slots[sequence], keep = keeps[sequence];
    if (keep == 0) return;
    DeltaLayer layer = layers[blockIdx.z];
    images.recurrent += blockIdx.z * recurrent_stride;
    images.ring += blockIdx.z * ring_stride;
    const bf16* base = records + lanes[sequence] * lane_stride + blockIdx.z * layer_stride;
    int channels = (2 * layer.key_heads + layer.value_heads) * HEAD, key_width = layer.key_heads * HEAD;
    DeltaRows rows = {base, base + key_width, base + 2 * key_width, base + channels,
                      base + channels + layer.value_heads, width, width, width, 0};
    float* state = state_of(images, slot, head);
    const bf16* ring = ring_of(images, slot);
    int first = frontiers[lanes[sequence]];
    float4 s[PASSES][4];
    load_state(s, state);
    for (int row = 0; row < keep; row++) {
        convolve_row(layer, rows, ring, head, channels, 0, first, row, ws, nullptr, nullptr);
        float decay = decay_of(layer, head, __bfloat162float(rows.a[row * width + head]));
        float beta = beta_of(__bfloat162float(rows.b[row * width + head]));
        __syncthreads();
        normalise(ws);
        __syncthreads();
        advance(s, ws, decay, beta);
        __syncthreads();
    }
    save_state(s, state);
}

// Enter the last columns of counts[i] new rows into the rings.  Rows of sequence i begin
// lanes[i] * lane_stride + layer * layer_stride elements behind q, k and v, and frontiers are by lane; with
// lanes null there is one sequence.  Grid (channels / 256 rounded up, sequences, layers).
extern "C" __global__ void __launch_bounds__(256) delta_ring(const bf16* q, const bf16* k, const bf16* v,
                                                            int key_stride, int value_stride, int key_width,
                                                            int channels, long long lane_stride,
                                                            long long layer_stride, Images images,
                                                            long long ring_stride, const int* lanes,
                                                            const int* slots, const int* counts,
                                                            const int* frontiers) {
    release_successor();
    await_predecessor();
    int channel = blockIdx.x * 256 + threadIdx.x, sequence = blockIdx.y;
    if (channel >= channels) return;
    int lane = lanes ? lanes[sequence] : 0, count = counts[sequence], first = frontiers[lane], stride = value_stride;
    long long skip = lane * lane_stride + blockIdx.z * layer_stride;
    const bf16* x = v + channel - 2 * key_width;
    if (channel < 2 * key_width) {
        x = channel < key_width ? q + channel : k + channel - key_width;
        stride = key_stride;
    }
    images.ring += blockIdx.z * ring_stride;
    bf16* ring = ring_of(images, slots[sequence]);
    for (int row = max(0, count - TAPS); row < count; row++)
        ring[((first + row) % TAPS) * channels + channel] = x[skip + static_cast<long long>(row) * stride];
}
