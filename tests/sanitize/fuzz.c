/* The C sources against plain loops on random vectors, for AddressSanitizer and UndefinedBehaviorSanitizer: see `make
 * sanitize`. Every tensor is an allocation of its own that ends where the tensor does, and begins at any alignment, so
 * that one element read or written beside it is reported. */

#define SOURCES 0u
#include "../../src/borat/_native/kernels.c"
#include "../../src/borat/_native/dual.c"

#include <pthread.h>
#include <stdio.h>

#define MOST_TENSORS 40
#define MOST_VECTORS 16
#define MOST_PIECES 12

static uint64_t state = 88172645463325252u;

static uint64_t next(void) { /* xorshift */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }
static double uniform(void) { return (double)(next() >> 11) * 0x1p-52 - 1.0; }

static void check(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static int is_near(double a, double b, double size) { return fabs(a - b) <= size || (isnan(a) && isnan(b)); }

/* The threads, as GOMP_parallel would start them */

typedef struct {
    void (*function)(void *);
    void *argument;
    int number;
} Call;

static _Thread_local int number;

static int thread_number(void) { return number; }

static void *called(void *call) {
    number = ((Call *)call)->number;
    ((Call *)call)->function(((Call *)call)->argument);
    return NULL;
}

/* Sometimes one less than asked for: its share of the work is left to the others. */
static void parallel(void (*function)(void *), void *argument, unsigned threads, unsigned flags) {
    pthread_t others[8];
    Call calls[8];
    (void)flags;
    threads -= (unsigned)below(2);
    for (unsigned i = 1; i < threads; i++) {
        calls[i] = (Call){function, argument, (int)i};
        pthread_create(&others[i], NULL, called, &calls[i]);
    }
    function(argument);
    for (unsigned i = 1; i < threads; i++) pthread_join(others[i], NULL);
}

/* Vectors */

static Shape shape;
static int64_t sizes[MOST_TENSORS];
static void *allocated[MOST_VECTORS * MOST_TENSORS], *vectors[MOST_VECTORS * MOST_TENSORS];
static double *before[MOST_VECTORS * MOST_TENSORS]; /* copies, in double */

static double at(const void *tensor, int64_t i) {
    return shape.is_double ? ((const double *)tensor)[i] : ((const float *)tensor)[i];
}

static void make_shape(void) {
    static const int64_t edges[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 255, 257, 1023, 1025, 2047, 2049, 32767, 32769, 70001};
    const int several = below(2);
    shape = (Shape){.tensors = 1 + below(below(4) ? 4 : MOST_TENSORS), .sizes = sizes, .threads = 1 + several * 3};
    shape.parallel = parallel, shape.thread_number = thread_number;
    shape.is_double = (int16_t)below(2), shape.is_large = (int16_t)below(2);
    for (int64_t t = 0; t < shape.tensors; t++)
        sizes[t] = below(8) ? edges[below(t > 3 ? 12 : 18)] : below(300);
}

static void make_vectors(int64_t count, double scale) {
    for (int64_t v = 0; v < count * shape.tensors; v++) {
        const int64_t n = sizes[v % shape.tensors], skipped = below(16);
        const size_t width = shape.is_double ? sizeof(double) : sizeof(float);
        allocated[v] = malloc((size_t)(n + skipped) * width);
        vectors[v] = (char *)allocated[v] + (size_t)skipped * width;
        before[v] = malloc((size_t)n * sizeof(double));
        for (int64_t i = 0; i < n; i++) {
            const double x = below(50) ? scale * uniform() : 0.0;
            if (shape.is_double) ((double *)vectors[v])[i] = x;
            else ((float *)vectors[v])[i] = (float)x;
            before[v][i] = at(vectors[v], i);
        }
    }
}

static void free_vectors(int64_t count) {
    for (int64_t v = 0; v < count * shape.tensors; v++) free(allocated[v]), free(before[v]);
}

static void **vector(int64_t k) { return vectors + k * shape.tensors; }
static double was(int64_t k, int64_t t, int64_t i) { return before[k * shape.tensors + t][i]; }
static double is(int64_t k, int64_t t, int64_t i) { return at(vectors[k * shape.tensors + t], i); }
static double eps(void) { return shape.is_double ? 1e-13 : 1e-5; }

/* BORAT's kernels */

static void fuzz_move(void) {
    const int64_t terms = 1 + below(6), with_velocity = below(2), in_place = below(2), keeps = below(2);
    enum { OUT = 6, BASE, VELOCITY, OLD, LAST, ALL };
    double c[6];
    for (int64_t k = 0; k < terms; k++) c[k] = uniform();
    shape.terms = terms;
    make_vectors(ALL, 1.0);
    const int64_t base = in_place ? OUT : BASE;
    const Move move = {vector(OUT), vector(base), vectors, c, keeps ? vector(OLD) : NULL, keeps ? vector(LAST) : NULL,
                       with_velocity ? vector(VELOCITY) : NULL, 0.5, 0.25};
    borat_move(&shape, &move);
    for (int64_t t = 0; t < shape.tensors; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            double s = 0.0;
            for (int64_t k = 0; k < terms; k++) s += c[k] * was(k, t, i);
            const double v = 0.5 * was(VELOCITY, t, i) + s;
            if (with_velocity) check(is_near(is(VELOCITY, t, i), v, eps()), "velocity");
            check(is_near(is(OUT, t, i), was(base, t, i) - s - (with_velocity ? 0.25 * v : 0.0), eps()), "move");
            if (keeps) check(is(OLD, t, i) == was(base, t, i) && is(LAST, t, i) == was(terms - 1, t, i), "kept");
        }
    free_vectors(ALL);
}

static void fuzz_products(void) {
    const int64_t terms = shape.terms = 1 + below(7), left = below(2) ? 7 : 0; /* which may be one of the terms */
    double results[8];
    make_vectors(8, 1.0);
    check(!borat_products(&shape, vector(left), vectors, results), "memory");
    for (int64_t k = 0; k < terms; k++) {
        double sum = 0.0;
        for (int64_t t = 0; t < shape.tensors; t++)
            for (int64_t i = 0; i < sizes[t]; i++) sum += was(left, t, i) * was(k, t, i);
        check(is_near(results[k], sum, 1e-8), "products");
    }
    free_vectors(8);
}

/* FreeBORAT's: the pieces first, then rms, z and y */

static double metric_of(const Metric *metric, int64_t pieces, int64_t t, int64_t i) {
    const double g = was(pieces - 1, t, i), rms = was(pieces, t, i);
    return sqrt(metric->beta2 * rms * rms + (1.0 - metric->beta2) * g * g) + metric->eps;
}

static void fuzz_metric(void) {
    const int64_t pieces = shape.terms = 1 + below(6), rms = pieces, z = pieces + 1, y = pieces + 2;
    const double scale = below(4) ? 1.0 : below(2) ? 1e-25 : 1e25, bound = scale == 1.0 ? eps() : 1.0;
    make_vectors(pieces + 3, scale);
    for (int64_t t = 0; t < shape.tensors; t++) /* roots are not negative */
        for (int64_t i = 0; i < sizes[t]; i++) {
            const double root = fabs(was(rms, t, i)) + scale;
            if (shape.is_double) ((double *)vector(rms)[t])[i] = root;
            else ((float *)vector(rms)[t])[i] = (float)root;
            before[rms * shape.tensors + t][i] = is(rms, t, i);
        }
    const Metric metric = {vector(pieces - 1), vectors, vector(y), vector(z), vector(rms), 0.75, 1e-8};
    double sums[COLUMNS(6)], expected = 0.0, size = 0.0, c[6];
    check(!borat_measure(&shape, &metric, sums), "memory");
    for (int64_t t = 0; t < shape.tensors; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            const double g = was(pieces - 1, t, i), term = g * g / metric_of(&metric, pieces, t, i);
            expected += term, size += fabs(term);
        }
    check(is_near(sums[PAIRS(pieces) - 1], expected, 1e-3 * size), "measure");

    for (int64_t k = 0; k < pieces; k++) c[k] = 0.1 * uniform();
    const int projects = below(2);
    const Roll roll = {&metric, c, pieces > 1 ? vector(0) : NULL, 0.01, 0.9, 1.0, 0.9, projects};
    borat_roll(&shape, &roll);
    for (int64_t t = 0; t < shape.tensors; t++)
        for (int64_t i = 0; i < sizes[t]; i++) {
            double to = was(z, t, i) - 0.01 * was(y, t, i);
            for (int64_t k = 0; k < pieces; k++) to -= c[k] * was(k, t, i) / metric_of(&metric, pieces, t, i);
            const double apart = was(y, t, i) - was(z, t, i);
            const double result = projects ? was(z, t, i) + apart / 0.9 : to + 0.9 * (apart - 0.9 * (to - was(z, t, i)));
            const double error = 100 * bound * (scale + 1.0) * (scale == 1.0 ? 1.0 : 1e-5);
            check(is_near(is(z, t, i), to, error), "centre");
            check(is_near(is(y, t, i), result, error), "weights");
            if (pieces > 1) check(is(0, t, i) == was(pieces - 1, t, i), "kept piece");
        }
    free_vectors(pieces + 3);
}

/* The dual */

static double gap_of(int64_t n, const double *Q, const double *b, const double *alpha) {
    double top = -INFINITY, mean = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double r = b[i];
        for (int64_t j = 0; j < n; j++) r -= Q[i * n + j] * alpha[j];
        top = r > top ? r : top, mean += alpha[i] * r;
    }
    return top - mean;
}

static void fuzz_dual(void) {
    const int64_t n = 1 + below(MOST_PIECES), dimensions = 1 + below(n + 2), duplicates = below(3);
    double g[MOST_PIECES][MOST_PIECES + 2], size = 0.0;
    double *Q = calloc((size_t)(n * n), sizeof(double)), *b = calloc((size_t)n, sizeof(double));
    double *results = malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        const int64_t copied = duplicates && i ? below(2 * i) : i;
        for (int64_t d = 0; d < dimensions; d++) g[i][d] = copied < i ? g[copied][d] : i ? uniform() : 0.0;
        b[i] = below(3) ? uniform() : 0.0;
    }
    for (int64_t i = 0; i < n * n; i++) {
        for (int64_t d = 0; d < dimensions; d++) Q[i] += g[i / n][d] * g[i % n][d];
        size = fabs(Q[i]) > size ? fabs(Q[i]) : size;
    }
    check(!borat_dual(n, Q, b, results), "memory");
    check(gap_of(n, Q, b, results) <= 1e-12 * (size + 1.0), "dual");
    check(isfinite(results[n]), "value");

    /* One that is not finite ends, and has no finite value. */
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    *(below(2) ? &b[below(n)] : &Q[below(n) * (n + 1)]) = bad[below(3)];
    check(!borat_dual(n, Q, b, results), "memory");
    check(!isfinite(results[n]), "value of what is not finite");
    free(Q), free(b), free(results);
}

int main(int arguments, char **values) {
    const long rounds = arguments > 1 ? atol(values[1]) : 1000;
    for (long round = 0; round < rounds; round++) {
        make_shape(), fuzz_move();
        make_shape(), fuzz_products();
        make_shape(), fuzz_metric();
        for (int k = 0; k < 20; k++) fuzz_dual();
    }
    printf("%ld rounds, nothing wrong\n", rounds);
}
