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
