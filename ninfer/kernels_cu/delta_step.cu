// The recurrent Gated DeltaNet: one token after another, a block a (value head, sequence).
//
// delta_step serves decode (one row a sequence; the slot advances) and verification (several rows;
// the slot stays, and the raw rows go to the lane's record).  delta_fold advances slots over the first
// rows of their records, all layers at once; delta_ring then moves the convolution history.  A fold does
// the additions of as many decode steps in the same order, so it ends in the same bits.
#include "delta.cuh"
#include "pages.cuh"

constexpr int THREADS = 512;
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

// One of the 3 * HEAD convolution channels of a value head, held by one thread.
struct Channel {
    const bf16* x;      // its column in the first row
    int stride, index;  // elements between rows; channel number in q, k, v order
    float* out;
    bool owner;         // whether this block speaks for the channel (key heads are shared by blocks)
    float w[TAPS], past[TAPS - 1];

    __device__ void open(const DeltaLayer& layer, const DeltaRows& rows, const bf16* ring, int head, int first,
                         Workspace& ws, int thread) {
        int share = layer.value_heads / layer.key_heads, key = head / share, at = thread % HEAD;
        int width = layer.key_heads * HEAD, channels = 2 * width + layer.value_heads * HEAD;
        if (thread < 2 * HEAD) {
            x = (thread < HEAD ? rows.q : rows.k) + key * HEAD + at;
            index = (thread < HEAD ? 0 : width) + key * HEAD + at;
            out = (thread < HEAD ? ws.q : ws.k) + at;
            stride = rows.key_stride;
            owner = head % share == 0;
        } else {
            x = rows.v + head * HEAD + at;
            index = 2 * width + head * HEAD + at;
            out = ws.v + at;
            stride = rows.value_stride;
            owner = true;
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++) w[j] = __bfloat162float(layer.taps[j * channels + index]);
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            past[j] = __bfloat162float(ring[((first + j + 1) % TAPS) * channels + index]);
    }

    __device__ bf16 step(int row) {
        bf16 raw = x[static_cast<long long>(row) * stride];
        float now = __bfloat162float(raw);
        *out = convolve(w, past[0], past[1], past[2], now);
        past[0] = past[1];
        past[1] = past[2];
        past[2] = now;
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

// Advance S by the token whose convolved q, k, v are in the workspace; outputs go to ws.o.
__device__ __forceinline__ void advance(float4 (&s)[PASSES][4], Workspace& ws, float decay, float beta) {
    int lane = threadIdx.x % 32, part = threadIdx.x % 8;
    float fq = query_factor(reinterpret_cast<float4*>(ws.q)[lane]);
    float fk = key_factor(reinterpret_cast<float4*>(ws.k)[lane]);
    float4 q[4], k[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = reinterpret_cast<float4*>(ws.q)[part + 8 * i] * fq;
        k[i] = reinterpret_cast<float4*>(ws.k)[part + 8 * i] * fk;
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        int row = p * LANES + threadIdx.x / 8;
        float o = advance_row(s[p], k, q, ws.v[row], decay, beta);
        if (part == 0) ws.o[row] = o;
    }
}

// out (rows, value_heads * HEAD); z alike.  Grid (value_heads, sequences), 512 threads.
extern "C" __global__ void __launch_bounds__(512) delta_step(bf16* out, const bf16* z, DeltaRows rows,
                                                            DeltaLayer layer, Images images, Sequences of,
                                                            const int* slots, Record record) {
    __shared__ __align__(16) Workspace ws;
    release_successor();
    await_predecessor();
    int head = blockIdx.x, sequence = blockIdx.y, thread = threadIdx.x, slot = slots[sequence];
    int begin = of.offsets[sequence], end = of.offsets[sequence + 1], first = of.frontiers[sequence];
    int channels = (2 * layer.key_heads + layer.value_heads) * HEAD;
    float* state = state_of(images, slot, head);
    bf16* ring = ring_of(images, slot);
    bf16* saved = record.base;
    if (record.write) {
        int lane = record.lanes[sequence];
        saved += lane * record.lane_stride;
        if (head == 0 && thread == 0) record.frontiers[lane] = first;
    }
    float4 s[PASSES][4];
    load_state(s, state);
    Channel channel;
    if (thread < 3 * HEAD) channel.open(layer, rows, ring, head, first, ws, thread);
    for (int row = begin; row < end; row++) {
        bf16* line = saved + static_cast<long long>(row - begin) * record.width;
        if (thread < 3 * HEAD) {
            bf16 raw = channel.step(row);
            if (channel.owner) {
                if (record.write) line[channel.index] = raw;
                else ring[(first % TAPS) * channels + channel.index] = raw;
            }
        }
        bf16 a = rows.a[row * rows.gate_stride + head], b = rows.b[row * rows.gate_stride + head];
        if (record.write && thread == 0) line[channels + head] = a, line[channels + layer.value_heads + head] = b;
        float decay = decay_of(layer, head, __bfloat162float(a)), beta = beta_of(__bfloat162float(b));
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
// `layers` lies on the device; the images' offsets step by the strides given.  Grid (value_heads, sequences, layers), 512 threads.
extern "C" __global__ void __launch_bounds__(512) delta_fold(const bf16* records, long long lane_stride,
                                                            long long layer_stride, int width,
                                                            const DeltaLayer* layers, Images images,
                                                            long long recurrent_stride, long long ring_stride,
                                                            const int* lanes, const int* slots, const int* keeps,
                                                            const int* frontiers) {
    __shared__ __align__(16) Workspace ws;
    release_successor();
    await_predecessor();
    int head = blockIdx.x, sequence = blockIdx.y, thread = threadIdx.x, slot = slots[sequence];
    int keep = keeps[sequence];
    if (keep == 0) return;
    DeltaLayer layer = layers[blockIdx.z];
    images.recurrent += blockIdx.z * recurrent_stride;
    images.ring += blockIdx.z * ring_stride;
    const bf16* base = records + lanes[sequence] * lane_stride + blockIdx.z * layer_stride;
    int channels = (2 * layer.key_heads + layer.value_heads) * HEAD, key_width = layer.key_heads * HEAD;
    DeltaRows rows = {base, base + key_width, base + 2 * key_width, base + channels,
                      base + channels + layer.value_heads, width, width, width, 0};
    float* state = state_of(images, slot, head);
    float4 s[PASSES][4];
    load_state(s, state);
    Channel channel;
    if (thread < 3 * HEAD)
        channel.open(layer, rows, ring_of(images, slot), head, frontiers[lanes[sequence]], ws, thread);
    for (int row = 0; row < keep; row++) {
        if (thread < 3 * HEAD) channel.step(row);
        float decay = decay_of(layer, head, __bfloat162float(rows.a[row * width + head]));
        float beta = beta_of(__bfloat162float(rows.b[row * width + head]));
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
