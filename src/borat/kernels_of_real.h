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

/* The new root of the mean square, and D. */
VECTORISED static void SCALE(const Metric *metric, const REAL *g, const REAL *rms, int64_t n, double *root, double *D) {
    const double beta2 = metric->beta2, rest = 1.0 - beta2, correction = metric->correction, eps = metric->eps;
    for (int64_t i = 0; i < n; i++) {
        const double x = g[i], s = rms[i];
        root[i] = sqrt(beta2 * (s * s) + rest * (x * x));
        D[i] = correction * root[i] + eps;
    }
}

/* The products of x with y and with z. */
VECTORISED static void PRODUCTS(const REAL *x, const double *y, const double *z, int64_t n, double *xy, double *xz) {
    double a[LANES] = {0.0}, b[LANES] = {0.0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int64_t j = 0; j < LANES; j++) {
            a[j] += x[i + j] * y[i + j];
            b[j] += x[i + j] * z[i + j];
        }
    for (; i < n; i++) {
        *xy += x[i] * y[i];
        *xz += x[i] * z[i];
    }
    for (int64_t j = 0; j < LANES; j++) {
        *xy += a[j];
        *xz += b[j];
    }
}

/* For pieces j and i <= j: <g_i, g_j / D>, then <g_i, g_j / D^2>; then <g_j, z>; then <g, z - y> of the newest. */
VECTORISED static void MEASURE(const Shape *shape, const Metric *metric, int64_t tensor, int64_t start, int64_t end,
                               double *sums) {
    const int64_t pieces = shape->terms, pairs = pieces * (pieces + 1) / 2;
    double root[MOVED], D[MOVED], once[MOVED], twice[MOVED];
    for (; start < end; start += MOVED) {
        const int64_t n = end - start < MOVED ? end - start : MOVED;
        const REAL *g = (const REAL *)metric->gradient[tensor] + start;
        const REAL *y = (const REAL *)metric->weights[tensor] + start, *z = (const REAL *)metric->centre[tensor] + start;
        SCALE(metric, g, (const REAL *)metric->rms[tensor] + start, n, root, D);
        double *pair = sums;
        for (int64_t j = 0; j < pieces; j++) {
            const REAL *x = PIECE(shape, metric, j, tensor) + start;
            for (int64_t i = 0; i < n; i++) {
                once[i] = x[i] / D[i];
                twice[i] = once[i] / D[i];
            }
            for (int64_t i = 0; i <= j; i++, pair++)
                PRODUCTS(PIECE(shape, metric, i, tensor) + start, once, twice, n, pair, pair + pairs);
        }
        for (int64_t i = 0; i < n; i++) {
            once[i] = z[i];
            twice[i] = (double)z[i] - (double)y[i];
        }
        double unused = 0.0;
        for (int64_t j = 0; j < pieces; j++)
            PRODUCTS(PIECE(shape, metric, j, tensor) + start, once, twice, n, sums + 2 * pairs + j,
                     j == pieces - 1 ? sums + 2 * pairs + pieces : &unused);
    }
}

VECTORISED static void ROLL(const Shape *shape, const Roll *roll, int64_t tensor, int64_t start, int64_t end) {
    const Metric *metric = roll->metric;
    const double decay = roll->decay, pull = roll->pull, ratio = roll->ratio, beta = roll->beta;
    double root[MOVED], D[MOVED], sum[MOVED];
    for (; start < end; start += MOVED) {
        const int64_t n = end - start < MOVED ? end - start : MOVED;
        const REAL *g = (const REAL *)metric->gradient[tensor] + start;
        REAL *y = (REAL *)metric->weights[tensor] + start, *z = (REAL *)metric->centre[tensor] + start;
        REAL *rms = (REAL *)metric->rms[tensor] + start;
        SCALE(metric, g, rms, n, root, D);
        for (int64_t k = 0; k < shape->terms; k++) {
            const REAL *x = PIECE(shape, metric, k, tensor) + start;
            const double c = roll->coefficients[k];
            for (int64_t i = 0; i < n; i++) sum[i] = (k ? sum[i] : 0.0) + c * x[i];
        }
        for (int64_t i = 0; i < n; i++) {
            const double from = z[i], at = y[i];
            const REAL to = (REAL)(from - sum[i] / D[i] - decay * at);
            rms[i] = (REAL)root[i];
            z[i] = to;
            y[i] = roll->before_projection ? (REAL)(from + ratio / beta * (at - from))
                                           : (REAL)(to + pull * (ratio * (at - from) - beta * (to - from)));
        }
        if (roll->keep) memcpy((REAL *)roll->keep[tensor] + start, g, n * sizeof(REAL));
    }
}
