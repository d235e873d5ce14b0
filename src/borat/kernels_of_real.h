/* The arithmetic of kernels.c for tensors of type REAL: included once for float and once for double. */

VECTORISED static void MOVE(const Shape *shape, const Move *move, int64_t tensor, int64_t start, int64_t end) {
    const double decay = move->decay, momentum = move->momentum;
    double sum[BLOCK];
    for (; start < end; start += BLOCK) {
        const int64_t n = end - start < BLOCK ? end - start : BLOCK;
        REAL *out = (REAL *)move->out[tensor] + start;
        const REAL *base = (const REAL *)move->base[tensor] + start, *x = NULL;
        for (int64_t k = 0; k < shape->terms; k++) {
            const double c = move->coefficients[k];
            x = (const REAL *)move->terms[k * shape->tensors + tensor] + start;
            if (k == 0)
                for (int64_t i = 0; i < n; i++) sum[i] = c * x[i];
            else
                for (int64_t i = 0; i < n; i++) sum[i] += c * x[i];
        }
        if (move->old_base) memcpy((REAL *)move->old_base[tensor] + start, base, n * sizeof(REAL));
        if (move->last_term) memcpy((REAL *)move->last_term[tensor] + start, x, n * sizeof(REAL));
        if (move->velocity) {
            REAL *v = (REAL *)move->velocity[tensor] + start;
            for (int64_t i = 0; i < n; i++) {
                v[i] = (REAL)(decay * v[i] + sum[i]);
                out[i] = (REAL)(base[i] - (sum[i] + momentum * v[i]));
            }
        } else {
            for (int64_t i = 0; i < n; i++) out[i] = (REAL)(base[i] - sum[i]);
        }
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
    for (; start < end; start += BLOCK) {
        const int64_t n = end - start < BLOCK ? end - start : BLOCK;
        const REAL *left = (const REAL *)products->left[tensor] + start;
        for (int64_t k = 0; k < shape->terms; k++)
            sums[k] += PRODUCT(left, (const REAL *)products->terms[k * shape->tensors + tensor] + start, n);
    }
}
