// CPU kernels for few rows of float32, all row-invariant: a row's result does not depend, not even in its last
// bit, on how many other rows stand beside it. That is what lets a tree of draft rows equal one-row decoding exactly.
//
// packed_linear: Y[M,N] = X[M,K] W[N,K]^T + bias. W is packed once into panels of NR output columns, [panel][K][NR], so
//   that the weights stream through once per call and every row of X meets a panel while it is in the cache. Each
//   output element is one chain of fused multiply-adds over k = 0..K-1, whatever M is.
// tree_attention: one query row at a time over [shared context rows][its own list of further rows], in that order.
// top_two: argmax and its margin per row, in one pass over the logits.
//
// Plain C interface, OpenMP for threads. Compiled for the machine it runs on by cpu_kernels.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

#if defined(__AVX512F__)
constexpr int VL = 16;  // floats per vector register
constexpr int MR = 12;  // rows of X per register block: MR * 2 accumulators of 32 registers
#elif defined(__AVX2__)
constexpr int VL = 8;
constexpr int MR = 6;  // 12 accumulators of 16 registers
#else
constexpr int VL = 4;  // SSE, NEON
constexpr int MR = 6;
#endif
constexpr int NR = 2 * VL;        // columns per panel
constexpr int64_t K_BLOCK = 128;  // this block of a panel, the one read ahead and X fit the first-level cache together
constexpr int64_t M_BLOCK = 72;   // rows whose partial sums one thread holds
constexpr int64_t M_AT_ONCE = 16 * M_BLOCK;  // rows of X that are rearranged together: what a long prompt may take

typedef float vec __attribute__((vector_size(VL * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(VL * 4), aligned(4)));

// R rows times one K block of one panel; `sums` [R][NR] carries the partial sums from block to block.
template <int R>
static inline void block_product(const float* __restrict panel, const float* __restrict x, float* __restrict sums,
                                 int64_t k_count, bool is_first, const float* ahead) {
  vec acc[R][2];
  for (int r = 0; r < R; r++)
    for (int j = 0; j < 2; j++) acc[r][j] = is_first ? vec{} : *(const vec*)(sums + r * NR + j * VL);
  for (int64_t k = 0; k < k_count; k++) {
    const vec w0 = *(const vec*)(panel + k * NR), w1 = *(const vec*)(panel + k * NR + VL);
    __builtin_prefetch(ahead + k * NR);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const float b = x[k * R + r];
      acc[r][0] += w0 * b;
      acc[r][1] += w1 * b;
    }
  }
  for (int r = 0; r < R; r++)
    for (int j = 0; j < 2; j++) *(vec*)(sums + r * NR + j * VL) = acc[r][j];
}

typedef void (*block_fn)(const float*, const float*, float*, int64_t, bool, const float*);
template <int R>
static void fill_table(block_fn* table) {
  table[R] = block_product<R>;
  if constexpr (R > 1) fill_table<R - 1>(table);
}

extern "C" int64_t panel_width() { return NR; }

extern "C" void pack_weight(const float* w, float* packed, int64_t n, int64_t k) {
  const int64_t panels = (n + NR - 1) / NR;
#pragma omp parallel for
  for (int64_t p = 0; p < panels; p++)
    for (int64_t i = 0; i < k; i++)
      for (int j = 0; j < NR; j++) {
        const int64_t col = p * NR + j;
        packed[(p * k + i) * NR + j] = col < n ? w[col * k + i] : 0.f;
      }
}

// x [m,k] row-major; packed [panels][k][NR] and one spare panel (read ahead of, never used); bias [n] or null; y [m,n].
extern "C" void packed_linear(const float* x, const float* packed, const float* bias, float* y, int64_t m, int64_t n,
                              int64_t k) {
  static block_fn* table = [] {
    static block_fn t[MR + 1];
    fill_table<MR>(t);
    return t;
  }();
  for (; m > M_AT_ONCE; m -= M_AT_ONCE, x += M_AT_ONCE * k, y += M_AT_ONCE * n)
    packed_linear(x, packed, bias, y, M_AT_ONCE, n, k);
  // Kept between calls: fresh memory costs more than the product of a few rows.
  static thread_local std::vector<float> x_store;
  if ((int64_t)x_store.size() < m * k) x_store.resize(m * k);
  float* const x_blocks = x_store.data();  // per block of MR rows: [k][rows of the block]
  const int64_t panels = (n + NR - 1) / NR;
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t first = panels * thread / threads, last = panels * (thread + 1) / threads;
#pragma omp for schedule(static)
    for (int64_t r0 = 0; r0 < m; r0 += MR) {
      const int64_t rows = std::min<int64_t>(MR, m - r0);
      float* to = x_blocks + r0 * k;
      const float* from = x + r0 * k;
      for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < rows; r++) to[i * rows + r] = from[r * k + i];
    }
    alignas(64) float sums[M_BLOCK * NR];
    for (int64_t m0 = 0; m0 < m; m0 += M_BLOCK) {
      const int64_t m1 = std::min(m, m0 + M_BLOCK);
      for (int64_t p = first; p < last; p++) {
        for (int64_t k0 = 0; k0 < k; k0 += K_BLOCK) {
          const int64_t k_count = std::min(K_BLOCK, k - k0);
          const float* panel = packed + (p * k + k0) * NR;
          for (int64_t r0 = m0; r0 < m1; r0 += MR) {
            const int64_t rows = std::min<int64_t>(MR, m1 - r0);
            table[rows](panel, x_blocks + r0 * k + k0 * rows, sums + (r0 - m0) * NR, k_count, k0 == 0,
                        panel + k_count * NR);
          }
        }
        const int64_t width = std::min<int64_t>(NR, n - p * NR);
        for (int64_t r = m0; r < m1; r++)
          for (int64_t j = 0; j < width; j++)
            y[r * n + p * NR + j] = sums[(r - m0) * NR + j] + (bias ? bias[p * NR + j] : 0.f);
      }
    }
  }
}

static inline vec exp_of(vec x) {  // relative error below 2e-7 on [-87, 0], the only range softmax asks for
  const vec lowest = vec{} - 87.f;
  x = x < lowest ? lowest : x;
  const vec shift = vec{} + 12582912.f;  // 1.5 * 2^23: adding it rounds to the nearest whole number
  const vec n = (x * 1.44269504f + shift) - shift;
  const vec r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  vec p = vec{} + 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 0.166666667f;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const ivec two_to_n = (__builtin_convertvector(n, ivec) + 127) << 23;
  return p * (vec)two_to_n;
}

static inline float dot(const float* a, const float* b, int64_t d) {
  vec s0{}, s1{};
  int64_t i = 0;
  for (; i + 2 * VL <= d; i += 2 * VL) {
    s0 += *(const vec*)(a + i) * *(const vec*)(b + i);
    s1 += *(const vec*)(a + i + VL) * *(const vec*)(b + i + VL);
  }
  s0 += s1;
  float sum = 0.f;
  for (int l = 0; l < VL; l++) sum += s0[l];
  for (; i < d; i++) sum += a[i] * b[i];
  return sum;
}

// q element (row, head, 0) at q + row * q_row + head * q_head. keys, values [kv_heads][width][d], width in `kv_head`
// floats apart. Row i sees arena rows [context_start, context_start + context[i]) and then more[i * more_stride + 0 ..
// more_count[i]). out [m, heads, d].
extern "C" void tree_attention(const float* q, int64_t q_row, int64_t q_head, const float* keys, const float* values,
                               int64_t kv_head, const int32_t* context, int64_t context_start, const int32_t* more,
                               int64_t more_stride, const int32_t* more_count, float* out, float scale, int64_t m,
                               int64_t heads, int64_t kv_heads, int64_t d) {
  const int64_t group = heads / kv_heads;
#pragma omp parallel
  {
    std::vector<float> weight_store, sum_store(d);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < m * heads; task++) {
      const int64_t head = task / m, row = task % m;  // neighbouring tasks share a head's keys and values
      const float* k = keys + head / group * kv_head;
      const float* v = values + head / group * kv_head;
      const float* qv = q + row * q_row + head * q_head;
      const int64_t shared = context[row], count = shared + more_count[row];
      const int32_t* own = more + row * more_stride;
      weight_store.resize(count + VL);
      float* weight = weight_store.data();
      float top = -1e30f;
      for (int64_t i = 0; i < count; i++) {
        const int64_t at = i < shared ? context_start + i : own[i - shared];
        weight[i] = scale * dot(qv, k + at * d, d);
        top = std::max(top, weight[i]);
      }
      for (int64_t i = count; i < count + VL; i++) weight[i] = top;
      vec total{};
      for (int64_t i = 0; i < count; i += VL) {
        vec e = exp_of(*(vec*)(weight + i) - top);
        for (int64_t l = count - i; l < VL; l++) e[l] = 0.f;
        *(vec*)(weight + i) = e;
        total += e;
      }
      float norm = 0.f;
      for (int l = 0; l < VL; l++) norm += total[l];
      norm = 1.f / norm;
      float* to = out + (row * heads + head) * d;
      int64_t c = 0;
      for (; c + 4 * VL <= d; c += 4 * VL) {
        vec s[4] = {};
        for (int64_t i = 0; i < count; i++) {
          const int64_t at = i < shared ? context_start + i : own[i - shared];
          const float* from = v + at * d + c;
          for (int j = 0; j < 4; j++) s[j] += *(const vec*)(from + j * VL) * weight[i];
        }
        for (int j = 0; j < 4; j++) *(vec*)(to + c + j * VL) = s[j] * norm;
      }
      for (; c + VL <= d; c += VL) {
        vec s{};
        for (int64_t i = 0; i < count; i++)
          s += *(const vec*)(v + (i < shared ? context_start + i : own[i - shared]) * d + c) * weight[i];
        *(vec*)(to + c) = s * norm;
      }
      for (; c < d; c++) {  // fma spelt out: left to the compiler, the two halves of the loop may round differently
        float s = 0.f;
        for (int64_t i = 0; i < count; i++)
          s = std::fma(v[(i < shared ? context_start + i : own[i - shared]) * d + c], weight[i], s);
        to[c] = s * norm;
      }
    }
  }
}

// logits [m, v] -> per row the first index of the largest value and its distance to the second largest.
extern "C" void top_two(const float* logits, int64_t m, int64_t v, int64_t* choice, float* margin) {
#pragma omp parallel for
  for (int64_t r = 0; r < m; r++) {
    const float* row = logits + r * v;
    vec best = vec{} - 3e38f, second = best;  // per lane
    int64_t i = 0;
    for (; i + VL <= v; i += VL) {
      const vec x = *(const vec*)(row + i);
      const vec lower = x > best ? best : x;
      second = lower > second ? lower : second;
      best = x > best ? x : best;
    }
    float top = -3e38f, next = -3e38f;
    const auto meet = [&](float x) {
      if (x > top) next = top, top = x;
      else if (x > next) next = x;
    };
    for (int l = 0; l < VL; l++) meet(best[l]);
    for (int l = 0; l < VL; l++) next = std::max(next, second[l]);
    for (; i < v; i++) meet(row[i]);
    int64_t at = 0;
    while (at < v - 1 && row[at] != top) at++;
    choice[r] = at;
    margin[r] = top - next;
  }
}
