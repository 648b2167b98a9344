// Scores of blocks against a request's own query, on the device: CUDA C++ for NVRTC, for nvcc
// (compute capability 8.0 and later) and, under shim/cuda.h, for a C++20 compiler.
//
// The specification is src/score/: scalar.rs for the products, heads.rs for what becomes of them,
// best.rs for the selection. The host's side is src/cuda/, which packs what the kernels read:
// - A table's row is padded to whole chunks of 8 f16, 16 bytes, the largest single load.
// - A query's columns are packed to the same chunks, with zeros where it does not ask. Table
//   elements are finite, so that a zero takes its column out of the product.
//
// No answer depends on the order in which threads run: sums have one fixed shape, and selection
// compares keys that are all distinct.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 LANES = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
constexpr u32 CHUNK = 8;

#ifdef __CUDACC__
__device__ inline float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
#endif

struct Chunk {
    float at[CHUNK];
};

__device__ inline Chunk unpack(uint4 packed) {
    const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
    Chunk chunk;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        chunk.at[2 * i] = half_to_float(static_cast<unsigned short>(words[i] & 0xffffu));
        chunk.at[2 * i + 1] = half_to_float(static_cast<unsigned short>(words[i] >> 16));
    }
    return chunk;
}

__device__ inline float dot4(float4 weights, const float* values, float sum) {
    sum = fmaf(weights.x, values[0], sum);
    sum = fmaf(weights.y, values[1], sum);
    sum = fmaf(weights.z, values[2], sum);
    return fmaf(weights.w, values[3], sum);
}

// Sums each of N values over neighbouring lanes, `lanes` of them: lane l is left with the sum of
// value l mod N. Each step halves the values a lane still carries, so that N values cost some N
// shuffles instead of N log2(lanes).
template <u32 N>
__device__ inline float sum_over_lanes(float (&values)[N], u32 lane, u32 lanes) {
#pragma unroll
    for (u32 half = N / 2; half > 0; half /= 2) {
        const bool upper = (lane & half) != 0;
#pragma unroll
        for (u32 i = 0; i < half; ++i) {
            const float keep = upper ? values[i + half] : values[i];
            const float give = upper ? values[i] : values[i + half];
            values[i] = keep + __shfl_xor_sync(ALL_LANES, give, half);
        }
    }
    float sum = values[0];
    for (u32 offset = N; offset < lanes; offset *= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    }
    return sum;
}

// ---------------------------------------------------------------------------------------------
// Row products: scores[q][row] = sum over the query's chunks of value * element.
//
// A block takes ROW_TILE rows and a slice of the columns, for up to QUERIES queries at once, whose
// slices lie in shared memory: the table is read once for all of them. Slices are summed by
// sum_planes; cutting columns as well as rows keeps all processors busy with few rows, too.
// blockIdx.x counts (slice, queries), the latter fastest, and blockIdx.y the rows: blocks that run
// at the same time read neighbouring memory, and the same memory for other queries.

constexpr u32 ROW_THREADS = 256;
constexpr u32 ROWS_A_WARP = 4;
constexpr u32 ROW_TILE = ROW_THREADS / LANES * ROWS_A_WARP;
constexpr u32 SLICE_CHUNKS = 256;

struct RowArguments {
    const uint4* table;    // [rows, row_chunks]
    const u32* chunks;     // [chunk_count]: which chunk of the row
    const float4* values;  // [queries, chunk_count, 2]
    float* partial;        // [slices, queries, rows]
    u32 rows, row_chunks, chunk_count, queries;
};

template <u32 QUERIES>
__device__ inline void row_dots(const RowArguments& a, float4* weights, u32* chunks) {
    const u32 query_tiles = (a.queries + QUERIES - 1) / QUERIES;
    const u32 first_query = blockIdx.x % query_tiles * QUERIES;
    const u32 slice = blockIdx.x / query_tiles;
    const u32 first_chunk = slice * SLICE_CHUNKS;
    const u32 count = min(SLICE_CHUNKS, a.chunk_count - first_chunk);

    for (u32 i = threadIdx.x; i < count; i += ROW_THREADS) {
        chunks[i] = a.chunks[first_chunk + i];
#pragma unroll
        for (u32 q = 0; q < QUERIES; ++q) {
            const u64 query = min(first_query + q, a.queries - 1);
            const float4* from = a.values + (query * a.chunk_count + first_chunk + i) * 2;
            // The halves of a chunk lie apart: lanes then read neighbouring 16 bytes.
            weights[(2 * q) * SLICE_CHUNKS + i] = from[0];
            weights[(2 * q + 1) * SLICE_CHUNKS + i] = from[1];
        }
    }
    __syncthreads();

    const u32 lane = threadIdx.x % LANES;
    const u32 first_row = blockIdx.y * ROW_TILE + threadIdx.x / LANES * ROWS_A_WARP;
    const uint4* row[ROWS_A_WARP];
    float sums[QUERIES][ROWS_A_WARP];
#pragma unroll
    for (u32 r = 0; r < ROWS_A_WARP; ++r) {
        // Past the last row: read that one again, write nothing.
        row[r] = a.table + static_cast<u64>(min(first_row + r, a.rows - 1)) * a.row_chunks;
#pragma unroll
        for (u32 q = 0; q < QUERIES; ++q) sums[q][r] = 0.0f;
    }
#pragma unroll 2
    for (u32 i = lane; i < count; i += LANES) {
        uint4 packed[ROWS_A_WARP];
#pragma unroll
        for (u32 r = 0; r < ROWS_A_WARP; ++r) packed[r] = row[r][chunks[i]];
#pragma unroll
        for (u32 r = 0; r < ROWS_A_WARP; ++r) {
            const Chunk values = unpack(packed[r]);
#pragma unroll
            for (u32 q = 0; q < QUERIES; ++q) {
                const float4 low = weights[(2 * q) * SLICE_CHUNKS + i];
                const float4 high = weights[(2 * q + 1) * SLICE_CHUNKS + i];
                sums[q][r] = dot4(high, values.at + 4, dot4(low, values.at, sums[q][r]));
            }
        }
    }
#pragma unroll
    for (u32 q = 0; q < QUERIES; ++q) {
        const float sum = sum_over_lanes(sums[q], lane, LANES);
        const u32 query = first_query + q;
        if (lane < ROWS_A_WARP && first_row + lane < a.rows && query < a.queries) {
            const u64 plane = static_cast<u64>(slice) * a.queries + query;
            a.partial[plane * a.rows + first_row + lane] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
row_dots_1(const uint4* __restrict__ table, const u32* __restrict__ chunks,
           const float4* __restrict__ values, float* __restrict__ partial,
           u32 rows, u32 row_chunks, u32 chunk_count, u32 queries) {
    __shared__ float4 weights[2 * SLICE_CHUNKS];
    __shared__ u32 slice_chunks[SLICE_CHUNKS];
    row_dots<1>({table, chunks, values, partial, rows, row_chunks, chunk_count, queries},
                weights, slice_chunks);
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
row_dots_4(const uint4* __restrict__ table, const u32* __restrict__ chunks,
           const float4* __restrict__ values, float* __restrict__ partial,
           u32 rows, u32 row_chunks, u32 chunk_count, u32 queries) {
    __shared__ float4 weights[4 * 2 * SLICE_CHUNKS];
    __shared__ u32 slice_chunks[SLICE_CHUNKS];
    row_dots<4>({table, chunks, values, partial, rows, row_chunks, chunk_count, queries},
                weights, slice_chunks);
}

// out[q][row] = sum over planes p of planes[p * plane_step + q * query_step][row] / divisor.
constexpr u32 SUM_THREADS = 256;

extern "C" __global__ void __launch_bounds__(SUM_THREADS)
sum_planes(const float* __restrict__ planes, float* __restrict__ out, u32 rows, u32 count,
           u32 plane_step, u32 query_step, u32 divisor) {
    const u32 row = blockIdx.x * SUM_THREADS + threadIdx.x;
    const u64 query = blockIdx.y;
    if (row >= rows) return;
    double sum = 0.0;
    for (u64 plane = 0; plane < count; ++plane) {
        sum += planes[(plane * plane_step + query * query_step) * rows + row];
    }
    out[query * rows + row] = static_cast<float>(sum / divisor);
}

// ---------------------------------------------------------------------------------------------
// Head products: each query head of a group with its part of the row, the part of one (layer, KV
// head). A mean over the group needs none of this: the host averages the heads first.
//
// `lanes` lanes (8, 16 or 32) share a row's part, so that a warp reads whole stretches of memory;
// their chunks of the query stay in registers over all rows. Groups are cut into tiles of HEADS,
// the last filled with copies of a head, which no maximum sees. The grid is as above: blockIdx.x
// counts (part, query), blockIdx.y the rows.

constexpr u32 HEAD_THREADS = 256;
constexpr u32 HEAD_BATCHES = 4;

enum HeadMode : u32 {
    HEAD_MAX = 0,  // the largest of the group, times the row's scale
    HEAD_RAW = 1,  // each head's product
    HEAD_ADD = 2,  // each head's product added to what is there
};

struct HeadArguments {
    const uint4* table;    // [rows, row_chunks]
    const u32* parts;      // [parts, 2]: first chunk in the row, column of the scale
    const float4* values;  // [queries, parts, group_tiles, HEADS, part_chunks, 2]
    const float* scales;   // [rows, scale_width]
    float* out;            // HEAD_MAX: [queries, parts, rows]; else [queries, parts, group, rows]
    u32 rows, row_chunks, queries, group, part_chunks, lanes, scale_width, mode;
};

// ROWS of a batch to each team of lanes.
template <u32 HEADS, u32 ROWS>
__device__ inline void head_scores(const HeadArguments& a) {
    const u32 query = blockIdx.x % a.queries, part = blockIdx.x / a.queries;
    const u32 parts = gridDim.x / a.queries;
    const u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const u32 team = lane / a.lanes, member = lane % a.lanes;
    const u32 warp_rows = LANES / a.lanes * ROWS;
    const u32 group_tiles = (a.group + HEADS - 1) / HEADS;
    const u32 strips = a.part_chunks / a.lanes;
    const u32 start = a.parts[2 * part];
    const u64 plane = static_cast<u64>(query) * parts + part;
    const float4* values = a.values + plane * group_tiles * HEADS * a.part_chunks * 2;

    float4 weights[HEADS][2];
    for (u32 batch = 0; batch < HEAD_BATCHES; ++batch) {
        const u32 batch_of_all = blockIdx.y * HEAD_BATCHES + batch;
        const u32 warp_row = (batch_of_all * (HEAD_THREADS / LANES) + warp) * warp_rows;
        if (warp_row >= a.rows) return;
        const u32 first_row = warp_row + team * ROWS;
        const u32 own_row = first_row + member;
        const bool writes = member < ROWS && own_row < a.rows;
        float score = __uint_as_float(0xff800000u);  // -infinity
        for (u32 group_tile = 0; group_tile < group_tiles; ++group_tile) {
            float sums[HEADS][ROWS];
#pragma unroll
            for (u32 h = 0; h < HEADS; ++h) {
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) sums[h][r] = 0.0f;
            }
            for (u32 strip = 0; strip < strips; ++strip) {
                const u32 chunk = strip * a.lanes + member;
                if (batch == 0 || group_tiles * strips > 1) {
#pragma unroll
                    for (u32 h = 0; h < HEADS; ++h) {
                        const u64 head = static_cast<u64>(group_tile) * HEADS + h;
                        weights[h][0] = values[(head * a.part_chunks + chunk) * 2];
                        weights[h][1] = values[(head * a.part_chunks + chunk) * 2 + 1];
                    }
                }
                // Lanes past the part have zero weights; they still read inside the row.
                const u32 column = min(start + chunk, a.row_chunks - 1);
                uint4 packed[ROWS];
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    const u64 row = min(first_row + r, a.rows - 1);
                    packed[r] = a.table[row * a.row_chunks + column];
                }
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    const Chunk chunk_values = unpack(packed[r]);
#pragma unroll
                    for (u32 h = 0; h < HEADS; ++h) {
                        const float low = dot4(weights[h][0], chunk_values.at, sums[h][r]);
                        sums[h][r] = dot4(weights[h][1], chunk_values.at + 4, low);
                    }
                }
            }
#pragma unroll
            for (u32 h = 0; h < HEADS; ++h) {
                const float sum = sum_over_lanes(sums[h], lane, a.lanes);
                const u32 head = group_tile * HEADS + h;
                if (a.mode == HEAD_MAX) {
                    score = fmaxf(score, sum);
                } else if (writes && head < a.group) {
                    float* out = a.out + (plane * a.group + head) * a.rows + own_row;
                    *out = a.mode == HEAD_ADD ? *out + sum : sum;
                }
            }
        }
        if (a.mode == HEAD_MAX && writes) {
            if (a.scale_width > 0) {
                const u64 scales = static_cast<u64>(own_row) * a.scale_width;
                score *= a.scales[scales + a.parts[2 * part + 1]];
            }
            a.out[plane * a.rows + own_row] = score;
        }
    }
}

// BLOCKS of threads are to fit a multiprocessor: room for registers without spills.
#define HEAD_KERNEL(NAME, HEADS, ROWS, BLOCKS)                                                    \
    extern "C" __global__ void __launch_bounds__(HEAD_THREADS, BLOCKS)                            \
    NAME(const uint4* __restrict__ table, const u32* __restrict__ parts,                          \
         const float4* __restrict__ values, const float* __restrict__ scales,                     \
         float* __restrict__ out, u32 rows, u32 row_chunks, u32 queries, u32 group,               \
         u32 part_chunks, u32 lanes, u32 scale_width, u32 mode) {                                 \
        head_scores<HEADS, ROWS>({table, parts, values, scales, out, rows, row_chunks, queries,   \
                                  group, part_chunks, lanes, scale_width, mode});                 \
    }

HEAD_KERNEL(head_scores_1, 1, 8, 3)
HEAD_KERNEL(head_scores_4, 4, 8, 2)
HEAD_KERNEL(head_scores_8, 8, 4, 1)

// ---------------------------------------------------------------------------------------------
// KRI-T's second half: out[part][row] = max over the group of the heads' z-scores over the rows,
// of dots [parts, group, rows]. A block takes a part; blockIdx.x counts (query, part).

constexpr u32 STANDARD_THREADS = 256;
constexpr double DEVIATION_MIN = 1e-6;

// The sum over the block, the same bits in every thread. Two calls in a row take alternating
// halves of `sums`, so that one barrier each is enough.
__device__ inline double sum_over_block(double value, double* sums) {
    for (u32 offset = LANES / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    }
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = value;
    __syncthreads();
    double sum = 0.0;
    for (u32 warp = 0; warp < STANDARD_THREADS / LANES; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(STANDARD_THREADS)
standard_scores(const float* __restrict__ dots, float* __restrict__ out, u32 rows, u32 group) {
    __shared__ double sums[2][STANDARD_THREADS / LANES];
    float* scores = out + static_cast<u64>(blockIdx.x) * rows;
    for (u32 head = 0; head < group; ++head) {
        const float* column = dots + (static_cast<u64>(blockIdx.x) * group + head) * rows;
        double sum = 0.0;
        for (u32 row = threadIdx.x; row < rows; row += STANDARD_THREADS) sum += column[row];
        const double mean = sum_over_block(sum, sums[0]) / rows;
        double squares = 0.0;
        for (u32 row = threadIdx.x; row < rows; row += STANDARD_THREADS) {
            const double difference = column[row] - mean;
            squares += difference * difference;
        }
        const double deviation = sqrt(sum_over_block(squares, sums[1]) / rows);
        const double divisor = fmax(deviation, DEVIATION_MIN);
        // A thread meets the same rows for every head: no barrier.
        for (u32 row = threadIdx.x; row < rows; row += STANDARD_THREADS) {
            const float score = static_cast<float>((column[row] - mean) / divisor);
            scores[row] = head == 0 ? score : fmaxf(scores[row], score);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Selection: the k best of a range, best first. A tournament: each block takes a tile of keys and
// writes its k best; the host plays rounds until one tile is left.

constexpr u32 BEST_THREADS = 1024;
constexpr u32 BEST_KEYS_A_THREAD = 8;
constexpr u32 BEST_TILE = BEST_THREADS * BEST_KEYS_A_THREAD;
constexpr u32 BEST_MAX = 2048;

// A score and its block: smaller is better, and no two are equal.
typedef u64 Key;
constexpr Key NO_KEY = ~0ull;

struct Selection {
    u32 plane, start, end, k;
};

// Descending by score, -0 as 0, NaN after everything; then ascending by index.
__device__ inline Key key_of(float score, u32 index) {
    u32 order = 0xffffffffu;
    if (score == score) {
        const u32 bits = __float_as_uint(score + 0.0f);
        order = (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffu;
    }
    return static_cast<Key>(order) << 32 | index;
}

struct BestMemory {
    Key best[BEST_MAX];
    u32 counts[2][BEST_THREADS / LANES];
    u32 taken;
};

// How many of the block's keys lie below the limit. The halves of `counts` alternate, so that one
// barrier a call is enough.
__device__ inline u32 count_below(const Key (&keys)[BEST_KEYS_A_THREAD], Key limit, u32* counts) {
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < BEST_KEYS_A_THREAD; ++i) count += keys[i] < limit ? 1u : 0u;
    count = __reduce_add_sync(ALL_LANES, count);
    if (threadIdx.x % LANES == 0) counts[threadIdx.x / LANES] = count;
    __syncthreads();
    return __reduce_add_sync(ALL_LANES, counts[threadIdx.x % LANES]);
}

// Bitonic, over a power of two.
__device__ inline void sort_ascending(Key* keys, u32 size) {
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            const u32 low = threadIdx.x / step * 2 * step + threadIdx.x % step;
            if (threadIdx.x < size / 2) {
                const Key left = keys[low], right = keys[low + step];
                if ((left > right) == ((low & run) == 0)) {
                    keys[low] = right;
                    keys[low + step] = left;
                }
            }
            __syncthreads();
        }
    }
}

// Writes the k best of the block's keys to `out`, then NO_KEY up to `width`.
__device__ inline void select_best(const Key (&keys)[BEST_KEYS_A_THREAD], u32 k, Key* out,
                                   u32 width, BestMemory& memory) {
    for (u32 i = threadIdx.x; i < BEST_MAX; i += BEST_THREADS) memory.best[i] = NO_KEY;
    if (threadIdx.x == 0) memory.taken = 0;
    const u32 present = count_below(keys, NO_KEY, memory.counts[0]);
    Key limit = NO_KEY;
    if (k < present) {
        // The bits of the smallest limit with k keys below it, from the highest; once there are k
        // below, the rest of the bits cannot matter.
        limit = 0;
        u32 below = 0;
        for (u32 bit = 64; bit > 0 && below != k; --bit) {
            const Key candidate = limit | 1ull << (bit - 1);
            const u32 count = count_below(keys, candidate, memory.counts[bit % 2 == 0 ? 1 : 0]);
            if (count <= k) {
                limit = candidate;
                below = count;
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < BEST_KEYS_A_THREAD; ++i) {
        if (keys[i] < limit) memory.best[atomicAdd(&memory.taken, 1u)] = keys[i];
    }
    __syncthreads();
    u32 size = 1;
    while (size < min(k, present)) size *= 2;
    sort_ascending(memory.best, size);
    for (u32 i = threadIdx.x; i < width; i += BEST_THREADS) out[i] = memory.best[i];
}

// First round: blockIdx.x is the tile, blockIdx.y the selection; out is [selections, tiles, width].
extern "C" __global__ void __launch_bounds__(BEST_THREADS)
best_scores(const float* __restrict__ planes, const Selection* __restrict__ selections,
            Key* __restrict__ out, u32 rows, u32 width) {
    __shared__ BestMemory memory;
    const Selection selection = selections[blockIdx.y];
    const float* scores = planes + static_cast<u64>(selection.plane) * rows;
    const u32 first = selection.start + blockIdx.x * BEST_TILE + threadIdx.x;
    Key keys[BEST_KEYS_A_THREAD];
#pragma unroll
    for (u32 i = 0; i < BEST_KEYS_A_THREAD; ++i) {
        const u32 index = first + i * BEST_THREADS;
        keys[i] = index < selection.end ? key_of(scores[index], index) : NO_KEY;
    }
    const u64 tile = static_cast<u64>(blockIdx.y) * gridDim.x + blockIdx.x;
    select_best(keys, selection.k, out + tile * width, width, memory);
}

// Later rounds, over the `count` keys that a round left to each selection.
extern "C" __global__ void __launch_bounds__(BEST_THREADS)
best_keys(const Key* __restrict__ candidates, const Selection* __restrict__ selections,
          Key* __restrict__ out, u32 count, u32 width) {
    __shared__ BestMemory memory;
    const Key* own = candidates + static_cast<u64>(blockIdx.y) * count;
    const u32 first = blockIdx.x * BEST_TILE + threadIdx.x;
    Key keys[BEST_KEYS_A_THREAD];
#pragma unroll
    for (u32 i = 0; i < BEST_KEYS_A_THREAD; ++i) {
        const u32 index = first + i * BEST_THREADS;
        keys[i] = index < count ? own[index] : NO_KEY;
    }
    const u64 tile = static_cast<u64>(blockIdx.y) * gridDim.x + blockIdx.x;
    select_best(keys, selections[blockIdx.y].k, out + tile * width, width, memory);
}
