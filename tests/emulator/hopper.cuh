// The CPU body of kernels_cu/hopper.cuh.  Products land only when they are waited for: until then their
// accumulators read as NaN, and operands in shared memory that change meanwhile end the run.
#pragma once
#include <array>
#include <functional>
#include <map>

using u64 = unsigned long long;

inline u32 shared_address(const void* p) { return (u32)((const uint8_t*)p - emu::dynamic_shared); }

inline u64 tile_of(const void* p, u32 slab_bytes) {
    return 1ull << 62 | 64ull << 32 | (u64)(slab_bytes >> 4) << 16 | (shared_address(p) >> 4 & 0x3fff);
}
inline u64 further(u64 tile, u32 bytes) { return tile + (bytes >> 4); }

namespace emu {

using Sums = std::vector<double>;
struct Product { float* d; bool add; std::function<Sums()> sums; Sums early; };
struct Flight { std::vector<std::vector<Product>> groups; std::vector<Product> open; std::map<float*, std::vector<float>> held; };
inline std::vector<Flight> flights(1024);
inline Flight& flight() { return flights[self->linear]; }

// What a descriptor says of element (outer, inner): 128-byte rows, runs permuted by address bits 7 .. 9.
inline float element(u64 tile, int outer, int inner) {
    if (tile >> 62 != 1) { fprintf(stderr, "emulator: only 128-byte swizzles\n"); abort(); }
    u32 slab = (u32)(tile >> 16 & 0x3fff) << 4, eight = (u32)(tile >> 32 & 0x3fff) << 4;
    u32 at = ((u32)(tile & 0x3fff) << 4) + inner / 64 * slab + outer / 8 * eight + outer % 8 * 128 + inner % 64 * 2;
    at ^= at >> 3 & 0x70;
    return (float)*(const __nv_bfloat16*)(dynamic_shared + at);
}

inline void depart(float* d, int count, bool add, std::function<Sums()> sums) {
    Flight& f = flight();
    if (!f.held.count(d)) {
        f.held[d].assign(d, d + count);
        for (int i = 0; i < count; i++) d[i] = NAN;
    }
    Sums early = sums();
    f.open.push_back({d, add, std::move(sums), std::move(early)});
}

inline bool bound(const Flight& f, float* d) {
    for (auto& p : f.open) if (p.d == d) return true;
    for (auto& group : f.groups) for (auto& p : group) if (p.d == d) return true;
    return false;
}

inline void land_products(Flight& f) {
    std::vector<Product> group = std::move(f.groups.front());
    f.groups.erase(f.groups.begin());
    for (auto& p : group) {
        Sums late = p.sums();
        if (memcmp(late.data(), p.early.data(), late.size() * sizeof(double))) {
            fprintf(stderr, "emulator: a tile changed under a product\n");
            abort();
        }
        auto& value = f.held[p.d];
        for (size_t i = 0; i < late.size(); i++) value[i] = (float)((p.add ? value[i] : 0.0) + late[i]);
    }
    for (auto& p : group)
        if (f.held.count(p.d) && !bound(f, p.d)) {
            memcpy(p.d, f.held[p.d].data(), f.held[p.d].size() * sizeof(float));
            f.held.erase(p.d);
        }
}

}  // namespace emu

inline void products_begin() { emu::exchange(~0u, emu::Slot{}); }
inline void products_commit() {
    auto& f = emu::flight();
    f.groups.push_back(std::move(f.open));
    f.open.clear();
}
template <int N> inline void products_wait() {
    auto& f = emu::flight();
    while (f.groups.size() > N) emu::land_products(f);
    emu::exchange(~0u, emu::Slot{});
}
template <int N> inline void settle(float (&)[N][4]) {}
template <int N> inline void registers_release() {}
template <int N> inline void registers_claim() {}
inline void copies_to_products() {}

// Bulk copies land when somebody waits for their barrier, and only once all that were expected have been started.
namespace emu {
struct Bulk { int expected = 0; std::vector<Copy> copies; };
inline std::map<void*, Bulk> bulks;
}  // namespace emu
inline void phase_expect(u64* barrier, u32 bytes) { emu::bulks[barrier].expected = bytes; }
constexpr int PAIR = 1;  // blocks run one after another here, so each is a pair by itself
inline int block_of_pair() { return 0; }
inline void pair_meet() { emu::barrier(); }
inline void phase_arrive_of(u64* barrier, int) { phase_arrive(barrier); }
inline void phase_watch(u64* barrier, u32 parity) { phase_wait(barrier, parity); }
struct BoxMap { u64 words[16]; };  // address, rows, columns, elements from row to row, rows of a box
inline void copy_box(void* to, const BoxMap& map, int column, int row, u64* barrier) {
    auto [from, rows, columns, stride, box] = *(const std::array<u64, 5>*)map.words;
    if (shared_address(to) & 1023) { fprintf(stderr, "emulator: a box not at a slab\n"); abort(); }
    for (int r = 0; r < (int)box; r++)
        for (int run = 0; run < 8; run++) {
            bool there = row + r >= 0 && row + r < (int)rows && column + run * 8 < (int)columns;
            const void* source = (const void*)(from + ((row + r) * stride + column + run * 8) * 2);
            emu::bulks[barrier].copies.push_back({(char*)to + r * 128 + (run ^ r % 8) * 16, source, 16, there ? 16 : 0});
        }
}
inline void copy_box_to_pair(void* to, const BoxMap& map, int column, int row, u64* barrier) { copy_box(to, map, column, row, barrier); }
inline void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
    if (((uintptr_t)to | (uintptr_t)from | bytes) & 15) { fprintf(stderr, "emulator: copy not aligned\n"); abort(); }
    emu::bulks[barrier].copies.push_back({to, from, (int)bytes, (int)bytes});
}
namespace emu {
inline void land_bulk(u64* barrier) {
    auto& bulk = bulks[barrier];
    int started = 0;
    for (auto& copy : bulk.copies) started += copy.bytes;
    if (!started || started != bulk.expected) return;
    land(bulk.copies);
    bulk = {};
    phase_step((Phase*)barrier);
}
inline bool waits_for_bulk = (before_waiting = land_bulk, true);
}  // namespace emu

template <int N>
inline void product_of_tiles(float (&d)[N][4], u64 a, u64 b, int add) {
    int row = emu::self->linear / 32 % 4 * 16 + emu::lane() / 4, t = emu::lane() % 4;
    emu::depart(&d[0][0], 4 * N, add, [=] {
        emu::Sums sums(4 * N);
        for (int i = 0; i < 4 * N; i++)
            for (int k = 0; k < 16; k++)
                sums[i] += (double)emu::element(a, row + i / 2 % 2 * 8, k) * emu::element(b, i / 4 * 8 + 2 * t + i % 2, k);
        return sums;
    });
}
inline void product_64(float (&d)[8][4], u64 a, u64 b, int add) { product_of_tiles(d, a, b, add); }
inline void product_128_of_tiles(float (&d)[16][4], u64 a, u64 b, int add) { product_of_tiles(d, a, b, add); }
inline void product_176_of_tiles(float (&d)[22][4], u64 a, u64 b, int add) { product_of_tiles(d, a, b, add); }

namespace emu {

// Rows g and g + 8 of a warp's A fragments.
inline std::vector<float> fragment_rows(const u32 (&a)[4]) {
    struct Fragment { u32 a[4]; };
    const Slot* all = exchange(~0u, pack(Fragment{{a[0], a[1], a[2], a[3]}}));
    std::vector<float> rows(32);
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++) {
            u32 word = unpack<Fragment>(all[lane() / 4 * 4 + k % 8 / 2]).a[r + 2 * (k / 8)] >> 16 * (k % 2);
            rows[r * 16 + k] = __uint_as_float(word << 16);
        }
    return rows;
}

// d (+)= a @ b for `count` columns of eight, b (16 rows of a tile) or, transposed, 16 columns of its rows.
inline void product_of(float* d, int count, const u32 (&a)[4], u64 b, bool add, bool transposed) {
    std::vector<float> rows = fragment_rows(a);
    int t = lane() % 4;
    depart(d, count * 4, add, [=] {
        Sums sums(count * 4);
        for (int i = 0; i < count * 4; i++)
            for (int k = 0; k < 16; k++) {
                int n = i / 4 * 8 + 2 * t + i % 2;
                sums[i] += (double)rows[i / 2 % 2 * 16 + k] * (transposed ? element(b, n, k) : element(b, k, n));
            }
        return sums;
    });
}

}  // namespace emu

inline void product_256(float (&d)[32][4], const u32 (&a)[4], u64 b) { emu::product_of(&d[0][0], 32, a, b, true, false); }
inline void product_128(float (&d)[16][4], const u32 (&a)[4], u64 b) { emu::product_of(&d[0][0], 16, a, b, true, false); }
inline void product_64_of(float (&d)[8][4], const u32 (&a)[4], u64 b, int add) {
    emu::product_of(&d[0][0], 8, a, b, add, true);
}
