/* The dual of BORAT's proximal problem (eq. 7), solved exactly:
 *
 *     maximise  D(alpha) = b'alpha - 1/2 alpha'Q alpha   over  alpha >= 0, sum(alpha) = 1
 *
 * By Proposition 1 all derivatives r = b - Q alpha are equal on the support of a solution, and none is larger: there,
 * and nowhere else, the duality gap max(r) - alpha'r is zero. Algorithm 1 tries all supports. This active-set method
 * moves from support to support instead. It solves the system of the support. If that makes a weight negative, it stops
 * where the first weight vanishes and removes that piece; otherwise it adds the piece with the largest derivative.
 * Every step raises D, so no support occurs twice. Singular systems are never solved (Proposition 3) and nothing is
 * regularised: a piece in the affine hull of the others gives a direction without curvature, which is followed until a
 * weight vanishes.
 *
 * The system is written in differences to the shortest gradient of the support, its origin, which loses the fewest
 * digits: M_ij = Q_ij - Q_i0 - Q_0j + Q_00 is positive definite and stored as L D L'. There are no square roots, and
 * scales are powers of two, which change no digit of alpha. Plain C without headers of Python: dual.py calls it
 * through ctypes. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST 200 /* the largest entry is kept below 2^200 and above 2^-200 */

typedef struct {
    int64_t pieces;
    int64_t used;       /* pieces in the support */
    int64_t decomposed; /* rows of L and D that are current */
    double *weights;    /* the best solution so far */
    double *Q;          /* with rows of length pieces, as L */
    double *b;
    double *alpha;
    double *r;         /* the derivatives */
    double *size;      /* |b| + |Q| alpha: the size of the terms of the derivatives */
    double *direction; /* of a step, by position in the support */
    double *L;         /* by position, without the unit diagonal; the origin's row and column are unused */
    double *D;
    int64_t *support; /* the pieces with a positive weight: the origin first, the others in order of entry */
} Dual;

static double larger(double a, double b) { return b > a ? b : a; } /* a, if b is NaN */

static double *take(double **memory, int64_t doubles) {
    double *taken = *memory;
    *memory += doubles;
    return taken;
}

/* The support and its system */

static double squared_norm(const Dual *dual, int64_t piece) { return dual->Q[piece * dual->pieces + piece]; }

static void put_origin_first(Dual *dual) {
    int64_t *s = dual->support, shortest = 0;
    for (int64_t i = 1; i < dual->used; i++)
        if (squared_norm(dual, s[i]) < squared_norm(dual, s[shortest]))
            shortest = i;
    if (shortest == 0)
        return;
    const int64_t origin = s[shortest];
    memmove(s + 1, s, (size_t)shortest * sizeof *s);
    s[0] = origin;
    dual->decomposed = 0;
}

/* M_ij for the positions i and j. */
static double difference(const Dual *dual, int64_t i, int64_t j) {
    const int64_t n = dual->pieces, *s = dual->support;
    const double *row = dual->Q + s[i] * n, *origin = dual->Q + s[0] * n;
    return (row[s[j]] - row[s[0]]) - (origin[s[j]] - origin[s[0]]);
}

/* Continue the decomposition M = L D L'. Return the first position whose piece is in the affine hull of those before
 * it, up to rounding, or the size of the support if there is none. */
static int64_t decompose(Dual *dual) {
    double *scaled = dual->direction; /* a row of L D */
    if (dual->decomposed < 1)
        dual->decomposed = 1;
    for (int64_t i = dual->decomposed; i < dual->used; i++) {
        double *row = dual->L + i * dual->pieces;
        const double diagonal = difference(dual, i, i);
        double pivot = diagonal;
        for (int64_t j = 1; j < i; j++) {
            const double *other = dual->L + j * dual->pieces;
            double sum = difference(dual, i, j);
            for (int64_t k = 1; k < j; k++)
                sum -= scaled[k] * other[k];
            scaled[j] = sum;
            row[j] = sum / dual->D[j];
            pivot -= sum * row[j];
        }
        if (!(pivot > 4 * (double)i * DBL_EPSILON * diagonal))
            return i;
        dual->D[i] = pivot;
        dual->decomposed = i + 1;
    }
    return dual->used;
}

/* Solve L'x = x for the positions before end; set the origin's entry so that the weights keep their sum. */
static void substitute_back(Dual *dual, int64_t end) {
    double *x = dual->direction;
    for (int64_t i = end - 1; i > 1; i--)
        for (int64_t j = 1; j < i; j++)
            x[j] -= dual->L[i * dual->pieces + j] * x[i];
    x[0] = 0.0;
    for (int64_t i = 1; i < dual->used; i++)
        x[0] -= x[i];
}

/* Set the direction to the Newton step on the face of the support, which makes its derivatives equal. */
static void aim_at_solution(Dual *dual) {
    const int64_t *s = dual->support;
    double *x = dual->direction;
    for (int64_t i = 1; i < dual->used; i++) {
        x[i] = dual->r[s[i]] - dual->r[s[0]];
        for (int64_t j = 1; j < i; j++)
            x[i] -= dual->L[i * dual->pieces + j] * x[j];
    }
    for (int64_t i = 1; i < dual->used; i++)
        x[i] /= dual->D[i];
    substitute_back(dual, dual->used);
}

/* Set the direction to the flat one of the dependent piece, uphill. */
static void aim_along_flat(Dual *dual, int64_t dependent) {
    const int64_t *s = dual->support;
    double *x = dual->direction, slope = 0.0;
    for (int64_t i = 1; i < dual->used; i++)
        x[i] = i < dependent ? -dual->L[dependent * dual->pieces + i] : i == dependent;
    substitute_back(dual, dependent);
    for (int64_t i = 1; i < dual->used; i++)
        slope += x[i] * (dual->r[s[i]] - dual->r[s[0]]);
    for (int64_t i = 0; i < dual->used && slope < 0.0; i++)
        x[i] = -x[i];
}

/* Move along the direction until a weight vanishes, at most by `longest`. Return 1 if no weight vanished. */
static int move(Dual *dual, double longest) {
    const double *direction = dual->direction;
    int64_t *s = dual->support, kept = 0;
    const int64_t before = dual->used;
    double *alpha = dual->alpha, length = longest, sum = 0.0;
    for (int64_t i = 0; i < before; i++)
        if (direction[i] < 0.0 && alpha[s[i]] / -direction[i] < length)
            length = alpha[s[i]] / -direction[i];
    for (int64_t i = 0; i < before; i++) {
        const int64_t piece = s[i];
        const int vanishes = direction[i] < 0.0 && alpha[piece] / -direction[i] <= length;
        alpha[piece] = vanishes ? 0.0 : larger(0.0, alpha[piece] + length * direction[i]);
        if (alpha[piece] > 0.0) {
            sum += alpha[piece];
            s[kept++] = piece;
        } else if (dual->decomposed > kept)
            dual->decomposed = kept;
    }
    for (int64_t i = 0; i < kept; i++)
        alpha[s[i]] /= sum;
    dual->used = sum > 0.0 && sum <= DBL_MAX ? kept : 0; /* some entry is not finite */
    put_origin_first(dual);
    return kept == before;
}

/* The ascent */

typedef struct {
    int64_t top;   /* the piece with the largest derivative */
    double mean;   /* alpha'r */
    double gap;    /* largest derivative minus mean */
    double noise;  /* bound on the rounding error of a gap */
    double lowest; /* lowest derivative in the support */
    double spread; /* highest minus lowest derivative in the support */
} Slopes;

/* Compute r = b - Q alpha and its summary. */
static Slopes differentiate(Dual *dual) {
    const int64_t n = dual->pieces, *s = dual->support;
    double *r = dual->r, *size = dual->size, largest = 0.0, highest = -INFINITY;
    Slopes slopes = {.lowest = INFINITY};
    for (int64_t k = 0; k < n; k++)
        r[k] = dual->b[k], size[k] = fabs(dual->b[k]);
    for (int64_t i = 0; i < dual->used; i++) {
        const double *row = dual->Q + s[i] * dual->pieces, weight = dual->alpha[s[i]];
        for (int64_t k = 0; k < n; k++)
            r[k] -= weight * row[k], size[k] += weight * fabs(row[k]);
    }
    for (int64_t k = 0; k < n; k++) {
        slopes.top = r[k] > r[slopes.top] ? k : slopes.top;
        largest = larger(largest, size[k]);
    }
    for (int64_t i = 0; i < dual->used; i++) {
        slopes.mean += dual->alpha[s[i]] * r[s[i]];
        slopes.lowest = r[s[i]] < slopes.lowest ? r[s[i]] : slopes.lowest;
        highest = larger(highest, r[s[i]]);
    }
    slopes.gap = r[slopes.top] - slopes.mean;
    slopes.noise = (double)(n + 3) * DBL_EPSILON * largest;
    slopes.spread = highest - slopes.lowest;
    return slopes;
}

/* Add the piece with the largest derivative. The derivatives of the others are equal up to rounding; make them exactly
 * equal, or the step may point away from the new piece. */
static void enter(Dual *dual, Slopes slopes) {
    for (int64_t i = 0; i < dual->used; i++)
        dual->r[dual->support[i]] = slopes.mean;
    dual->support[dual->used++] = slopes.top;
    put_origin_first(dual);
}

/* Ascend from alpha to the maximum. The gap bounds the distance to it; stop when the gap is within rounding. */
static void ascend(Dual *dual) {
    const int64_t n = dual->pieces;
    const size_t bytes = (size_t)n * sizeof(double);
    double smallest_gap = INFINITY, last_spread = INFINITY;
    for (int64_t steps = 0; steps < 50 * n && dual->used > 0; steps++) {
        Slopes slopes = differentiate(dual);
        if (slopes.gap < smallest_gap) {
            smallest_gap = slopes.gap;
            memcpy(dual->weights, dual->alpha, bytes);
        }
        if (!(slopes.gap > slopes.noise))
            break;
        if (slopes.spread <= slopes.noise || slopes.spread > 0.5 * last_spread) { /* face solved up to rounding */
            if (dual->alpha[slopes.top] > 0.0 || dual->used == n)
                break;
            enter(dual, slopes);
            slopes.spread = dual->r[slopes.top] - slopes.lowest;
        }
        const int64_t dependent = decompose(dual);
        if (dependent < dual->used) {
            aim_along_flat(dual, dependent);
            move(dual, INFINITY);
            last_spread = INFINITY;
        } else {
            aim_at_solution(dual);
            last_spread = move(dual, 1.0) ? slopes.spread : INFINITY;
        }
    }
}

/* The problem */

/* Copy the problem, scaled by a power of two so that nothing overflows and little underflows. Only the symmetric
 * part of Q is used. Return the exponent of the scale. */
static int load(Dual *dual, const double *Q, const double *b) {
    const int64_t n = dual->pieces;
    double largest = 0.0;
    int exponent;
    for (int64_t i = 0; i < n * n; i++) largest = larger(largest, fabs(Q[i]));
    for (int64_t i = 0; i < n; i++) largest = larger(largest, fabs(b[i]));
    frexp(largest, &exponent);
    const int shift = largest == 0.0 || largest > DBL_MAX || abs(exponent) <= LARGEST ? 0 : -exponent;
    for (int64_t i = 0; i < n; i++) {
        dual->b[i] = shift ? ldexp(b[i], shift) : b[i];
        for (int64_t j = 0; j <= i; j++) {
            const double low = shift ? ldexp(Q[i * n + j], shift) : Q[i * n + j];
            const double high = shift ? ldexp(Q[j * n + i], shift) : Q[j * n + i];
            dual->Q[i * n + j] = dual->Q[j * n + i] = 0.5 * low + 0.5 * high;
        }
    }
    return shift;
}

static void start_from_best_vertex(Dual *dual) {
    int64_t best = 0;
    double highest = -INFINITY;
    for (int64_t i = 0; i < dual->pieces; i++) {
        const double value = dual->b[i] - 0.5 * squared_norm(dual, i);
        best = value > highest ? i : best;
        highest = larger(highest, value);
        dual->alpha[i] = dual->weights[i] = 0.0;
    }
    dual->alpha[best] = dual->weights[best] = 1.0;
    dual->support[0] = best;
    dual->used = 1;
}

static double value_of(const Dual *dual) {
    double value = 0.0;
    for (int64_t i = 0; i < dual->pieces; i++) {
        double slope = 0.0;
        for (int64_t j = 0; j < dual->pieces; j++) slope += dual->weights[j] * dual->Q[i * dual->pieces + j];
        value += dual->weights[i] * (dual->b[i] - 0.5 * slope);
    }
    return value;
}

/* Solve a problem of n pieces. The results are the n weights and the dual value, which is not finite if an entry is
 * not. Return 0, or 1 if memory is exhausted. */
int borat_dual(int64_t n, const double *Q, const double *b, double *results) {
    double *const all = malloc((size_t)(7 * n + 2 * n * n) * sizeof(double)), *memory = all;
    if (!all) return 1;
    Dual dual = {.pieces = n, .weights = results};
    dual.Q = take(&memory, n * n);
    dual.L = take(&memory, n * n);
    dual.b = take(&memory, n);
    dual.alpha = take(&memory, n);
    dual.r = take(&memory, n);
    dual.size = take(&memory, n);
    dual.direction = take(&memory, n);
    dual.D = take(&memory, n);
    dual.support = (int64_t *)take(&memory, n);
    const int shift = load(&dual, Q, b);
    start_from_best_vertex(&dual);
    ascend(&dual);
    results[n] = ldexp(value_of(&dual), -shift);
    free(all);
    return 0;
}
