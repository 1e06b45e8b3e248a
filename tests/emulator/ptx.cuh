// The CPU body of kernels_cu/ptx.cuh: the same wrappers over the emulator's warp exchange.
#pragma once
using u32 = unsigned int;

namespace emu {

struct Operands { u32 a[4]; u32 b[2]; };

template <class Half>
inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const Slot* all = exchange(~0u, pack(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}));
    int g = lane() / 4, t = lane() % 4;
    auto half_of = [](u32 word, int i) { uint16_t bits = word >> (16 * i); Half h; memcpy(&h, &bits, 2); return (float)h; };
    for (int i = 0; i < 4; i++) {
        int row = g + (i / 2) * 8, column = 2 * t + i % 2;
        double sum = 0;
        for (int k = 0; k < 16; k++) {
            auto left = unpack<Operands>(all[row % 8 * 4 + k % 8 / 2]);
            auto right = unpack<Operands>(all[column * 4 + k % 8 / 2]);
            sum += (double)half_of(left.a[row / 8 + 2 * (k / 8)], k % 2) * half_of(right.b[k / 8], k % 2);
        }
        d[i] = (float)(d[i] + sum);
    }
}

inline void ldmatrix(u32 (&r)[4], const void* row, bool transposed) {
    const Slot* all = exchange(~0u, pack(row));
    int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            int at = transposed ? 2 * t + j : g, element = transposed ? g : 2 * t + j;
            auto p = unpack<const uint16_t*>(all[8 * i + at]);
            if ((uintptr_t)p & 15) { fprintf(stderr, "emulator: ldmatrix row not aligned\n"); abort(); }
            pair[j] = p[element];
        }
        r[i] = pair[0] | (u32)pair[1] << 16;
    }
}

}  // namespace emu

inline void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { emu::mma<__nv_bfloat16>(d, a, b0, b1); }
inline void mma_fp16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { emu::mma<__half>(d, a, b0, b1); }
inline u32 as_tf32(float x) {
    u32 bits = __float_as_uint(x);
    return (bits + 0x1000) & 0xffffe000u;
}
inline void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const emu::Slot* all = emu::exchange(~0u, emu::pack(emu::Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}));
    int g = emu::lane() / 4, t = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + (i / 2) * 8, column = 2 * t + i % 2;
        double sum = 0;
        for (int k = 0; k < 8; k++) {
            auto left = emu::unpack<emu::Operands>(all[row % 8 * 4 + k % 4]);
            auto right = emu::unpack<emu::Operands>(all[column * 4 + k % 4]);
            sum += (double)__uint_as_float(left.a[row / 8 + 2 * (k / 4)]) * __uint_as_float(right.b[k / 4]);
        }
        d[i] = (float)(d[i] + sum);
    }
}
inline void ldmatrix4(u32 (&r)[4], const void* row) { emu::ldmatrix(r, row, false); }
inline void ldmatrix4_transposed(u32 (&r)[4], const void* row) { emu::ldmatrix(r, row, true); }

inline u32 transpose8x8(u32 v) {
    const emu::Slot* all = emu::exchange(~0u, emu::pack(v));
    int g = emu::lane() / 4, t = emu::lane() % 4;
    auto at = [&](int row, int column) { return emu::unpack<u32>(all[row * 4 + column / 2]) >> (16 * (column % 2)) & 0xffff; };
    return at(2 * t, g) | at(2 * t + 1, g) << 16;
}

inline void copy16_async(void* to, const void* from, bool valid) {
    if (((uintptr_t)to | (uintptr_t)from) & 15) { fprintf(stderr, "emulator: copy not aligned\n"); abort(); }
    emu::self->open.push_back({to, from, 16, valid ? 16 : 0});
}
inline void copies_commit() { emu::self->groups.push_back(std::move(emu::self->open)); emu::self->open.clear(); }
template <int N> inline void copies_wait() {
    auto& groups = emu::self->groups;
    while (groups.size() > N) { emu::land(groups.front()); groups.erase(groups.begin()); }
}
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline uint4 load_stream(const void* p) { return *(const uint4*)p; }
inline uint4 load_once(const void* p) { return *(const uint4*)p; }
#ifndef WATCHED
#define WATCHED 0
#endif
constexpr int ARRIVALS = WATCHED ? 32 : 1;
constexpr bool REHEARSES = !WATCHED;
inline void prefetch_l2(const void*) {}
inline void await_predecessor() {}
inline void release_successor() {}

inline u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    auto one = [](u32 x, u32 y, u32 z) {
        auto wide = [](u32 bits) { return __uint_as_float(bits << 16); };
        __nv_bfloat16 h = __float2bfloat16((float)((double)wide(x) * wide(y) + wide(z)));
        uint16_t bits; memcpy(&bits, &h, 2); return (u32)bits;
    };
    return one(a & 0xffff, b & 0xffff, c & 0xffff) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline void copy16_stream(void* to, const void* from, bool valid) { copy16_async(to, from, valid); }
inline void copy4_async(void* to, const void* from, bool valid) {
    if (((uintptr_t)to | (uintptr_t)from) & 3) { fprintf(stderr, "emulator: copy not aligned\n"); abort(); }
    emu::self->open.push_back({to, from, 4, valid ? 4 : 0});
}
namespace emu {
inline void team_step(int id, int threads) {
    Team& team = now->teams[id];
    if (++team.arrived == threads) { team.arrived = 0; team.turn++; }
}
struct Phase { uint16_t count, pending; uint32_t turn; };
static_assert(sizeof(Phase) == 8);
inline void (*before_waiting)(unsigned long long*) = nullptr;  // lands what a barrier was told of
inline void phase_step(Phase* p) { if (--p->pending == 0) { p->pending = p->count; p->turn++; } }
}  // namespace emu

inline void team_arrive(int id, int threads) { emu::team_step(id, threads); }
inline void team_barrier(int id, int threads) {
    emu::Team& team = emu::now->teams[id];
    uint32_t turn = team.turn;
    emu::team_step(id, threads);
    while (team.turn == turn) emu::yield();
}
inline void phase_init(unsigned long long* b, int arrivals) {
    *(emu::Phase*)b = {(uint16_t)arrivals, (uint16_t)arrivals, 0};
}
inline void phase_arrive(unsigned long long* b) { emu::phase_step((emu::Phase*)b); }
inline void phase_arrive_after_copies(unsigned long long* b) {
    for (auto& group : emu::self->groups) emu::land(group);
    emu::self->groups.clear();
    emu::land(emu::self->open);
    emu::phase_step((emu::Phase*)b);
}
inline void phase_wait(unsigned long long* b, u32 parity) {
    while ((((emu::Phase*)b)->turn & 1) == parity) {
        if (emu::before_waiting) emu::before_waiting(b);
        if ((((emu::Phase*)b)->turn & 1) == parity) emu::yield();
    }
}
inline u32 count_release(u32* counter) { return (*counter)++; }
inline u32 count_relaxed(u32* counter) { return (*counter)++; }
inline void mma_bf16_half(float (&d)[4], u32 a0, u32 a1, u32 b) {
    u32 a[4] = {a0, a1, 0, 0};
    mma_bf16(d, a, b, 0);
}
inline void mma_fp16_fresh(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    d[0] = d[1] = d[2] = d[3] = 0;
    mma_fp16(d, a, b0, b1);
}
inline void mma_s8(u32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const emu::Slot* all = emu::exchange(~0u, emu::pack(emu::Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}));
    int g = emu::lane() / 4, t = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + (i / 2) * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 32; k++) {
            auto left = emu::unpack<emu::Operands>(all[row % 8 * 4 + k % 16 / 4]);
            auto right = emu::unpack<emu::Operands>(all[column * 4 + k % 16 / 4]);
            d[i] += (int8_t)(left.a[row / 8 + 2 * (k / 16)] >> k % 4 * 8) * (int8_t)(right.b[k / 16] >> k % 4 * 8);
        }
    }
}
inline void mma_s8_from(u32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 c0, u32 c1) {
    d[0] = d[2] = c0;
    d[1] = d[3] = c1;
    mma_s8(d, a, b0, b1);
}
inline u32 mul_fp16x2(u32 a, u32 b) {
    auto one = [](u32 x, u32 y) {
        auto wide = [](u32 bits) { uint16_t b = bits; __half h; memcpy(&h, &b, 2); return (float)h; };
        __half h = __float2half(wide(x) * wide(y));
        uint16_t bits; memcpy(&bits, &h, 2); return (u32)bits;
    };
    return one(a & 0xffff, b & 0xffff) | one(a >> 16, b >> 16) << 16;
}
inline void e4m3_to_fp16(u32& first, u32& second, u32 bytes) {
    auto pair = [](u32 two) {
        auto one = [](u32 b) { return (b & 0x80) << 8 | (b & 0x7f) << 7; };
        return mul_fp16x2(one(two & 0xff) | one(two >> 8 & 0xff) << 16, 0x5c005c00u);
    };
    first = pair(bytes & 0xffff), second = pair(bytes >> 16);
}
inline void each_half_twice(u32& lower, u32& upper, u32 pair) {
    lower = (pair & 0xffff) * 0x10001u, upper = (pair >> 16) * 0x10001u;
}
inline u32 pick_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
inline u32 blend(u32 a, u32 b, u32 mask) { return (a & mask) | (b & ~mask); }
