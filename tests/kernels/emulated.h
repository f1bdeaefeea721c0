// The words of CUDA C++ that our kernels use, for a CPU: the threads of a block are coroutines that take turns.
// What a GPU does at once for a warp (products, loads of operands, shuffles) waits until all of its lanes are there.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint2 { uint32_t x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { uint32_t x, y, z, w; };
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <class To, class From> To as(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}
inline uint32_t __float_as_uint(float x) { return as<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return as<float>(x); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t found = 0;
    for (int i = 0; i < 4; i++) found |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return found;
}

struct { int x, y; } inline threadIdx, blockIdx, gridDim;

enum Waits { NOT, SPINS, FOR_WARP, FOR_PAIR, FOR_BLOCK, DONE };
struct Copy { void* to; const void* from; int bytes; };
struct Thread {
    ucontext_t here;
    std::vector<char> stack;
    Waits waits;
    std::vector<Copy> copies;                 // begun
    std::vector<std::vector<Copy>> commits;   // and committed
};
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline std::function<void()> work;
inline bool any_told;  // since the threads had their last turn

inline void wait(Waits what) {
    Thread& me = threads[threadIdx.x];
    me.waits = what;
    swapcontext(&me.here, &scheduler);
}
inline void __syncthreads() { wait(FOR_BLOCK); }
inline void __syncwarp() { wait(FOR_WARP); }
inline void meet(int) { wait(FOR_PAIR); }

typedef uintptr_t Place;
inline Place place(const void* at) { return (Place)at; }
inline void put(Place at, uint32_t x) { *(uint32_t*)at = x; }
#define SHARED(Type, name) static Type name  // blocks run one after another

// Every other thread makes its copies at once, the others as late as they may.
template <int BYTES> void copy(Place to, const void* from) {
    if (threadIdx.x % 2)
        memcpy((void*)to, from, BYTES);
    else
        threads[threadIdx.x].copies.push_back({(void*)to, from, BYTES});
}
inline void committed() {
    Thread& me = threads[threadIdx.x];
    me.commits.push_back(std::move(me.copies));
    me.copies.clear();
}
template <int LATER> void arrived() {
    auto& commits = threads[threadIdx.x].commits;
    for (; (int)commits.size() > LATER; commits.erase(commits.begin()))
        for (const Copy& copy : commits.front()) memcpy(copy.to, copy.from, copy.bytes);
}

struct Heard { uint32_t expected : 16, here : 16, times; };
inline void expect(unsigned long long* all, int warps) { *(Heard*)all = {(uint32_t)warps, 0, 0}; }
inline void tell(unsigned long long* all) {
    __syncwarp();
    Heard& heard = *(Heard*)all;
    if (threadIdx.x % 32 == 0 && ++heard.here == heard.expected) heard.here = 0, heard.times++;
    any_told = true;
}
inline void hear(unsigned long long* all, int time) {  // by its parity alone, as a GPU does
    while ((((Heard*)all)->times - 1) % 2 != (uint32_t)time % 2) wait(SPINS);
}

inline bool released(int from, int to, Waits what) {  // where all wait for it, they go on
    for (int i = from; i < to; i++)
        if (threads[i].waits != what && threads[i].waits != DONE) return false;
    bool any = false;
    for (int i = from; i < to; i++)
        if (threads[i].waits == what) threads[i].waits = NOT, any = true;
    return any;
}

inline void run_block(int size) {
    threads.clear();
    threads.resize(size);
    for (Thread& thread : threads) {
        thread.stack.resize(1 << 16), thread.waits = NOT;
        getcontext(&thread.here);
        thread.here.uc_stack.ss_sp = thread.stack.data(), thread.here.uc_stack.ss_size = thread.stack.size();
        makecontext(&thread.here, [] { work(), wait(DONE); }, 0);
    }
    const int warps = size / 32;
    for (int turn = 0, on = true; on; turn++) {
        on = any_told = false;
        for (int j = 0; j < warps; j++) {  // in which order nobody knows on a GPU; each goes as far as it can
            const int first = 32 * (((turn % 2 ? j : warps - 1 - j) + 3 * turn) % warps);
            bool goes = true;
            while (goes) {
                goes = false;
                for (int i = first; i < first + 32; i++) {
                    goes |= threads[i].waits == NOT;
                    if (threads[i].waits <= SPINS) threadIdx.x = i, swapcontext(&scheduler, &threads[i].here);
                }
                goes |= released(first, first + 32, FOR_WARP);
                on |= goes;
            }
        }
        for (int i = 0; i + 64 <= size; i += 64) on |= released(i, i + 64, FOR_PAIR);
        on |= released(0, size, FOR_BLOCK) || any_told;
    }
    for (Thread& thread : threads)
        if (thread.waits != DONE) fprintf(stderr, "a thread waits for others that will not come\n"), abort();
}

inline void launch(int x, int y, int size, std::function<void()> kernel) {
    gridDim.x = x, gridDim.y = y, work = kernel;
    for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) run_block(size);
}

// What all lanes of the warp give; to be read before `wait(FOR_WARP)`.
template <class A> const A* gathered(const A& mine) {
    static A given[1024];
    given[threadIdx.x] = mine;
    wait(FOR_WARP);
    return given + threadIdx.x / 32 * 32;
}
inline float __shfl_xor_sync(uint32_t, float x, int d) {
    const float found = gathered(x)[threadIdx.x % 32 ^ d];
    wait(FOR_WARP);
    return found;
}

inline uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
    const uint32_t* all = gathered(x);
    uint32_t found = 0;
    for (int i = 0; i < 32; i++) found = max(found, all[i]);
    wait(FOR_WARP);
    return found;
}

inline float exp2_of(float x) { return exp2f(x); }
inline float one_over(float x) { return 1 / x; }
inline float at_most(float x, float most) { return x > most ? most : x; }
inline uint32_t halves(float low, float high) {
    return as<uint16_t>((_Float16)low) | (uint32_t)as<uint16_t>((_Float16)high) << 16;
}
inline float half(uint32_t two, int which) { return as<_Float16>((uint16_t)(two >> 16 * which)); }

// The layouts of operands are those of PTX's "Matrix Fragments for mma.m16n8k16" and of `ldmatrix`.
inline void load(uint32_t right[4], Place row) {
    const Place* rows = gathered(row);
    const int lane = threadIdx.x % 32;
    for (int part = 0; part < 4; part++) {
        const auto at = [&](int k) { return (uint32_t)((const uint16_t*)rows[8 * part + k])[lane / 4]; };
        right[part] = at(lane % 4 * 2) | at(lane % 4 * 2 + 1) << 16;
    }
    wait(FOR_WARP);
}
struct Operands { uint32_t left[4], right[2]; };
inline void multiply(float sums[4], const uint32_t left[4], const uint32_t right[2]) {
    Operands mine;
    memcpy(mine.left, left, sizeof mine.left), memcpy(mine.right, right, sizeof mine.right);
    const Operands* lanes = gathered(mine);
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        const int m = lane / 4 + 8 * (i / 2), n = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += half(lanes[m % 8 * 4 + k % 8 / 2].left[m / 8 + k / 8 * 2], k % 2) *
                   half(lanes[n * 4 + k % 8 / 2].right[k / 8], k % 2);
        sums[i] += sum;
    }
    wait(FOR_WARP);
}

// A kernel and where its arguments lie, as CUDA's own launch has them.
template <class... As, size_t... I>
void run(int x, int y, int size, void (*kernel)(As...), void** at, std::index_sequence<I...>) {
    launch(x, y, size, [=] { kernel(*(As*)at[I]...); });
}
template <class... As> void run(int x, int y, int size, void (*kernel)(As...), void** at) {
    run(x, y, size, kernel, at, std::index_sequence_for<As...>{});
}
