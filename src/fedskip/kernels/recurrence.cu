// An LSTM layer of many small models, all its time steps in one launch. See recurrence.py.
//
// A block takes N tiles of eight samples of one model through all T steps. A warp has eight units; a thread has
// one of them, with its four gates, for two samples of each tile. So c never leaves its thread, and the recurrent
// weights stay in registers, as left operands of products on tensor cores. What units tell each other in a step
// (h on the way forward, the gates' gradients on the way back) goes through shared memory as half floats: a row
// for each number, with the samples of a tile as columns. Tiles take turns, so that while warps wait for what
// others tell of one tile they compute the other.
//
// Given before this text: H units, T steps, N tiles, and V, of which 0 means that the input's part of the gates
// is given for every step, and more that it is looked up by a token below V. Sequences have a slot before the
// first step, where h is 0.
//
//   gates (n, B, 1 + T, H, 4)   the input's part: input, forget, cell, output gate; if looked up (n, V, H, 4)
//   tokens (n, B, T)
//   b (n, H, 4), w (n, 4 H, H), h (n, B, 1 + T, H)
//   c, active (n, blocks, T, N, threads)   what a thread keeps for the way back, of a tile: c, and the gates
//                                          after their activations, as numbers of 16 bits

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int WARPS = (H + 7) / 8, THREADS = 32 * WARPS;      // that have units
constexpr int PAIRS = (H + 15) / 16, PAIRED = 64 * PAIRS;     // two warps have 16 units
constexpr int SAMPLE = (1 + T) * H;                           // numbers from sample to sample

struct Gates { float i, f, g, o; };

#ifndef EMULATED  // tests have these on a CPU
typedef u32 Place;  // in shared memory
__device__ __forceinline__ Place place(const void* at) { return (u32)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void put(Place at, u32 x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// From global to shared memory, at some time before `arrived`.
template <int BYTES> __device__ __forceinline__ void copy(Place to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
__device__ __forceinline__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void arrived() {  // what was committed, but for the last ones
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// Warps tell that they have put something, and wait until all have, for the first, the second time and so on.
__device__ __forceinline__ void expect(u64* all, int warps) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(place(all)), "r"(warps) : "memory");
}
__device__ __forceinline__ void tell(u64* all) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(place(all)) : "memory");
}
__device__ __forceinline__ void hear(u64* all, int time) {
    for (u32 done = 0; !done;)
        asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(place(all)), "r"(time % 2) : "memory");
}
__device__ __forceinline__ void meet(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory"); }

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float one_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float at_most(float x, float most) {  // NaN stays NaN, unlike with fminf
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
}
__device__ __forceinline__ u32 halves(float low, float high) {  // two half floats
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// The right operands of two products, (16 x 8) each, one below the other: lane l has the address of row l.
__device__ __forceinline__ void load(u32 right[4], Place row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3]) : "r"(row) : "memory");
}
// sums (16 x 8) += left (16 x 16) right (16 x 8)
__device__ __forceinline__ void multiply(float sums[4], const u32 left[4], const u32 right[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

#define SHARED(Type, name)                             \
    extern __shared__ uint4 all_shared[];              \
    Type& name = *reinterpret_cast<Type*>(all_shared)
#endif

template <int OF> __device__ __forceinline__ void clear(void* at, int bytes) {  // by all threads of a block
    for (int i = threadIdx.x; i < bytes / 4; i += OF) ((u32*)at)[i] = 0;
}

constexpr int ROW = 16;  // bytes of eight half floats

// Numbers of 16 bits: the last ones of a float that is so large that its last bit stands for 1.
constexpr float LARGE = 8388608, MOST = 65535, HALF = 32767, LEAST = 1 / MOST;

__device__ __forceinline__ u32 lasts(float low, float high) {
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
}
__device__ __forceinline__ float low_of(u32 two) {
    return __uint_as_float(__byte_perm(two, 0x4B000000, 0x7410)) - LARGE;
}
__device__ __forceinline__ float high_of(u32 two) {
    return __uint_as_float(__byte_perm(two, 0x4B000000, 0x7432)) - LARGE;
}
// From 0 to 1, only g from -1 to 1. NaN is lost, but `activated` makes all four NaN, and so c, which is kept.
__device__ __forceinline__ uint2 packed(const Gates& z) {
    return make_uint2(lasts(fmaf(z.i, MOST, LARGE), fmaf(z.f, MOST, LARGE)),
                      lasts(fmaf(z.g, HALF, LARGE + HALF), fmaf(z.o, MOST, LARGE)));
}
__device__ __forceinline__ Gates unpacked(u32 x, u32 y) {
    return {low_of(x) * LEAST, high_of(x) * LEAST, fmaf(low_of(y), 1 / HALF, -1.0f), high_of(y) * LEAST};
}

constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ float tanh_of(float x) {
    return fmaf(2.0f, one_over(1 + exp2_of(-2 * LOG2E * x)), -1.0f);
}

// Three sigmoids and a tanh with a single division.
__device__ __forceinline__ Gates activated(float i, float f, float g, float o) {
    const float most = 31;  // so that the product of all four stays finite
    const float a = 1 + exp2_of(at_most(-LOG2E * i, most)), b = 1 + exp2_of(at_most(-LOG2E * f, most));
    const float c = 1 + exp2_of(at_most(-2 * LOG2E * g, most)), d = 1 + exp2_of(at_most(-LOG2E * o, most));
    const float ab = a * b, cd = c * d, by_all = one_over(ab * cd), by_ab = by_all * cd, by_cd = by_all * ab;
    return {by_ab * b, by_ab * a, fmaf(2 * by_cd, d, -1.0f), by_cd * c};
}

// The sum over the samples of a warp, for each of its units.
__device__ __forceinline__ float over_samples(float x) {
    for (int d = 1; d < 4; d *= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

struct Forward {
    u32 told[N][2][32 * ((H + 31) / 32) * ROW / 4];  // h of the step before and of this one
    float4 in[N][2][THREADS];                        // on its way from global memory
    u64 heard[N];
};

// The sums of a product: a thread has two rows, `low` and `low + 8`, of two columns, `pair` and `pair + 1`.
// Rows are units, each with two gates: of one product input and forget, of the other cell and output gate.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
forward(const float4* gates, const int* tokens, const float4* b, const float* w, float* h, float2* c,
        uint4* active, int B) {
    SHARED(Forward, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, low = lane / 4, pair = 2 * (lane % 4);
    const int unit = 8 * warp + low, first = blockIdx.x * 8 * N + pair, row = blockIdx.y;

    u32 left[PAIRS][2][4];
    w += (i64)row * 4 * H * H;
    for (int k = 0; k < PAIRS; k++)
        for (int two = 0; two < 2; two++)
            for (int r = 0; r < 4; r++) {
                const int from = 16 * k + 8 * (r / 2) + pair;
                const float* at = w + ((2 * two + r % 2) * H + unit) * H + from;
                left[k][two][r] = halves(unit < H && from < H ? at[0] : 0, unit < H && from + 1 < H ? at[1] : 0);
            }
    const float4 bias = unit < H ? b[row * H + unit] : make_float4(0, 0, 0, 0);
    const i64 start = ((i64)row * B + first) * SAMPLE + unit;
    const i64 kept = ((i64)row * gridDim.x + blockIdx.x) * T * N * THREADS + threadIdx.x;
    gates += V ? (i64)row * V * H + unit : start + H;
    tokens += ((i64)row * B + first) * T;
    h += start, c += kept, active += kept;

    const int many = unit < H ? B - first : 0;  // samples from this thread's first one on
    const auto there = [&](int n, int e) { return 8 * n + e < many; };
    int token[N][2];
    const auto look = [&](int n, int t) {
        for (int e = 0; e < 2; e++) token[n][e] = V && there(n, e) && t < T ? tokens[(8 * n + e) * T + t] : 0;
    };
    const auto fetch = [&](int n, int t, int on) {
        for (int e = 0; e < 2; e++)
            if (there(n, e) && t < T)
                copy<16>(place(&shared.in[n][e][threadIdx.x]),
                         gates + (V ? token[n][e] * H : (8 * n + e) * SAMPLE + on * H));
        committed(), look(n, t + 1);
    };
    clear<THREADS>(&shared, sizeof(shared));
    __syncthreads();
    for (int n = 0; n < N; n++) {
        for (int e = 0; e < 2; e++)
            if (there(n, e)) h[(8 * n + e) * SAMPLE] = 0;
        look(n, 0), fetch(n, 0, 0);
        if (threadIdx.x == 0) expect(&shared.heard[n], WARPS);
    }
    __syncthreads();

    const Place rows = place(shared.told) + ROW * lane, mine = place(shared.told) + ROW * unit + 2 * pair;
    constexpr int TURN = sizeof(shared.told[0][0]);
    float state[N][2] = {};
    #pragma unroll 2
    for (int t = 0; t < T; t++) {
        h += H;
        for (int n = 0; n < N; n++) {
            arrived<N - 1>();
            const float4 in[2] = {shared.in[n][0][threadIdx.x], shared.in[n][1][threadIdx.x]};
            fetch(n, t + 1, 1);
            float sums[2][4] = {bias.x, bias.x, bias.y, bias.y, bias.z, bias.z, bias.w, bias.w};
            if (t) hear(&shared.heard[n], t - 1);
            for (int k = 0; k < PAIRS; k += 2) {
                u32 right[4];
                load(right, rows + (2 * n + t % 2) * TURN + 16 * k * ROW);
                for (int i = 0; i < 2 && k + i < PAIRS; i++)
                    for (int two = 0; two < 2; two++) multiply(sums[two], left[k + i][two], right + 2 * i);
            }
            float out[2];
            uint2 keep[2];
            for (int e = 0; e < 2; e++) {
                const Gates z = activated(sums[0][e] + in[e].x, sums[0][2 + e] + in[e].y,
                                          sums[1][e] + in[e].z, sums[1][2 + e] + in[e].w);
                state[n][e] = fmaf(z.f, state[n][e], z.i * z.g);
                out[e] = z.o * tanh_of(state[n][e]);
                keep[e] = packed(z);
                if (there(n, e)) h[(8 * n + e) * SAMPLE] = out[e];
            }
            put(mine + (2 * n + (t + 1) % 2) * TURN, halves(out[0], out[1]));
            tell(&shared.heard[n]);
            c[n * THREADS] = make_float2(state[n][0], state[n][1]);
            active[n * THREADS] = make_uint4(keep[0].x, keep[0].y, keep[1].x, keep[1].y);
        }
        c += N * THREADS, active += N * THREADS;
        if (!V) gates += H;
    }
}

struct Backward {
    struct {
        u32 told[N][32 * 2 * PAIRS * ROW / 4];   // warp by warp, gate by gate, unit by unit
        float power[N][2][(PAIRS + 3) / 4 * 4];  // of each warp: those of one half, then of the other
    } turns[2];                                  // of the step before, on this way, and of this one
    float2 other[N][PAIRED];
    uint4 active[N][PAIRED];                     // on its way from global memory, and what follows
    float2 before[N][PAIRED], above[N][PAIRED];
    u64 heard[N];
};

// Two warps have 16 units together, the rows of their products; each sums over the gates of half of the warps,
// and then they add up what they have. Half floats have few exponents, so a warp divides its gradients by a power
// of two, which it tells, too: the largest is then between 2^14 and 2^15.
extern "C" __global__ void __launch_bounds__(PAIRED, 1)
backward(const float* dh, const float* w, const float2* c, const uint4* active, float4* d_gates, float4* d_b,
         int B) {
    SHARED(Backward, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, low = lane / 4, pair = 2 * (lane % 4);
    const int unit = 8 * warp + low, first = blockIdx.x * 8 * N + pair, row = blockIdx.y;
    const int half = warp % 2;

    u32 left[PAIRS][2][4];
    w += (i64)row * 4 * H * H;
    for (int k = 0; k < PAIRS; k++)
        for (int two = 0; two < 2; two++)
            for (int r = 0; r < 4; r++) {
                const int from = 8 * (half * PAIRS + k) + pair, to = 16 * (warp / 2) + 8 * (r % 2) + low;
                const float* at = w + ((2 * two + r / 2) * H + from) * H + to;
                left[k][two][r] = halves(from < H && to < H ? at[0] : 0, from + 1 < H && to < H ? at[H] : 0);
            }
    const i64 start = ((i64)row * B + first) * SAMPLE + unit;  // then to the last step
    const i64 kept = (((i64)row * gridDim.x + blockIdx.x) * T + T - 1) * N * THREADS + threadIdx.x;
    dh += start + T * H, d_gates += start + T * H, c += kept, active += kept;

    const int many = unit < H ? B - first : 0;
    const auto there = [&](int n, int e) { return 8 * n + e < many; };
    const bool has = warp < WARPS;
    const auto fetch = [&](int n, int t, int back) {  // gates and dh of a step, and c of the one before
        if (has && t >= 0) copy<16>(place(&shared.active[n][threadIdx.x]), active + (n - back * N) * THREADS);
        if (has && t >= 1) copy<8>(place(&shared.before[n][threadIdx.x]), c + (n - (1 + back) * N) * THREADS);
        for (int e = 0; e < 2; e++)
            if (there(n, e) && t >= 0)
                copy<4>(place(&shared.above[n][threadIdx.x]) + 4 * e, dh + (8 * n + e) * SAMPLE - back * H);
        committed();
    };
    clear<PAIRED>(&shared, sizeof(shared));
    __syncthreads();
    float2 state[N];
    for (int n = 0; n < N; n++) {
        for (int e = 0; e < 2; e++)
            if (there(n, e)) d_gates[(8 * n + e) * SAMPLE - T * H] = make_float4(0, 0, 0, 0);
        state[n] = has ? c[n * THREADS] : make_float2(0, 0);
        fetch(n, T - 1, 0);
        if (threadIdx.x == 0) expect(&shared.heard[n], 2 * PAIRS);
    }
    __syncthreads();

    const Place rows = place(shared.turns) + ROW * (32 * half * PAIRS + lane);
    const Place mine = place(shared.turns) + ROW * (32 * warp + low) + 2 * pair;
    constexpr int TILE = sizeof(shared.turns[0].told[0]), TURN = sizeof(shared.turns[0]);
    float dc[N][2] = {};
    Gates sums = {0, 0, 0, 0};
    #pragma unroll 1
    for (int t = T - 1; t >= 0; t--) {
        const auto& last = shared.turns[(t + 1) % 2];
        auto& now = shared.turns[t % 2];
        for (int n = 0; n < N; n++) {
            arrived<N - 1>();
            const uint4 gates = shared.active[n][threadIdx.x];
            const float2 before = t ? shared.before[n][threadIdx.x] : make_float2(0, 0);
            const float2 above = shared.above[n][threadIdx.x];
            fetch(n, t - 1, 1);
            if (t < T - 1) hear(&shared.heard[n], T - 2 - t);
            float total[4] = {};
            for (int k = 0; k < PAIRS; k++) {
                u32 right[4];
                float part[4] = {};
                load(right, rows + (t + 1) % 2 * TURN + n * TILE + 32 * k * ROW);
                for (int two = 0; two < 2; two++) multiply(part, left[k][two], right + 2 * two);
                for (int r = 0; r < 4; r++) total[r] = fmaf(part[r], last.power[n][half][k], total[r]);
            }
            shared.other[n][threadIdx.x] = half ? make_float2(total[0], total[1]) : make_float2(total[2], total[3]);
            meet(warp / 2);
            const float2 more = shared.other[n][threadIdx.x ^ 32];
            Gates d[2];
            u32 most = 0;
            for (int e = 0; e < 2; e++) {
                const Gates z = e ? unpacked(gates.z, gates.w) : unpacked(gates.x, gates.y);
                const float tanh = tanh_of(e ? state[n].y : state[n].x);
                const float up = (e ? above.y + more.y : above.x + more.x) + (half ? total[2 + e] : total[e]);
                const float down = fmaf(up * z.o, fmaf(-tanh, tanh, 1.0f), dc[n][e]);
                d[e] = {down * z.g * z.i * (1 - z.i), down * (e ? before.y : before.x) * z.f * (1 - z.f),
                        down * z.i * fmaf(-z.g, z.g, 1.0f), up * tanh * z.o * (1 - z.o)};
                dc[n][e] = down * z.f;
                sums.i += d[e].i, sums.f += d[e].f, sums.g += d[e].g, sums.o += d[e].o;
                const float one = fmaxf(fabsf(d[e].i), fabsf(d[e].f)), two = fmaxf(fabsf(d[e].g), fabsf(d[e].o));
                most = max(most, __float_as_uint(fmaxf(one, two)));
            }
            state[n] = before;
            // the power of two at or below the largest, over 2^14; less than 2^-112 counts as that
            most = min(max(__reduce_max_sync(~0u, most) & 0x7F800000u, 15u << 23), 254u << 23);
            const float by = __uint_as_float((268u << 23) - most);
            if (lane == 0) now.power[n][warp / PAIRS][warp % PAIRS] = __uint_as_float(most - (14u << 23));
            const Place to = mine + t % 2 * TURN + n * TILE;
            put(to, halves(d[0].i * by, d[1].i * by));
            put(to + 8 * ROW, halves(d[0].f * by, d[1].f * by));
            put(to + 16 * ROW, halves(d[0].g * by, d[1].g * by));
            put(to + 24 * ROW, halves(d[0].o * by, d[1].o * by));
            tell(&shared.heard[n]);
            for (int e = 0; e < 2; e++)
                if (there(n, e)) d_gates[(8 * n + e) * SAMPLE] = make_float4(d[e].i, d[e].f, d[e].g, d[e].o);
        }
        dh -= H, d_gates -= H, c -= N * THREADS, active -= N * THREADS;
    }
    const float4 whole = make_float4(over_samples(sums.i), over_samples(sums.f), over_samples(sums.g),
                                     over_samples(sums.o));
    if (unit < H && pair == 0) d_b[((i64)row * gridDim.x + blockIdx.x) * H + unit] = whole;
}

extern "C" __device__ const int forward_bytes = sizeof(Forward), backward_bytes = sizeof(Backward);
