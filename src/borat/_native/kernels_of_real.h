/* The arithmetic of kernels.c for tensors of type REAL: included once for float and once for double. */

typedef REAL BLOCK __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef double LANE __attribute__((vector_size(LANES * sizeof(double))));

/* Load LANES elements as double; store them, rounded once. */
#define LOAD(x) __builtin_convertvector(*(const BLOCK *)(x), LANE)
#define STORE(x, lane) (*(BLOCK *)(x) = __builtin_convertvector(lane, BLOCK))

/* Write base minus the step to `to`, for n elements. */
INLINED void STEP_ALONG(const Move *move, REAL *const *x, int64_t terms, const REAL *base, REAL *v, REAL *to, int64_t n) {
    const double *c = move->coefficients, decay = move->decay, momentum = move->momentum;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        LANE s = {0};
        UNROLLED
        for (int64_t k = 0; k < terms; k++) s += c[k] * LOAD(x[k] + i);
        if (v) {
            STORE(v + i, decay * LOAD(v + i) + s);
            s += momentum * LOAD(v + i);
        }
        STORE(to + i, LOAD(base + i) - s);
    }
    for (; i < n; i++) {
        double s = 0.0;
        for (int64_t k = 0; k < terms; k++) s += c[k] * x[k][i];
        if (v) {
            v[i] = (REAL)(decay * v[i] + s);
            s += momentum * v[i];
        }
        to[i] = (REAL)(base[i] - s);
    }
}

VECTORISED static void MOVE(const Shape *shape, const Move *move, int64_t tensor, int64_t start, int64_t end) {
    const int64_t terms = shape->terms;
    REAL result[MOVED], *x[terms];
    for (; start < end; start += MOVED) {
        const int64_t n = end - start < MOVED ? end - start : MOVED;
        for (int64_t k = 0; k < terms; k++) x[k] = (REAL *)move->terms[k * shape->tensors + tensor] + start;
        const REAL *base = (const REAL *)move->base[tensor] + start;
        REAL *v = move->velocity ? (REAL *)move->velocity[tensor] + start : NULL;
        REAL *out = (REAL *)move->out[tensor] + start, *to = out == base ? out : result;
        if (move->old_base) write_out(shape, (REAL *)move->old_base[tensor] + start, base, n * sizeof(REAL));
        if (move->last_term) write_out(shape, (REAL *)move->last_term[tensor] + start, x[terms - 1], n * sizeof(REAL));
        switch (terms) {
        case 1: STEP_ALONG(move, x, 1, base, v, to, n); break;
        case 2: STEP_ALONG(move, x, 2, base, v, to, n); break;
        case 3: STEP_ALONG(move, x, 3, base, v, to, n); break;
        case 4: STEP_ALONG(move, x, 4, base, v, to, n); break;
        default: STEP_ALONG(move, x, terms, base, v, to, n);
        }
        if (to != out) write_out(shape, out, result, n * sizeof(REAL));
    }
}

/* Add the products of n elements of x with each of the terms. */
INLINED void MULTIPLY(const REAL *x, REAL *const *y, int64_t terms, int64_t n, LANE *lanes, double *sums) {
    int64_t i = 0;
    for (int64_t k = 0; k < terms; k++) lanes[k] = (LANE){0};
    for (; i + LANES <= n; i += LANES) {
        const LANE left = LOAD(x + i);
        UNROLLED
        for (int64_t k = 0; k < terms; k++) {
            __builtin_prefetch(y[k] + i + MULTIPLIED / 2);
            lanes[k] += left * LOAD(y[k] + i);
        }
    }
    for (int64_t k = 0; k < terms; k++) {
        double sum = 0.0;
        for (int64_t j = i; j < n; j++) sum += (double)x[j] * (double)y[k][j];
        for (int64_t j = 0; j < LANES; j++) sum += lanes[k][j];
        sums[k] += sum;
    }
}

/* Add the squares of x, for as many of its n elements as make two halves of whole blocks; return that number. Reading
 * both halves at once uses the memory bandwidth better than a single stream. The result has the bits of MULTIPLY, block
 * by block. */
INLINED int64_t SQUARE(const REAL *x, int64_t n, double *sum) {
    double squares[2][CHUNK / MULTIPLIED];
    const int64_t blocks = n / MULTIPLIED / 2, half = blocks * MULTIPLIED;
    for (int64_t block = 0; block < blocks; block++) {
        LANE lanes[2] = {{0}, {0}};
        for (int64_t i = block * MULTIPLIED; i < (block + 1) * MULTIPLIED; i += LANES) {
            const LANE first = LOAD(x + i), second = LOAD(x + half + i);
            lanes[0] += first * first;
            lanes[1] += second * second;
        }
        for (int64_t h = 0; h < 2; h++) {
            squares[h][block] = 0.0;
            for (int64_t j = 0; j < LANES; j++) squares[h][block] += lanes[h][j];
        }
    }
    for (int64_t h = 0; h < 2; h++)
        for (int64_t block = 0; block < blocks; block++) *sum += squares[h][block];
    return 2 * half;
}

VECTORISED static void PRODUCTS(const Shape *shape, const Products *products, int64_t tensor, int64_t start, int64_t end,
                                double *sums) {
    const int64_t terms = shape->terms;
    REAL *y[terms];
    if (terms == 1 && products->left[tensor] == products->terms[tensor])
        start += SQUARE((const REAL *)products->left[tensor] + start, end - start, sums);
    for (; start < end; start += MULTIPLIED) {
        const int64_t n = end - start < MULTIPLIED ? end - start : MULTIPLIED;
        const REAL *x = (const REAL *)products->left[tensor] + start;
        for (int64_t k = 0; k < terms; k++) y[k] = (REAL *)products->terms[k * shape->tensors + tensor] + start;
        switch (terms) {
#define CASE(label, count)                     \
    label : {                                  \
        LANE lanes[count];                     \
        MULTIPLY(x, y, count, n, lanes, sums); \
        break;                                 \
    }
            CASE(case 1, 1)
            CASE(case 2, 2)
            CASE(case 3, 3)
            CASE(case 4, 4)
            CASE(default, terms)
#undef CASE
        }
    }
}

typedef REAL VECTOR __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
typedef double WIDE __attribute__((vector_size(64 / sizeof(REAL) * sizeof(double))));
#define WIDTH ((int64_t)(sizeof(VECTOR) / sizeof(REAL)))
#define AT(x) (*(VECTOR *)(x))

/* Compute the new root of the mean square, and 1 / D, for STRIP elements. Gradient and root are scaled by a power of
 * two before they are squared, so that the larger one is about 1: squares of floats overflow above 1e19 and
 * underflow below 1e-19. The power has the exponent bits of the larger one, clamped so that its inverse is a normal
 * number as well. */
INLINED void SCALE(const Metric *metric, const REAL *g, const REAL *rms, REAL *restrict root, REAL *restrict inverse) {
    const REAL beta2 = (REAL)metric->beta2, rest = (REAL)(1.0 - metric->beta2);
    const REAL eps = (REAL)metric->eps;
    const BITS least = EXPONENT & -EXPONENT, product = EXPONENT - least; /* bits of a power times its inverse */
    for (int64_t i = 0; i < STRIP; i++) {
        BITS a, b;
        memcpy(&a, g + i, sizeof a);
        memcpy(&b, rms + i, sizeof b);
        a &= EXPONENT, b &= EXPONENT;
        a = a > b ? a : b;
        a = a > least ? a : least;
        a = a < product - least ? a : product - least;
        b = product - a;
        REAL power, by;
        memcpy(&power, &a, sizeof a);
        memcpy(&by, &b, sizeof b);
        const REAL x = by * g[i], s = by * rms[i];
        root[i] = power * SQRT(beta2 * (s * s) + rest * (x * x));
        inverse[i] = 1 / (root[i] + eps);
    }
}

/* Set the pointers that the metric's kernels read: the pieces, oldest first, then rms, z and y. */
INLINED void STREAMS(const Metric *metric, int64_t pieces, int64_t tensors, int64_t tensor, int64_t start, REAL **x) {
    for (int64_t k = 0; k < pieces - 1; k++) x[k] = (REAL *)metric->rows[k * tensors + tensor] + start;
    x[pieces - 1] = (REAL *)metric->gradient[tensor] + start;
    x[pieces] = (REAL *)metric->rms[tensor] + start;
    x[pieces + 1] = (REAL *)metric->centre[tensor] + start;
    x[pieces + 2] = (REAL *)metric->weights[tensor] + start;
}

/* Prefetch a strip of each stream. The hardware prefetcher stops at page boundaries. */
INLINED void FETCH(REAL *const *x, int64_t streams, int64_t at) {
    for (int64_t k = 0; k < streams; k++)
        for (int64_t i = 0; i < STRIP; i += WIDTH) __builtin_prefetch(x[k] + at + i);
}

/* Add, for pieces j and i <= j: <g_i, g_j / D>, then <g_i, g_j / D^2>; then <g_j, z>; then <g, z - y> of the newest
 * piece, over n elements in whole strips. Short sums are in the vectors' own precision; their totals are in double. */
INLINED void SUM(const Metric *metric, int64_t pieces, REAL *const *x, int64_t n, VECTOR *sums, WIDE *totals,
                 double *results) {
    const int64_t pairs = PAIRS(pieces);
    REAL root[STRIP], inverse[STRIP];
    for (int64_t c = 0; c < COLUMNS(pieces); c++) totals[c] = (WIDE){0};
    for (int64_t start = 0; start < n; start += SUMMED) {
        const int64_t end = n - start < SUMMED ? n : start + SUMMED;
        for (int64_t c = 0; c < COLUMNS(pieces); c++) sums[c] = (VECTOR){0};
        for (int64_t strip = start; strip < end; strip += STRIP) {
            FETCH(x, pieces + 3, strip + AHEAD);
            SCALE(metric, x[pieces - 1] + strip, x[pieces] + strip, root, inverse);
            for (int64_t v = 0; v < STRIP; v += WIDTH) {
                const int64_t at = strip + v;
                const VECTOR d = AT(inverse + v), z = AT(x[pieces + 1] + at), y = AT(x[pieces + 2] + at);
                UNROLLED
                for (int64_t j = 0; j < pieces; j++) {
                    const VECTOR g = AT(x[j] + at), h = g * d;
                    UNROLLED
                    for (int64_t i = 0; i <= j; i++) {
                        const VECTOR other = AT(x[i] + at) * d;
                        sums[PAIRS(j) + i] += other * g;
                        sums[pairs + PAIRS(j) + i] += other * h;
                    }
                    sums[2 * pairs + j] += g * z;
                }
                sums[2 * pairs + pieces] += AT(x[pieces - 1] + at) * (z - y);
            }
        }
        for (int64_t c = 0; c < COLUMNS(pieces); c++) totals[c] += __builtin_convertvector(sums[c], WIDE);
    }
    for (int64_t c = 0; c < COLUMNS(pieces); c++)
        for (int64_t i = 0; i < WIDTH; i++) results[c] += totals[c][i];
}

/* The same in double, for any number of elements. */
static void SUM_IN_DOUBLE(const Metric *metric, int64_t pieces, REAL *const *x, int64_t n, double *results) {
    double copies[pieces + 3][STRIP], *from[pieces + 3];
    Vector_double sums[COLUMNS(pieces)];
    Wide_double totals[COLUMNS(pieces)];
    for (int64_t start = 0; start < n; start += STRIP) {
        for (int64_t k = 0; k < pieces + 3; k++) {
            for (int64_t i = 0; i < STRIP; i++) copies[k][i] = start + i < n ? x[k][start + i] : 0.0;
            from[k] = copies[k];
        }
        sum_double(metric, pieces, from, STRIP, sums, totals, results);
    }
}

/* Return 1 if the sums of the gradient's squares are well within the range of REAL. */
static int IS_EXACT(int64_t pieces, const REAL *g, int64_t n, const double *sums) {
    const double once = sums[PAIRS(pieces) - 1], twice = sums[2 * PAIRS(pieces) - 1];
    double all = 0.0;
    for (int64_t c = 0; c < COLUMNS(pieces); c++) all += sums[c];
    if (!isfinite(all)) return 0;
    if (once > 1e-28 && twice > 1e-28) return 1; /* underflow lost less than 1e-38 per element */
    for (int64_t i = 0; i < n; i++)
        if (g[i] != 0) return 0;
    return 1;
}

VECTORISED static void MEASURE(const Shape *shape, const Metric *metric, int64_t tensor, int64_t start, int64_t end,
                               double *results) {
    const int64_t pieces = shape->terms, n = (end - start) / STRIP * STRIP;
    REAL *x[pieces + 3];
    STREAMS(metric, pieces, shape->tensors, tensor, start, x);
    switch (pieces) {
#define CASE(label, count)                                          \
    label : {                                                       \
        VECTOR sums[COLUMNS(count)];                                \
        WIDE totals[COLUMNS(count)];                                \
        SUM(metric, count, x, n, sums, totals, results);            \
        break;                                                      \
    }
        CASE(case 1, 1)
        CASE(case 2, 2)
        CASE(case 3, 3)
        CASE(case 4, 4)
        CASE(default, pieces)
#undef CASE
    }
    if (n && !IS_EXACT(pieces, x[pieces - 1], n, results)) {
        memset(results, 0, COLUMNS(pieces) * sizeof(double));
        SUM_IN_DOUBLE(metric, pieces, x, n, results);
    }
    for (int64_t k = 0; k < pieces + 3; k++) x[k] += n;
    SUM_IN_DOUBLE(metric, pieces, x, end - start - n, results);
}

/* Move n elements in whole strips. A coefficient is given as two factors: for a short gradient it may overflow REAL,
 * although its product with the gradient does not. */
INLINED void STEP(const Roll *roll, int64_t pieces, REAL *const *x, REAL *keep, int64_t n, const REAL (*factors)[2]) {
    const REAL decay = (REAL)roll->decay, pull = (REAL)roll->pull, ratio = (REAL)roll->ratio, beta = (REAL)roll->beta;
    const REAL share = (REAL)(roll->ratio / roll->beta);
    REAL root[STRIP], inverse[STRIP];
    for (int64_t strip = 0; strip < n; strip += STRIP) {
        FETCH(x, pieces + 3, strip + AHEAD);
        SCALE(roll->metric, x[pieces - 1] + strip, x[pieces] + strip, root, inverse);
        for (int64_t v = 0; v < STRIP; v += WIDTH) {
            const int64_t at = strip + v;
            const VECTOR d = AT(inverse + v), g = AT(x[pieces - 1] + at);
            const VECTOR z = AT(x[pieces + 1] + at), y = AT(x[pieces + 2] + at);
            VECTOR u = {0};
            for (int64_t k = 0; k < pieces; k++) u += AT(x[k] + at) * d * factors[k][0] * factors[k][1];
            const VECTOR to = z - u - decay * y;
            AT(x[pieces] + at) = AT(root + v);
            AT(x[pieces + 1] + at) = to;
            AT(x[pieces + 2] + at) =
                roll->before_projection ? z + share * (y - z) : to + pull * (ratio * (y - z) - beta * (to - z));
            if (keep) AT(keep + at) = g;
        }
    }
}

VECTORISED static void ROLL(const Shape *shape, const Roll *roll, int64_t tensor, int64_t start, int64_t end) {
    const int64_t pieces = shape->terms, n = (end - start) / STRIP * STRIP, rest = end - start - n;
    REAL *x[pieces + 3], *keep = roll->keep ? (REAL *)roll->keep[tensor] + start : NULL, factors[pieces][2];
    STREAMS(roll->metric, pieces, shape->tensors, tensor, start, x);
    for (int64_t k = 0; k < pieces; k++) {
        int exponent;
        frexp(roll->coefficients[k], &exponent);
        factors[k][0] = (REAL)ldexp(1.0, exponent / 2);
        factors[k][1] = (REAL)(roll->coefficients[k] / ldexp(1.0, exponent / 2));
    }
    switch (pieces) {
    case 1: STEP(roll, 1, x, keep, n, factors); break;
    case 2: STEP(roll, 2, x, keep, n, factors); break;
    case 3: STEP(roll, 3, x, keep, n, factors); break;
    case 4: STEP(roll, 4, x, keep, n, factors); break;
    default: STEP(roll, pieces, x, keep, n, factors);
    }
    if (!rest) return;
    REAL copies[pieces + 3][STRIP], *to[pieces + 3]; /* the remaining elements, padded to a whole strip */
    memset(copies, 0, sizeof copies);
    for (int64_t k = 0; k < pieces + 3; k++) to[k] = memcpy(copies[k], x[k] + n, rest * sizeof(REAL));
    STEP(roll, pieces, to, NULL, STRIP, factors);
    for (int64_t k = pieces; k < pieces + 3; k++) memcpy(x[k] + n, copies[k], rest * sizeof(REAL));
    if (keep) memcpy(keep + n, copies[pieces - 1], rest * sizeof(REAL));
}

#undef WIDTH
#undef AT
#undef LOAD
#undef STORE
