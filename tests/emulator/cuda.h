// Runs the kernels of a .cu file on the CPU: one fiber per CUDA thread, blocks one after another, so a block that
// waits for a later one never ends.
//
// Barriers, warp collectives and the wrapped PTX of kernels_cu (mma, ldmatrix, cp.async) behave as
// on the device; cp.async lands only when it is waited for, and shared memory starts as NaN, so a
// missing wait or barrier shows.  The one thing a reader would get wrong: fibers are scheduled in
// the order of `emu_order` (0 ascending, 1 descending, 2 shuffled), and a kernel that is right must
// give the same bits in all three.
#pragma once
#define NINFER_EMULATED 1
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#undef __shared__
#define __shared__ static __attribute__((section("emu_shared")))
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#undef __constant__
#define __constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__

namespace emu {

struct Slot { uint32_t word[16]; };
struct Exchange { uint32_t mask = 0, arrived = 0, turn = 0; Slot slot[2][32]; };
struct Warp { uint32_t alive = 0; Exchange exchange[8]; };
struct Copy { void* to; const void* from; int bytes, real; };
struct Fiber {
    void* sp; uint3 tid; int linear; bool done;
    std::vector<std::vector<Copy>> groups; std::vector<Copy> open;
};

struct Team { int arrived = 0; uint32_t turn = 0; };
struct Block {
    uint3 index;
    std::vector<Fiber> fibers; std::vector<Warp> warps; std::vector<uint8_t> dynamic; std::vector<int> order;
    int alive, arrived; uint32_t barrier_turn; uint64_t seed;
    char* stacks = nullptr; Team teams[16];
    ~Block() { free(stacks); }
};

inline Block* now;
inline Fiber* self;
inline dim3 block_size, grid_size;
inline uint8_t* dynamic_shared;
inline void* main_sp;
inline void (*entry)(void**);
inline void** entry_args;
constexpr size_t STACK = 256 << 10;

extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.weak emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp,(%rdi)
    movq %rsi,%rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

inline void yield() { emu_switch(&self->sp, main_sp); }

inline void release_if_complete() {
    if (now->arrived && now->arrived == now->alive) { now->arrived = 0; now->barrier_turn++; }
}

inline void barrier() {
    uint32_t turn = now->barrier_turn;
    now->arrived++;
    release_if_complete();
    while (now->barrier_turn == turn) yield();
}

inline int lane() { return self->linear & 31; }
inline Warp& warp() { return now->warps[self->linear >> 5]; }

// Deposit a slot, wait for every live lane of `mask`, see everybody's.
inline const Slot* exchange(uint32_t mask, const Slot& mine) {
    Warp& w = warp();
    Exchange* x = nullptr;
    for (auto& e : w.exchange) if (e.mask == mask) x = &e;
    if (!x) for (auto& e : w.exchange) if (!e.mask && !x) x = &e;
    if (!x) { fprintf(stderr, "emulator: too many warp masks\n"); abort(); }
    if (!(mask >> lane() & 1)) { fprintf(stderr, "emulator: lane outside its own mask\n"); abort(); }
    x->mask = mask;
    uint32_t turn = x->turn;
    x->slot[turn & 1][lane()] = mine;
    x->arrived |= 1u << lane();
    while (x->turn == turn) {
        if ((x->arrived & w.alive & mask) == (w.alive & mask)) { x->arrived = 0; x->turn++; break; }
        yield();
    }
    return x->slot[turn & 1];
}

template <class T> inline Slot pack(T v) { Slot s{}; static_assert(sizeof(T) <= 64); memcpy(&s, &v, sizeof v); return s; }
template <class T> inline T unpack(const Slot& s) { T v; memcpy(&v, &s, sizeof v); return v; }

inline void land(std::vector<Copy>& copies) {
    for (auto& c : copies) { memcpy(c.to, c.from, c.real); memset((char*)c.to + c.real, 0, c.bytes - c.real); }
    copies.clear();
}

inline void start() {
    entry(entry_args);
    for (auto& group : self->groups) land(group);
    self->done = true;
    now->alive--;
    warp().alive &= ~(1u << lane());
    release_if_complete();
    yield();
    abort();
}

}  // namespace emu

extern "C" inline int emu_order = 0;
extern uint8_t __start_emu_shared[] __attribute__((weak)), __stop_emu_shared[] __attribute__((weak));

namespace emu {

inline void reset(Block& b, uint3 index, int shared) {
    int threads = block_size.x * block_size.y * block_size.z;
    b.index = index; b.seed = 88172645463325252ull;
    b.dynamic.assign(shared + 1024, 0xff);
    dynamic_shared = (uint8_t*)(((uintptr_t)b.dynamic.data() + 1023) & ~uintptr_t(1023));
    if (__start_emu_shared) memset(__start_emu_shared, 0xff, __stop_emu_shared - __start_emu_shared);
    if ((int)b.fibers.size() < threads) b.fibers.resize(threads);
    b.warps.assign((threads + 31) / 32, Warp{});
    b.order.resize(threads);
    if (!b.stacks) b.stacks = (char*)aligned_alloc(64, STACK * 1024);
    b.alive = threads; b.arrived = 0;
    for (Team& team : b.teams) team = Team{};
    for (int i = 0; i < threads; i++) {
        Fiber& f = b.fibers[i];
        f.linear = i; f.done = false; f.groups.clear(); f.open.clear();
        f.tid = uint3{i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
        b.warps[i / 32].alive |= 1u << (i & 31);
        b.order[i] = emu_order == 1 ? threads - 1 - i : i;
        void** top = (void**)(b.stacks + STACK * (i + 1));
        *--top = nullptr;  // keeps the entry's stack aligned as after a call
        *--top = (void*)start;
        for (int r = 0; r < 6; r++) *--top = nullptr;
        f.sp = top;
    }
}

inline void run(Block& b) {
    int threads = block_size.x * block_size.y * block_size.z;
    while (b.alive) {
        if (emu_order == 2)
            for (int i = threads - 1; i > 0; i--) {
                b.seed ^= b.seed << 13; b.seed ^= b.seed >> 7; b.seed ^= b.seed << 17;
                std::swap(b.order[i], b.order[b.seed % (i + 1)]);
            }
        for (int i : b.order) {
            if (b.fibers[i].done) continue;
            self = &b.fibers[i];
            emu_switch(&main_sp, self->sp);
        }
    }
}

template <class F, class Tuple, size_t... I> inline void call(F f, void** args, std::index_sequence<I...>);

template <class... A> struct Thunk {
    static inline void (*kernel)(A...);
    template <size_t... I> static void apply(void** args, std::index_sequence<I...>) { kernel(*(std::remove_reference_t<A>*)args[I]...); }
    static void invoke(void** args) { apply(args, std::index_sequence_for<A...>{}); }
};

template <class... A>
inline int launch(void (*kernel)(A...), const int* grid, const int* block, int shared, void** args, int count) {
    if (count != sizeof...(A)) return 1;
    Thunk<A...>::kernel = kernel;
    entry = Thunk<A...>::invoke; entry_args = args;
    grid_size = dim3(grid[0], grid[1], grid[2]); block_size = dim3(block[0], block[1], block[2]);
    static Block block_now;
    now = &block_now;
    for (int z = 0; z < grid[2]; z++) for (int y = 0; y < grid[1]; y++) for (int x = 0; x < grid[0]; x++) {
        reset(*now, uint3{(unsigned)x, (unsigned)y, (unsigned)z}, shared);
        run(*now);
    }
    return 0;
}

}  // namespace emu

#define EMU_EXPORT(name) \
    extern "C" int emu_##name(const int* grid, const int* block, int shared, void** args, int count) { \
        return emu::launch(name, grid, block, shared, args, count); \
    }

#define threadIdx (emu::self->tid)
#define blockIdx (emu::now->index)
#define blockDim emu::block_size
#define gridDim emu::grid_size
#define __syncthreads emu::barrier
inline void __syncwarp(unsigned mask = ~0u) { emu::exchange(mask, emu::Slot{}); }

template <class T> inline T __shfl_sync(unsigned mask, T v, int src, int width = 32) {
    auto s = emu::exchange(mask, emu::pack(v));
    int base = emu::lane() & ~(width - 1);
    return emu::unpack<T>(s[base + (src & (width - 1))]);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int x, int = 32) {
    auto s = emu::exchange(mask, emu::pack(v));
    return emu::unpack<T>(s[emu::lane() ^ x]);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, int d, int width = 32) {
    auto s = emu::exchange(mask, emu::pack(v));
    int l = emu::lane(), to = (l & (width - 1)) + d < width ? l + d : l;
    return emu::unpack<T>(s[to]);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, int d, int width = 32) {
    auto s = emu::exchange(mask, emu::pack(v));
    int l = emu::lane(), to = (l & (width - 1)) >= d ? l - d : l;
    return emu::unpack<T>(s[to]);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
    auto s = emu::exchange(mask, emu::pack<int>(p != 0));
    unsigned out = 0;
    for (int i = 0; i < 32; i++) if ((mask & emu::warp().alive) >> i & 1) out |= unsigned(emu::unpack<int>(s[i])) << i;
    return out;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    auto s = emu::exchange(mask, emu::pack(v));
    unsigned out = 0;
    for (int i = 0; i < 32; i++) if ((mask & emu::warp().alive) >> i & 1) { unsigned o = emu::unpack<unsigned>(s[i]); if (o > out) out = o; }
    return out;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
inline float __uint_as_float(unsigned x) { float f; memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned x; memcpy(&x, &f, 4); return x; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    uint64_t both = uint64_t(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned sel = s >> (4 * i) & 15, byte = both >> (8 * (sel & 7)) & 255;
        if (sel & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
inline float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
inline unsigned __vmaxu2(unsigned a, unsigned b) {
    unsigned low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff;
    return low | ((a >> 16) > (b >> 16) ? a >> 16 : b >> 16) << 16;
}
template <class A, class B> inline auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> inline auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
inline void __threadfence() {}
template <class T, class U> inline T atomicAdd(T* p, U v) { T old = *p; *p = old + (T)v; return old; }
template <class T, class U> inline T atomicMax(T* p, U v) { T old = *p; if ((T)v > old) *p = v; return old; }
template <class T, class U> inline T atomicExch(T* p, U v) { T old = *p; *p = v; return old; }
template <class T> inline T atomicCAS(T* p, T c, T v) { T old = *p; if (old == c) *p = v; return old; }
