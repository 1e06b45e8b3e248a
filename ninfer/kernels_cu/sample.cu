// Choosing tokens on the device, draw for draw as ops/sample_numpy.py does it.
//
// sample_scan leaves the best candidates of every 4,096 logits of a row, sample_choose merges them and
// draws; sample_judge closes a verification.  A candidate is a 64-bit key that orders by value
// descending, then by id ascending; the all-ones key says that the row is not finite.
//
// The one thing a reader would get wrong: penalties of a verification row count the drafts before it as if
// they had been accepted; whether they were is only known to sample_judge.
#include "keys.cuh"
#include "pages.cuh"

constexpr int TOP = 20;
constexpr int CHUNK = 4096, EACH = CHUNK / KEY_THREADS;
enum { PREFILL, DECODE, ACCEPT, CORRECT, BONUS };

// One lane's sampler.
struct Sampler {
    long long seed;
    float temperature, top_p, min_p, presence, frequency;
    int top_k;
};

// What all lanes own on the device.
struct Lanes {
    const Sampler* samplers;
    int* counts;     // (lanes, vocab) generated tokens
    int* pending;    // (lanes,) the token to feed next
    int* published;  // (lanes, width) tokens of the last verification
    int vocab, width;
};

__device__ __forceinline__ bool penalised(const Sampler& s) { return s.presence != 0.0f || s.frequency != 0.0f; }

__device__ __forceinline__ int width_of(const Sampler& s) {
    if (s.temperature <= 0.0f) return 1;
    return s.top_k > 0 && s.top_k < TOP ? s.top_k : TOP;
}

// x less the penalties of id; rows begin .. row feed ids that count as generated.
__device__ __forceinline__ float penalise(float x, int id, int vocab, const Sampler& sampler, const int* counts,
                                          const int* ids, int begin, int row) {
    if (id >= vocab) return x;
    int times = counts[id];
#pragma unroll 1
    for (int r = begin; ids && r <= row; r++) times += ids[r] == id;
    float weight = __fadd_rn(times > 0 ? sampler.presence : 0.0f, __fmul_rn(sampler.frequency, static_cast<float>(times)));
    return __fadd_rn(x, -weight);
}

// keys (rows, chunks, TOP).  logits rows are `stride` apart; ids below `vocab` count.  With `samplers`,
// rows are those of `of` (lanes by sequence) and `ids` their fed tokens, null unless verifying; without,
// the best id alone is found.  Grid (chunks, rows), 256 threads.
extern "C" __global__ void __launch_bounds__(256) sample_scan(u64* keys, const float* logits, int stride, int vocab,
                                                             Lanes lanes, Sequences of, const int* lane_of,
                                                             const int* ids) {
    release_successor();
    await_predecessor();
    int chunk = blockIdx.x, row = blockIdx.y, width = 1, first = chunk * CHUNK + threadIdx.x;
    logits += static_cast<long long>(row) * stride;
    float x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] = first + i * KEY_THREADS < vocab ? logits[first + i * KEY_THREADS] : 0.0f;
    if (lanes.samplers) {
        int s = ids ? sequence_of(of.offsets, of.count, row) : row, lane = lane_of[s];
        Sampler sampler = lanes.samplers[lane];
        width = width_of(sampler);
        const int* counts = lanes.counts + static_cast<long long>(lane) * lanes.vocab;
        int begin = ids ? of.offsets[s] + 1 : row + 1;
        if (penalised(sampler)) {
#pragma unroll
            for (int i = 0; i < EACH; i++) x[i] = penalise(x[i], first + i * KEY_THREADS, vocab, sampler, counts, ids, begin, row);
        }
    }
    u64 mine[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) mine[i] = first + i * KEY_THREADS < vocab ? key_of(x[i], first + i * KEY_THREADS) : 0;
    take_best(mine, width, keys + (static_cast<long long>(row) * gridDim.x + chunk) * TOP);
}

__device__ __forceinline__ u64 splitmix64(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

__device__ __forceinline__ float uniform(long long seed, int position, int purpose) {
    u64 key = splitmix64(static_cast<u64>(seed) ^ static_cast<u64>(position) * 0xD1B54A32D192ED03ull);
    key = splitmix64(key ^ static_cast<u64>(purpose) << 21);
    return static_cast<float>(key >> 40) / 16777216.0f;
}

// c0, c0 + c1 ... over the lanes of a warp, each rounded in turn as one thread would.
__device__ __forceinline__ float running_sum(float chance) {
    float sum = 0.0f, mine = 0.0f;
#pragma unroll
    for (int j = 0; j < TOP; j++) {
        sum = __fadd_rn(sum, __shfl_sync(~0u, chance, j));
        if (static_cast<int>(threadIdx.x % 32) == j) mine = sum;
    }
    return mine;
}

// The processed distribution of one row, best first: a candidate a lane, by one warp.
struct Distribution {
    int id;        // of this lane's candidate
    float chance;  // 0: none, or cut away

    __device__ __forceinline__ Distribution(const u64* keys, const Sampler& s) {
        int lane = threadIdx.x % 32;
        u64 key = lane < width_of(s) ? keys[lane] : 0;
        bool live = key != 0;
        float heat = s.temperature > 0.0f ? s.temperature : 1.0f, first = __fdiv_rn(value_of(keys[0]), heat);
        id = id_of(key);
        chance = live ? expf(__fadd_rn(__fdiv_rn(value_of(key), heat), -first)) : 0.0f;
        float sum = running_sum(chance), before = __shfl_up_sync(~0u, sum, 1);
        float enough = __fmul_rn(s.top_p, __shfl_sync(~0u, sum, TOP - 1)), floor = __fmul_rn(s.min_p, __shfl_sync(~0u, chance, 0));
        if (lane && (chance < floor || (s.top_p < 1.0f && before >= enough))) chance = 0.0f;
        divide(__shfl_sync(~0u, running_sum(chance), TOP - 1));
    }

    __device__ __forceinline__ void divide(float by) {
        if (chance > 0.0f) chance = __fdiv_rn(chance, by);
    }

    __device__ __forceinline__ float chance_of(int wanted) const {
        u32 who = __ballot_sync(~0u, chance > 0.0f && id == wanted);
        float found = __shfl_sync(~0u, chance, who ? __ffs(who) - 1 : 0);
        return who ? found : 0.0f;
    }

    // Forget `gone` and renormalise what is left, if anything is.
    __device__ __forceinline__ void drop(int gone) {
        if (id == gone) chance = 0.0f;
        float total = __shfl_sync(~0u, running_sum(chance), TOP - 1);
        if (total > 0.0f) divide(total);
    }

    // The candidate where the running sum passes u; the last one with a chance if none does.
    __device__ __forceinline__ int choose(float u) const {
        float sum = running_sum(chance);
        int lane = threadIdx.x % 32;
        u32 passed = __ballot_sync(~0u, lane < TOP && u < sum), likely = __ballot_sync(~0u, chance > 0.0f);
        if (passed) likely &= (2u << (__ffs(passed) - 1)) - 1;
        return __shfl_sync(~0u, id, likely ? 31 - __clz(likely) : 0);
    }
};

__device__ __forceinline__ void count(const Lanes& lanes, int lane, int id, int times) {
    if (id >= 0 && id < lanes.vocab && penalised(lanes.samplers[lane]))
        lanes.counts[static_cast<long long>(lane) * lanes.vocab + id] += times;
}

// A row's candidates, at most 8 * KEY_THREADS; `width` of every TOP count.
struct Candidates {
    static constexpr int HELD = 8;
    u64 keys[HELD];

    __device__ __forceinline__ Candidates(const u64* from, int chunks) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int at = i * KEY_THREADS + threadIdx.x;
            keys[i] = at < chunks * TOP ? from[at] : 0;
        }
    }

    // Merge them into shared memory; -> the best key.
    __device__ __forceinline__ u64 merge(u64* best, int width) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if ((i * KEY_THREADS + static_cast<int>(threadIdx.x)) % TOP >= width) keys[i] = 0;
        take_best(keys, width, best);
        __syncthreads();
        return best[0];
    }
};

// Draw a token for each row.  `positions` are by sequence.  Plain rows (ids null): purpose as given, the
// token is published and goes to tokens[row].  Verifying rows: tokens[row] replaces the draft behind
// the row and stands[row] says whether that draft holds; a sequence's last row draws the bonus.
// At most 8 * 256 / TOP chunks.  Grid rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) sample_choose(int* tokens, int* stands, const u64* keys, int chunks,
                                                               Lanes lanes, Sequences of, const int* lane_of,
                                                               const int* positions, const int* ids, int purpose) {
    __shared__ u64 best[TOP];
    release_successor();
    await_predecessor();
    int row = blockIdx.x, s = ids ? sequence_of(of.offsets, of.count, row) : row;
    Candidates all(keys + static_cast<long long>(row) * chunks * TOP, chunks);
    int lane = lane_of[s], at = positions[s], behind = ids ? row + 1 - of.offsets[s] : 0;
    bool last = ids && row + 1 == of.offsets[s + 1];
    int draft = ids && !last ? ids[row + 1] : -1;
    Sampler sampler = lanes.samplers[lane];
    u64 top = all.merge(best, width_of(sampler));
    if (threadIdx.x >= 32) return;
    int token = top == BAD ? -1 : id_of(top), stand = token >= 0 && token == draft;
    if (top != BAD && sampler.temperature > 0.0f) {
        Distribution found(best, sampler);
        float u = uniform(sampler.seed, at + behind, !ids ? purpose : last ? BONUS : CORRECT);
        if (ids && !last) {
            stand = uniform(sampler.seed, at + behind, ACCEPT) < found.chance_of(draft);
            found.drop(draft);
        }
        token = found.choose(u);
    }
    if (threadIdx.x) return;
    tokens[row] = token;
    if (ids) {
        stands[row] = stand;
    } else {
        lanes.pending[lane] = token;
        if (token >= 0 && token < lanes.vocab && penalised(sampler))
            lanes.counts[static_cast<long long>(lane) * lanes.vocab + token] += 1;
    }
}

// Publish each sequence's accepted drafts and the token after them: out (sequences, 1 + lanes.width),
// their number first.  One block a sequence, one thread.
extern "C" __global__ void __launch_bounds__(32) sample_judge(int* out, const int* tokens, const int* stands,
                                                             const int* ids, Lanes lanes, Sequences of,
                                                             const int* lane_of) {
    release_successor();
    await_predecessor();
    if (threadIdx.x) return;
    int s = blockIdx.x, lane = lane_of[s], begin = of.offsets[s], end = of.offsets[s + 1], n = 0;
    out += s * (1 + lanes.width);
    int* published = lanes.published + lane * lanes.width;
    for (int row = begin; row < end; row++) {
        bool stand = row + 1 < end && stands[row];
        int token = stand ? ids[row + 1] : tokens[row];
        out[1 + n] = published[n] = token;
        n++;
        count(lanes, lane, token, 1);
        lanes.pending[lane] = token;
        if (!stand) break;
    }
    out[0] = n;
}

// Take back what was published beyond the first keeps[i] tokens of lanes[i] (which published totals[i]).
extern "C" __global__ void __launch_bounds__(32) sample_settle(Lanes lanes, const int* lane_of, const int* keeps,
                                                              const int* totals) {
    release_successor();
    await_predecessor();
    if (threadIdx.x) return;
    int s = blockIdx.x, lane = lane_of[s], keep = keeps[s];
    const int* published = lanes.published + lane * lanes.width;
    for (int i = keep; i < totals[s]; i++) count(lanes, lane, published[i], -1);
    if (keep) lanes.pending[lane] = published[keep - 1];
}

// ids[i] = forced[i], or the pending token of lanes[i] where that is negative (a failed row feeds 0).
extern "C" __global__ void __launch_bounds__(128) sample_feed(int* ids, const int* forced, const int* lane_of,
                                                             const int* pending, int count) {
    release_successor();
    await_predecessor();
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < count) ids[i] = forced[i] >= 0 ? forced[i] : max(pending[lane_of[i]], 0);
}

// Proposals by depth, each for the first of the sequences.
struct Proposals {
    const int* tokens[16];
};

// ids of a verification: each sequence's fed token, then its proposals.  One block a sequence.
extern "C" __global__ void __launch_bounds__(32) sample_line(int* ids, const int* fed, Proposals proposals,
                                                            const int* offsets) {
    release_successor();
    await_predecessor();
    int s = blockIdx.x, at = offsets[s] + threadIdx.x;
    if (at < offsets[s + 1]) ids[at] = threadIdx.x ? proposals.tokens[threadIdx.x - 1][s] : fed[s];
}

// Clear a lane's counts (`add` 0, grid over vocab) or add `count` generated ids (`add` 1, grid over count).
// 256 threads.
extern "C" __global__ void __launch_bounds__(256) sample_recount(int* counts, const int* generated, int count,
                                                                int vocab, int add) {
    release_successor();
    await_predecessor();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (!add && i < vocab) counts[i] = 0;
    if (add && i < count && generated[i] >= 0 && generated[i] < vocab) atomicAdd(counts + generated[i], 1);
}

// tokens[row] = the best id of each row after sample_scan without samplers, through `map` if given.
extern "C" __global__ void __launch_bounds__(256) sample_best(int* tokens, const u64* keys, int chunks, const int* map) {
    __shared__ u64 best[TOP];
    release_successor();
    await_predecessor();
    u64 top = Candidates(keys + static_cast<long long>(blockIdx.x) * chunks * TOP, chunks).merge(best, 1);
    if (threadIdx.x == 0) {
        int id = top == BAD || top == 0 ? 0 : id_of(top);
        tokens[blockIdx.x] = map ? map[id] : id;
    }
}
