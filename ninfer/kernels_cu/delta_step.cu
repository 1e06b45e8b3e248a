// The recurrent Gated DeltaNet: one token after another, a block a (value head, sequence).
//
// delta_step serves decode (one row a sequence; the slot advances), the tail of a prompt (several rows of one
// sequence; the slot advances, delta_ring moves the history behind it) and verification (several rows; the slot
// stays, and the raw rows go to the lane's record).  delta_fold advances slots over the first rows of their
// records, all layers at once; delta_ring then moves the convolution history.  A tail and a fold do the
// additions of as many decode steps in the same order, so they end in the same bits.
#include "delta_rows.cuh"
#include "pages.cuh"

// Where verification leaves raw rows: (lanes, layers, rows, width), width = channels + 2 value heads.
struct Record {
    bf16* base;
    int* frontiers;  // by lane: tokens before its recorded rows
    const int* lanes;
    long long lane_stride, layer_stride;  // elements
    int width, write;
};

constexpr int ROWS = 8;               // rows whose inputs are prepared together
constexpr int PIECES = 3 * HEAD / 8;  // 16-byte pieces of a head's q, k and v channels
constexpr int KEYS = HEAD / 8;        // the first of them that is not a query's
constexpr int HISTORY = TAPS - 1;

constexpr int STAND_IN = ROWS + HISTORY;  // the last row, to rehearse with; those between are too

struct Workspace {
    uint4 taps[TAPS][PIECES], raw[HISTORY + STAND_IN + 1][PIECES];      // raw columns, those before row 0 first
    float mixed[STAND_IN + 1][3][HEAD], o[STAND_IN + 1][HEAD];  // convolved q, k, v; outputs
    float decay[STAND_IN + 1], beta[STAND_IN + 1];
};

// A value head, and the key head that it shares with its neighbours.
struct Heads {
    int value, key;
    bool first;  // of those neighbours

    __device__ __forceinline__ Heads(const DeltaLayer& layer, int head) : value(head) {
        int share = layer.value_heads / layer.key_heads;
        key = head / share, first = head == key * share;
    }
};

// Where 8 channels of a value head lie.
struct Piece {
    const bf16* x;      // in row 0
    int stride, index;  // elements between rows; channel number in q, k, v order
    bool owner;         // whether this block speaks for them (key heads are shared by blocks)

    __device__ __forceinline__ Piece(const DeltaLayer& layer, const DeltaRows& rows, const Heads& of, int which) {
        int part = which / (HEAD / 8), at = which % (HEAD / 8) * 8 + (part == 2 ? of.value : of.key) * HEAD;
        x = (part == 0 ? rows.q : part == 1 ? rows.k : rows.v) + at;
        stride = part == 2 ? rows.value_stride : rows.key_stride;
        index = part * layer.key_heads * HEAD + at;
        owner = part == 2 || of.first;
    }

    __device__ __forceinline__ uint4 load(int row) const {
        return *reinterpret_cast<const uint4*>(x + static_cast<long long>(row) * stride);
    }
};

// Begin to fetch taps and the columns before a sequence's first row, which has index `first`; pieces from `from` on.
__device__ __forceinline__ void fetch_history(const DeltaLayer& layer, const DeltaRows& rows, const bf16* ring, const Heads& of,
                                              int channels, int first, int from, Workspace& ws) {
    int pieces = PIECES - from;
#pragma unroll 1
    for (int t = threadIdx.x; t < (TAPS + HISTORY) * pieces; t += THREADS) {
        int line = t / pieces, p = from + t % pieces;
        Piece piece(layer, rows, of, p);
        const bf16* at = line < TAPS ? layer.taps + line * channels : ring + (first + line - TAPS + 1) % TAPS * channels;
        copy16_async(&(line < TAPS ? ws.taps[line] : ws.raw[line - TAPS])[p], at + piece.index, true);
    }
    copies_commit();
}

// Fetch rows row .. row + count - 1 of a sequence that begins at `begin`; raw columns go to `line`, `width`
// apart, or to `column`, where given: the only one stays there, those of a tail delta_ring writes again.  Without
// `real` zeros are a row to rehearse with.
__device__ __forceinline__ void fetch_rows(const DeltaLayer& layer, const DeltaRows& rows, const Heads& of, int begin, int row,
                                           int count, int from, Workspace& ws, bf16* line, int width, bf16* column,
                                           bool real = true) {
    int pieces = PIECES - from, old = row > begin ? HISTORY : 0;
#pragma unroll 1
    for (int t = threadIdx.x; t < (old + count) * pieces; t += THREADS) {
        int i = t / pieces - old, p = from + t % pieces;
        Piece piece(layer, rows, of, p);
        uint4 found = real ? piece.load(row + i) : make_uint4(0, 0, 0, 0);
        ws.raw[HISTORY + (real ? i : STAND_IN)][p] = found;
        if (i < 0 || !piece.owner || !real) continue;
        if (line) *reinterpret_cast<uint4*>(line + static_cast<long long>(i) * width + piece.index) = found;
        if (column) *reinterpret_cast<uint4*>(column + piece.index) = found;
    }
}

// Convolve what was fetched, rows `first` .. first + count - 1.
__device__ __forceinline__ void convolve_rows(int first, int count, int from, const uint4 (*taps)[PIECES], Workspace& ws) {
    int width = 3 * HEAD - 8 * from;
#pragma unroll 1
    for (int t = threadIdx.x; t < count * width; t += THREADS) {
        int i = first + t / width, channel = 8 * from + t % width;
        float w[TAPS], x[TAPS];
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            w[j] = __bfloat162float(reinterpret_cast<const bf16*>(taps[j])[channel]);
            x[j] = __bfloat162float(reinterpret_cast<const bf16*>(ws.raw[i + j])[channel]);
        }
        ws.mixed[i][0][channel] = convolve(w, x[0], x[1], x[2], x[3]);
    }
}

// Make q and k of `count` rows of the workspace unit vectors, q over sqrt(HEAD); without QUERIES k alone.
template <bool QUERIES>
__device__ __forceinline__ void normalise(int first, int count, Workspace& ws) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int task = threadIdx.x / 32; task < count * (1 + QUERIES); task += THREADS / 32) {
        bool query = QUERIES && task >= count;
        float4& mine = reinterpret_cast<float4*>(query ? ws.mixed[first + task - count][0] : ws.mixed[first + task][1])[lane];
        mine = mine * (query ? query_factor(mine) : key_factor(mine));
    }
}

// Advance S by the token in row i of the workspace; with OUTPUTS its outputs go to ws.o.
template <bool OUTPUTS>
__device__ __forceinline__ void advance_by(float4 (&s)[PASSES][4], Workspace& ws, int i) {
    float u[PASSES];
    advance<OUTPUTS>(s, ws.mixed[i], ws.decay[i], ws.beta[i], ws.o[i], u);
}

// Leave the gates of rows row .. row + count - 1 in the workspace, and raw in `line` (`width` apart), where given.
__device__ __forceinline__ void enter_gates(const HeadGates& gates, const DeltaLayer& layer, const DeltaRows& rows,
                                            int head, int row, int count, Workspace& ws, bf16* line, int width,
                                            bool real = true) {
    int i = threadIdx.x;
    if (real && i >= count) return;
    bf16 a = __float2bfloat16(0.0f), b = a;
    if (real) a = rows.a[(row + i) * rows.gate_stride + head], b = rows.b[(row + i) * rows.gate_stride + head];
    float decay = gates.decay(__bfloat162float(a)), beta = beta_of(__bfloat162float(b));
    int at = real ? i : STAND_IN;
    ws.decay[at] = decay, ws.beta[at] = beta;
    if (line) line[static_cast<long long>(i) * width + head] = a, line[static_cast<long long>(i) * width + layer.value_heads + head] = b;
}

// out (rows, value_heads * HEAD); z alike.  Grid (value_heads, sequences), THREADS threads.  What the pass before
// wrote (S, rings) is read before the predecessor has ended; that is sound because the first kernel of every
// pass is an ordinary launch.  A launch that begins early rehearses, so that its instructions are there when its rows
// are: four warps take a row without meaning through a part of the code of every row each, and wait for nobody; that
// which advances S asks for its own part of S only then.
extern "C" __global__ void __launch_bounds__(THREADS, 1) delta_step(bf16* out, const bf16* z, DeltaRows rows,
                                                               DeltaLayer layer, Images images, Sequences of,
                                                               const int* slots, Record record) {
    __shared__ __align__(16) Workspace ws;
    release_successor();
    int head = blockIdx.x, sequence = blockIdx.y, thread = threadIdx.x, slot = slots[sequence];
    int begin = of.offsets[sequence], end = of.offsets[sequence + 1], first = of.frontiers[sequence];
    int channels = (2 * layer.key_heads + layer.value_heads) * HEAD;
    float* state = state_of(images, slot, head);
    bf16 *ring = ring_of(images, slot), *line = nullptr, *column = ring + first % TAPS * channels;
    float4 s[PASSES][4];
    Heads heads(layer, head);
    fetch_history(layer, rows, ring, heads, channels, first, 0, ws);
    HeadGates gates(layer, head);
    int part = thread % 32, own = thread / 32;  // a warp a row of outputs
    uint2 norm = *reinterpret_cast<const uint2*>(layer.norm + part * 4);
#pragma unroll 1
    for (int row = begin - (REHEARSES ? ROWS : 0); row < end; row += ROWS) {
        bool real = row >= begin;
        int count = real ? min(ROWS, end - row) : 1;
        if (row == (REHEARSES && own != 1 ? begin - ROWS : begin)) load_state(s, state);
        if (row == begin) {
            await_predecessor();
            if (record.write) {
                int lane = record.lanes[sequence];
                line = record.base + lane * record.lane_stride;
                column = nullptr;
                if (head == 0 && thread == 0) record.frontiers[lane] = first;
            }
        }
        long long at = (static_cast<long long>(row + own) * layer.value_heads + head) * HEAD + part * 4;
        uint2 gate = make_uint2(0, 0);
        if (real && own < count) gate = *reinterpret_cast<const uint2*>(z + at);
        int to = real ? 0 : STAND_IN;
        if (real || own == 0) fetch_rows(layer, rows, heads, begin, row, count, 0, ws, line, record.width, column, real);
        if (real || own == 3) enter_gates(gates, layer, rows, head, row, count, ws, line ? line + channels : nullptr, record.width, real);
        if (real) {
            copies_wait<0>();
            __syncthreads();
        }
        if (real || own == 0) convolve_rows(to, count, 0, real ? ws.taps : ws.raw + STAND_IN, ws);
        if (real) __syncthreads();
        if (real || own == 0) normalise<true>(to, count, ws);
        if (real) __syncthreads();
#pragma unroll 1
        for (int i = real ? 0 : ROWS; i < (real ? count : own == 1 ? ROWS + 1 : 0); i++) advance_by<true>(s, ws, i);
        if (row + ROWS >= end && real && !record.write) save_state(s, state);
        if (real) __syncthreads();
        if (real ? own < count : own == 2) {
            float4 y = gated_norm(reinterpret_cast<float4*>(ws.o[real ? own : STAND_IN])[part], wide4(norm), wide4(gate), layer.eps);
            if (real) store4(out + at, y);
        }
        if (line) line += static_cast<long long>(ROWS) * record.width;
    }
}

// Advance slots over keeps[i] rows of the records of lanes[i]; `frontiers` is the records' own, by lane.
// `layers` lies on the device; the images' offsets step by the strides given.  Grid (value_heads,
// sequences, layers), THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS, 1) delta_fold(const bf16* records, long long lane_stride,
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
    Heads heads(layer, head);
    fetch_history(layer, rows, ring, heads, channels, first, KEYS, ws);
    HeadGates gates(layer, head);
    for (int row = 0; row < keep; row += ROWS) {
        int count = min(ROWS, keep - row);
        if (row) __syncthreads();
        fetch_rows(layer, rows, heads, 0, row, count, KEYS, ws, nullptr, 0, nullptr);
        enter_gates(gates, layer, rows, head, row, count, ws, nullptr, 0);
        copies_wait<0>();
        __syncthreads();
        convolve_rows(0, count, KEYS, ws.taps, ws);
        __syncthreads();
        normalise<false>(0, count, ws);
        __syncthreads();
        for (int i = 0; i < count; i++) advance_by<false>(s, ws, i);
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
