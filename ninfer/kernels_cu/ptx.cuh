// The instructions that C++ has no word for, one wrapper each: tensor-core products, fragment
// loads, asynchronous copies, approximate exp2.  No kernel holds inline assembly of its own, so a
// reader meets PTX here alone, and tests can run every kernel on a CPU by replacing this file.
//
// The one thing a reader would get wrong: in the m16n8k16 fragments a thread (group g = lane / 4,
// t = lane % 4) holds A rows g and g + 8, B column g, and C columns 2t and 2t + 1.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using u32 = unsigned int;

__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// d += a @ b; a (16, 16), b (16, 8) in bf16, d (16, 8) in float32.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same in fp16.
__device__ __forceinline__ void mma_fp16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A float32 rounded to tf32 (10 bits of mantissa), as an operand of mma_tf32.
__device__ __forceinline__ u32 as_tf32(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
    return y;
}

// d += a @ b; a (16, 8), b (8, 8) in tf32: a thread holds A (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) and
// B (t, g), (t + 4, g).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 tiles of 16-bit elements; lanes 8i .. 8i+7 name the rows (16 bytes each) of tile i.
__device__ __forceinline__ void ldmatrix4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix4_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Transpose one 8x8 tile of 16-bit elements held across the warp.
__device__ __forceinline__ u32 transpose8x8(u32 v) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(v));
    return out;
}

// Copy 16 bytes to shared memory behind the thread's back; zeros when `valid` is false.
__device__ __forceinline__ void copy16_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Wait until at most N of this thread's committed groups are still under way.
template <int N>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// 2^x to about 2 ulp; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to 1 ulp; 0 of infinity.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// A 16-byte load of what no kernel writes (weights), leaving L1 alone.
__device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// A 16-byte load of what an earlier kernel wrote, leaving L1 alone.
__device__ __forceinline__ uint4 load_once(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// For a tool that follows threads one by one, and knows neither what a warp's barrier orders nor who meets at a named
// one: then every lane arrives, sums meet at a barrier with phases, and nobody rehearses, since what a rehearsal reads may
// be what another is writing (its results are never used).
#ifndef WATCHED
#define WATCHED 0
#endif
constexpr int ARRIVALS = WATCHED ? 32 : 1;  // of a warp

// Whether a kernel may be started before its predecessor has ended.
#if __CUDA_ARCH__ >= 900 && !WATCHED
constexpr bool REHEARSES = true;
#else
constexpr bool REHEARSES = false;
#endif

// Bring the line of an address into L2.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p)); }

// Dependent launches (no-ops before sm_90 and in ordinary launches): a kernel may start while its
// predecessor runs, must wait before it reads what the predecessor wrote, and may release its
// successor early.
__device__ __forceinline__ void await_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void release_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// a * b + c on pairs of bf16, subnormals included.
__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// copy16_async that fetches whole 128-byte lines into L2.
__device__ __forceinline__ void copy16_stream(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

// Copy 4 bytes to shared memory behind the thread's back, through L1; zeros when `valid` is false.
__device__ __forceinline__ void copy4_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

// Wait for `threads` threads of the block at barrier `id` (1..15; 0 is __syncthreads).
__device__ __forceinline__ void team_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Arrive at barrier `id` without waiting: some other warp's team_barrier completes it.
__device__ __forceinline__ void team_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Barriers in shared memory that threads pass in phases; `parity` is that of the phase waited for.
__device__ __forceinline__ void phase_init(unsigned long long* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void phase_arrive(unsigned long long* barrier) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared.b64 t, [%0];\n}\n" ::"r"(shared_address(barrier)) : "memory");
}

// Arrive once every copy that this thread has started is there.
__device__ __forceinline__ void phase_arrive_after_copies(unsigned long long* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void phase_wait(unsigned long long* barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2, 2000;\nselp.u32 %0, 1, 0, p;\n}\n"
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
#endif
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

// Add 1 to a counter and return what it was; earlier writes of this warp are visible to whoever sees it.
__device__ __forceinline__ u32 count_release(u32* counter) {
    u32 seen;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\n" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
}

// Add 1 to a counter and return what it was, without ordering anything and without waiting for the answer.
__device__ __forceinline__ u32 count_relaxed(u32* counter) {
    u32 seen;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;\n" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
}

// d += a @ b over half the depth: a (16, 8), b (8, 8); a0 holds rows g, a1 rows g + 8.
__device__ __forceinline__ void mma_bf16_half(float (&d)[4], u32 a0, u32 a1, u32 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// The fp16 product on fresh accumulators: d = a @ b.
__device__ __forceinline__ void mma_fp16_fresh(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// d += a @ b; a (16, 32), b (32, 8) signed bytes, d (16, 8) integers.  Lane (g, t) holds A rows g and g + 8 and
// B column g, each at 4t .. 4t + 3 and at 16 + 4t .. 16 + 4t + 3.
__device__ __forceinline__ void mma_s8(u32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a @ b + c where c holds the same two numbers for rows g and g + 8.
__device__ __forceinline__ void mma_s8_from(u32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 c0, u32 c1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%10,%11};\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
}

// a * b on pairs of fp16, subnormals included.
__device__ __forceinline__ u32 mul_fp16x2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Four e4m3 bytes as two pairs of fp16, exactly.
__device__ __forceinline__ void e4m3_to_fp16(u32& first, u32& second, u32 bytes) {
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
        : "=r"(first), "=r"(second)
        : "r"(bytes));
#else  // the exponent is moved, then rebased by 2^8
    u32 low = __byte_perm(bytes, 0, 0x1404), high = __byte_perm(bytes, 0, 0x3424);
    first = mul_fp16x2((low & 0x80008000u) | ((low >> 1) & 0x3f803f80u), 0x5c005c00u);
    second = mul_fp16x2((high & 0x80008000u) | ((high >> 1) & 0x3f803f80u), 0x5c005c00u);
#endif
}

// The lower half of a word twice, and the upper half twice; products of pairs take either without an instruction.
__device__ __forceinline__ void each_half_twice(u32& lower, u32& upper, u32 pair) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\nmov.b32 %0, {l, l};\nmov.b32 %1, {h, h};\n}\n"
        : "=r"(lower), "=r"(upper)
        : "r"(pair));
}

// Four bytes out of the eight of a and b; a nibble of the selector is a byte's number, its top bit the wish for
// eight copies of that byte's sign.
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// Bits of a where the mask has ones, bits of b elsewhere.
__device__ __forceinline__ u32 blend(u32 a, u32 b, u32 mask) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;\n" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}
