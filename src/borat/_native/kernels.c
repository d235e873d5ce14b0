/* CPU kernels. Memory traffic determines the cost of an optimizer step. PyTorch's kernels combine two tensors at a time
 * and would read and write a bundle several times; these kernels read every vector once and write every result once.
 * BORAT computes in double precision and rounds each result once. FreeBORAT computes in the tensors' own precision,
 * with long sums in double.
 *
 * A vector is a list of tensors, given as an array of pointers. Tensors are split into chunks. Each thread has the
 * same share of the chunks at every call, since its last results may still be in the caches of its core; threads
 * that finish early take chunks from the others. The result of a chunk does not depend on the thread that computes
 * it, so the bits are the same for any number of threads. Plain C without headers of Python or PyTorch:
 * _vectors/cpu.py calls it through ctypes. */

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const uint32_t borat_sources = SOURCES; /* checksum of the sources; the loader rejects a stale library */

#define CHUNK 32768     /* elements per unit of work of a thread */
#define MOVED 256       /* elements of a partial result; they stay in the first-level cache */
#define STRIP 64        /* elements whose metric stays in that cache for all pieces */
#define AHEAD 256       /* prefetch distance in elements */
#define SUMMED 1024     /* elements summed in the vectors' own precision */
#define MULTIPLIED 2048 /* elements of the left vector that stay in the cache for all products */
#define LANES 16        /* partial sums of a product, for vector instructions */

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORISED
#endif

#define INLINED __attribute__((always_inline)) static inline /* into clones, and for a constant number of pieces */
#define UNROLLED _Pragma("GCC unroll 4") /* so that sums stay in registers */

/* GOMP_parallel of PyTorch's OpenMP library: call a function in each thread of PyTorch's pool. A second pool would
 * compete for the cores with the first, whose idle threads spin. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*ThreadNumber)(void); /* omp_get_thread_num of the same library */

typedef struct {
    int64_t tensors;
    const int64_t *sizes;
    int64_t terms;
    Parallel parallel;
    ThreadNumber thread_number;
    int32_t threads;
    int16_t is_double; /* or float */
    int16_t is_large;  /* written results do not stay in the caches until they are read again */
} Shape;

/* With s = sum of coefficient * term: out = base - s. With a velocity: velocity = decay * velocity + s, and
 * out = base - s - momentum * velocity. Unless NULL, old_base gets the base and last_term the last term. */
typedef struct {
    void **out;
    void **base;
    void **terms; /* term by term, each with all tensors */
    const double *coefficients;
    void **old_base;
    void **last_term;
    void **velocity;
    double decay;
    double momentum;
} Move;

/* Adam's metric D = s + eps, where s = sqrt(beta2 * rms^2 + (1 - beta2) * gradient^2) is the new root of the
 * mean square. s is stored only with the move, so that a dropped batch changes nothing. */
typedef struct {
    void **gradient; /* the newest piece */
    void **rows;     /* the older pieces, row by row, each with all tensors */
    void **weights;  /* y: where gradients are measured */
    void **centre;   /* z */
    void **rms;
    double beta2;
    double eps;
} Metric;

#define PAIRS(n) ((n) * ((n) + 1) / 2)
#define COLUMNS(n) (2 * PAIRS(n) + (n) + 1) /* number of sums for n pieces */

/* With u = sum of coefficient * piece / D, older pieces first: z' = z - u - decay * y, and
 * y' = z' + pull * (ratio * (y - z) - beta * (z' - z)). If z' is projected before y' is computed, y gets the average
 * z + ratio / beta * (y - z) instead. keep gets the gradient; it may be one of the rows. */
typedef struct {
    const Metric *metric;
    const double *coefficients;
    void **keep;
    double decay;
    double pull;
    double ratio;
    double beta;
    int64_t before_projection;
} Roll;

/* Inner products of left with each of the terms. */
typedef struct {
    void **left;
    void **terms;
} Products;

/* Copy, bypassing the caches. A plain store would first read the cache line that it overwrites. */
static void stream(char *to, const char *from, size_t bytes) {
#if defined(__SSE2__)
    const size_t before = -(uintptr_t)to & 15, head = before < bytes ? before : bytes;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 16; to += 16, from += 16, bytes -= 16)
        _mm_stream_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
#endif
    memcpy(to, from, bytes);
}

static void write_out(const Shape *shape, void *to, const void *from, size_t bytes) {
    if (shape->is_large)
        stream(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Function names for both types. */
#define JOIN(name, type) name##_##type
#define OF(name, type) JOIN(name, type)
#define STEP_ALONG OF(step_along, REAL)
#define MOVE OF(move, REAL)
#define MULTIPLY OF(multiply, REAL)
#define SQUARE OF(square, REAL)
#define PRODUCTS OF(products, REAL)
#define BLOCK OF(Block, REAL)
#define LANE OF(Lane, REAL)
#define VECTOR OF(Vector, REAL)
#define WIDE OF(Wide, REAL)
#define SCALE OF(scale, REAL)
#define STREAMS OF(streams, REAL)
#define FETCH OF(fetch, REAL)
#define SUM OF(sum, REAL)
#define SUM_IN_DOUBLE OF(sum_in_double, REAL)
#define IS_EXACT OF(is_exact, REAL)
#define MEASURE OF(measure, REAL)
#define STEP OF(step, REAL)
#define ROLL OF(roll, REAL)

#define REAL double
#define SQRT sqrt
#define BITS int64_t
#define EXPONENT 0x7ff0000000000000
#include "kernels_of_real.h"
#undef REAL
#undef SQRT
#undef BITS
#undef EXPONENT
#define REAL float
#define SQRT sqrtf
#define BITS int32_t
#define EXPONENT 0x7f800000
#include "kernels_of_real.h"

/* The chunks of a thread that are still to do, on a cache line of its own. */
typedef struct {
    _Alignas(64) int64_t next;
    int64_t end;
} Share;

/* One operation (all others are NULL), its sums, one row per chunk, and the shares of the threads. */
typedef struct {
    const Shape *shape;
    const Move *move;
    const Products *products;
    const Metric *metric;
    const Roll *roll;
    double *sums;
    int64_t columns;
    Share *shares;
} Work;

static void do_chunk(const Work *work, int64_t tensor, int64_t start, int64_t end, int64_t chunk) {
    const Shape *shape = work->shape;
    const int is_double = shape->is_double;
    double *sums = work->sums + chunk * work->columns;
    if (work->move)
        (is_double ? move_double : move_float)(shape, work->move, tensor, start, end);
    else if (work->products)
        (is_double ? products_double : products_float)(shape, work->products, tensor, start, end, sums);
    else if (work->metric)
        (is_double ? measure_double : measure_float)(shape, work->metric, tensor, start, end, sums);
    else
        (is_double ? roll_double : roll_float)(shape, work->roll, tensor, start, end);
}

static int64_t chunks_of(int64_t size) { return (size + CHUNK - 1) / CHUNK; }

static int64_t count_chunks(const Shape *shape) {
    int64_t chunks = 0;
    for (int64_t t = 0; t < shape->tensors; t++) chunks += chunks_of(shape->sizes[t]);
    return chunks;
}

static void take_share(const Work *work, Share *share) {
    const Shape *shape = work->shape;
    int64_t tensor = 0, first = 0; /* current tensor and the number of its first chunk */
    for (;;) {
        const int64_t chunk = __atomic_fetch_add(&share->next, 1, __ATOMIC_RELAXED);
        if (chunk >= share->end) break;
        for (; chunk - first >= chunks_of(shape->sizes[tensor]); tensor++) first += chunks_of(shape->sizes[tensor]);
        const int64_t start = (chunk - first) * CHUNK, size = shape->sizes[tensor];
        do_chunk(work, tensor, start, size - start < CHUNK ? size : start + CHUNK, chunk);
    }
}

static void take_chunks(void *argument) {
    const Work *work = argument;
    const int64_t threads = work->shape->threads, own = threads > 1 ? work->shape->thread_number() : 0;
    for (int64_t t = 0; t < threads; t++) take_share(work, work->shares + (own + t) % threads);
#if defined(__SSE2__)
    _mm_sfence(); /* streamed stores must be visible before other threads continue */
#endif
}

static void run(Work *work) {
    const int64_t threads = work->shape->threads, chunks = count_chunks(work->shape);
    Share shares[threads];
    for (int64_t t = 0; t < threads; t++)
        shares[t] = (Share){.next = t * chunks / threads, .end = (t + 1) * chunks / threads};
    work->shares = shares;
    if (threads > 1)
        work->shape->parallel(take_chunks, work, threads, 0);
    else
        take_chunks(work);
}

/* Run the work with a row of sums per chunk, and add the rows. Return 0, or 1 if memory is exhausted. */
static int sum_up(Work *work, double *results) {
    const int64_t chunks = count_chunks(work->shape);
    work->sums = calloc(chunks * work->columns + 1, sizeof(double));
    if (!work->sums) return 1;
    run(work);
    memset(results, 0, work->columns * sizeof(double));
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t k = 0; k < work->columns; k++) results[k] += work->sums[c * work->columns + k];
    free(work->sums);
    return 0;
}

void borat_move(const Shape *shape, const Move *move) {
    Work work = {.shape = shape, .move = move};
    run(&work);
}

int borat_products(const Shape *shape, void **left, void **terms, double *results) {
    const Products products = {left, terms};
    Work work = {.shape = shape, .products = &products, .columns = shape->terms};
    return sum_up(&work, results);
}

int borat_measure(const Shape *shape, const Metric *metric, double *results) {
    Work work = {.shape = shape, .metric = metric, .columns = COLUMNS(shape->terms)};
    return sum_up(&work, results);
}

void borat_roll(const Shape *shape, const Roll *roll) {
    Work work = {.shape = shape, .roll = roll};
    run(&work);
}
