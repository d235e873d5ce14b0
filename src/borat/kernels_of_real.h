/* The arithmetic of kernels.c for tensors of type REAL: included once for float and once for double. */

VECTORISED static void MOVE(const Shape *shape, const Move *move, int64_t tensor, int64_t start, int64_t end) {
    const double decay = move->decay, momentum = move->momentum;
    const int64_t last = shape->terms - 1;
    const double c = move->coefficients[last];
    double sum[MOVED]; /* of all terms but the last */
    REAL result[MOVED];
    for (; start < end; start += MOVED) {
        const int64_t n = end - start < MOVED ? end - start : MOVED;
        for (int64_t k = 0; k < last; k++) {
            const REAL *y = (const REAL *)move->terms[k * shape->tensors + tensor] + start;
            const double d = move->coefficients[k];
            for (int64_t i = 0; i < n; i++) sum[i] = (k ? sum[i] : 0.0) + d * y[i];
        }
        const REAL *x = (const REAL *)move->terms[last * shape->tensors + tensor] + start;
        const REAL *base = (const REAL *)move->base[tensor] + start;
        REAL *out = (REAL *)move->out[tensor] + start, *to = out == base ? out : result;
        if (move->old_base) write_out(shape, (REAL *)move->old_base[tensor] + start, base, n * sizeof(REAL));
        if (move->last_term) write_out(shape, (REAL *)move->last_term[tensor] + start, x, n * sizeof(REAL));
        if (move->velocity) {
            REAL *v = (REAL *)move->velocity[tensor] + start;
            for (int64_t i = 0; i < n; i++) {
                const double s = (last ? sum[i] : 0.0) + c * x[i];
                v[i] = (REAL)(decay * v[i] + s);
                to[i] = (REAL)(base[i] - (s + momentum * v[i]));
            }
        } else {
            for (int64_t i = 0; i < n; i++) to[i] = (REAL)(base[i] - ((last ? sum[i] : 0.0) + c * x[i]));
        }
        if (to != out) write_out(shape, out, result, n * sizeof(REAL));
    }
}

VECTORISED static double PRODUCT(const REAL *x, const REAL *y, int64_t n) {
    double lanes[LANES] = {0.0}, sum = 0.0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t j = 0; j < LANES; j++) lanes[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < n; i++) sum += (double)x[i] * (double)y[i];
    for (int64_t j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

static void MULTIPLY(const Shape *shape, const Products *products, int64_t tensor, int64_t start, int64_t end,
                     double *sums) {
    for (; start < end; start += MULTIPLIED) {
        const int64_t n = end - start < MULTIPLIED ? end - start : MULTIPLIED;
        const REAL *left = (const REAL *)products->left[tensor] + start;
        for (int64_t k = 0; k < shape->terms; k++)
            sums[k] += PRODUCT(left, (const REAL *)products->terms[k * shape->tensors + tensor] + start, n);
    }
}

/* A piece of the metric's bundle: the older ones come first. */
static const REAL *PIECE(const Shape *shape, const Metric *metric, int64_t k, int64_t tensor) {
    return (const REAL *)(k == shape->terms - 1 ? metric->gradient : metric->rows + k * shape->tensors)[tensor];
}

/* The largest power of two by which numbers up to the largest of these can be multiplied so that their squares stay in
 * range; 1 unless they are extreme. Squares of float would leave it above 1e19 and below 1e-19. */
VECTORISED static REAL UNIT(const REAL *restrict g, const REAL *restrict rms, int64_t n) {
    BITS most = 0; /* without their signs, numbers are ordered as the integers with the same bits */
    for (int64_t i = 0; i < n; i++) {
        BITS x, s;
        memcpy(&x, g + i, sizeof x);
        memcpy(&s, rms + i, sizeof s);
        x &= ~SIGN, s &= ~SIGN;
        x = x > s ? x : s;
        most = x > most ? x : most;
    }
    REAL largest;
    memcpy(&largest, &most, sizeof most);
    if (largest == 0 || (largest > (REAL)1e-12 && largest < (REAL)1e15) || !isfinite(largest)) return 1;
    int exponent;
    frexp((double)largest, &exponent);
    return (REAL)ldexp(1.0, -exponent);
}

/* The new root of the mean square, and 1 / D. */
VECTORISED static void SCALE(const Metric *metric, const REAL *restrict g, const REAL *restrict rms, int64_t n,
                             REAL *restrict root, REAL *restrict inverse) {
    const REAL beta2 = (REAL)metric->beta2, rest = (REAL)(1.0 - metric->beta2);
    const REAL correction = (REAL)metric->correction, eps = (REAL)metric->eps;
    const REAL unit = UNIT(g, rms, n), back = 1 / unit;
    for (int64_t i = 0; i < n; i++) {
        const REAL x = unit * g[i], s = unit * rms[i];
        root[i] = back * SQRT(beta2 * (s * s) + rest * (x * x));
        inverse[i] = 1 / (correction * root[i] + eps);
    }
}

typedef REAL VECTOR __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
#define LOAD(x) (*(const VECTOR *)(x))

/* Add x * y * scale and x * y * scale^2. Within a block they are summed in the vectors' own precision, in several sums,
 * as one addition would have to wait for the last. */
VECTORISED static void PRODUCTS(const REAL *restrict x, const REAL *restrict y, const REAL *restrict scale, int64_t n,
                                double *once, double *twice) {
    enum { WIDTH = sizeof(VECTOR) / sizeof(REAL) };
    VECTOR a[ROWS] = {{0}}, b[ROWS] = {{0}};
    int64_t i = 0;
    for (; i + ROWS * WIDTH <= n; i += ROWS * WIDTH)
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t k = i + r * WIDTH;
            const VECTOR d = LOAD(scale + k), xd = LOAD(x + k) * d, yd = LOAD(y + k);
            a[r] += xd * yd;
            b[r] += xd * (yd * d);
        }
    for (; i < n; i++) {
        *once += (double)(x[i] * scale[i]) * y[i];
        *twice += (double)(x[i] * scale[i]) * (y[i] * scale[i]);
    }
    const VECTOR all_a = (a[0] + a[1]) + (a[2] + a[3]), all_b = (b[0] + b[1]) + (b[2] + b[3]);
    for (int64_t j = 0; j < WIDTH; j++) {
        *once += all_a[j];
        *twice += all_b[j];
    }
}

/* Add <x, z> and <x, z - y>. */
VECTORISED static void DISTANCES(const REAL *restrict x, const REAL *restrict z, const REAL *restrict y, int64_t n,
                                 double *at, double *apart) {
    enum { WIDTH = sizeof(VECTOR) / sizeof(REAL) };
    VECTOR a[ROWS] = {{0}}, b[ROWS] = {{0}};
    int64_t i = 0;
    for (; i + ROWS * WIDTH <= n; i += ROWS * WIDTH)
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t k = i + r * WIDTH;
            const VECTOR u = LOAD(x + k), v = LOAD(z + k);
            a[r] += u * v;
            b[r] += u * (v - LOAD(y + k));
        }
    for (; i < n; i++) {
        *at += (double)x[i] * z[i];
        *apart += (double)x[i] * (z[i] - y[i]);
    }
    const VECTOR all_a = (a[0] + a[1]) + (a[2] + a[3]), all_b = (b[0] + b[1]) + (b[2] + b[3]);
    for (int64_t j = 0; j < WIDTH; j++) {
        *at += all_a[j];
        *apart += all_b[j];
    }
}

static void FETCH(const void *vector, int64_t tensor, int64_t start, int64_t end) {
    const REAL *x = ((REAL *const *)vector)[tensor];
    for (; start < end; start += 64 / sizeof(REAL)) __builtin_prefetch(x + start);
}

/* For pieces j and i <= j: <g_i, g_j / D>, then <g_i, g_j / D^2>; then <g_j, z>; then <g, z - y> of the newest. */
VECTORISED static void MEASURE(const Shape *shape, const Metric *metric, int64_t tensor, int64_t start, int64_t end,
                               double *sums) {
    const int64_t pieces = shape->terms, pairs = pieces * (pieces + 1) / 2;
    REAL root[MEASURED], inverse[MEASURED];
    double unused = 0.0;
    for (; start < end; start += MEASURED) {
        const int64_t n = end - start < MEASURED ? end - start : MEASURED;
        const int64_t next = start + n, after = next + MEASURED < end ? next + MEASURED : end;
        const REAL *g = (const REAL *)metric->gradient[tensor] + start;
        const REAL *y = (const REAL *)metric->weights[tensor] + start, *z = (const REAL *)metric->centre[tensor] + start;
        FETCH(metric->gradient, tensor, next, after);
        FETCH(metric->rms, tensor, next, after);
        SCALE(metric, g, (const REAL *)metric->rms[tensor] + start, n, root, inverse);
        FETCH(metric->weights, tensor, next, after);
        FETCH(metric->centre, tensor, next, after);
        double *pair = sums;
        for (int64_t j = 0; j < pieces; j++) {
            const REAL *x = PIECE(shape, metric, j, tensor) + start;
            if (j < pieces - 1) FETCH(metric->rows + j * shape->tensors, tensor, next, after);
            for (int64_t i = 0; i <= j; i++, pair++)
                PRODUCTS(PIECE(shape, metric, i, tensor) + start, x, inverse, n, pair, pair + pairs);
            DISTANCES(x, z, y, n, sums + 2 * pairs + j, j == pieces - 1 ? sums + 2 * pairs + pieces : &unused);
        }
    }
}

/* The last step of a roll: sum is that of coefficient * piece. */
VECTORISED static void LAND(const Roll *roll, REAL *restrict y, REAL *restrict z, REAL *restrict rms, int64_t n,
                            const double *restrict sum, const REAL *restrict inverse, const REAL *restrict root) {
    const double decay = roll->decay, pull = roll->pull, ratio = roll->ratio, beta = roll->beta;
    if (roll->before_projection) {
        for (int64_t i = 0; i < n; i++) {
            const double from = z[i], at = y[i];
            z[i] = (REAL)(from - sum[i] * inverse[i] - decay * at);
            y[i] = (REAL)(from + ratio / beta * (at - from));
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            const double from = z[i], at = y[i];
            const REAL to = (REAL)(from - sum[i] * inverse[i] - decay * at);
            z[i] = to;
            y[i] = (REAL)(to + pull * (ratio * (at - from) - beta * (to - from)));
        }
    }
    memcpy(rms, root, n * sizeof(REAL));
}

VECTORISED static void ROLL(const Shape *shape, const Roll *roll, int64_t tensor, int64_t start, int64_t end) {
    const Metric *metric = roll->metric;
    REAL root[MOVED], inverse[MOVED];
    double sum[MOVED];
    for (; start < end; start += MOVED) {
        const int64_t n = end - start < MOVED ? end - start : MOVED;
        const REAL *g = (const REAL *)metric->gradient[tensor] + start;
        REAL *rms = (REAL *)metric->rms[tensor] + start;
        SCALE(metric, g, rms, n, root, inverse);
        for (int64_t k = 0; k < shape->terms; k++) {
            const REAL *x = PIECE(shape, metric, k, tensor) + start;
            const double c = roll->coefficients[k];
            for (int64_t i = 0; i < n; i++) sum[i] = (k ? sum[i] : 0.0) + c * x[i];
        }
        LAND(roll, (REAL *)metric->weights[tensor] + start, (REAL *)metric->centre[tensor] + start, rms, n, sum, inverse,
             root);
        if (roll->keep) memcpy((REAL *)roll->keep[tensor] + start, g, n * sizeof(REAL));
    }
}

#undef LOAD
