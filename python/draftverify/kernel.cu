// Steps of many rows on a GPU, with the bits of the CPU: DESIGN.md gives the arithmetic.
//
// `excess_sums` sums chunks of rows; `residuals` puts the sums of a row together, answers the row
// and writes its residual; `accept_entries` answers accept probabilities alone. The order of the sum
// depends on the length of a row alone: a block of threads sums a chunk, which is a power of two of
// sub-blocks of 256 entries, so that the tree of a chunk is part of the tree of its row. Each sub-block
// is summed by 16 threads, which are its 16 lanes.
//
// A row that cannot be answered answers NaN: a chunk in which an entry is no probability has the sum
// NaN, and every sum that it goes into is NaN too. No flag is needed, nor anything that is set to 0
// before.
//
// In front of this text stand two definitions: STORAGE, one of the four types below, and BLOCK, how
// many threads a block has: a power of two, from 32. No header is included, so that nothing but NVRTC
// is needed, and the text is ordinary C++ where CUDA's words are defined: the tests run it on the CPU.
// All parameters have 8 bytes. Strides are counted in entries and may be zero or negative.

#define LANES 16
#define TURNS 16 // entries of each row that a thread reads
#define CHUNK (BLOCK * TURNS)
#define LEVELS 32 // of the tree over groups of chunks: a grid has fewer than 2^31 blocks

typedef long long Int;

// CuPy compiles with -ftz=true, which cannot be undone from outside: every operation on float32 is
// spelt out, since float subtraction, division, conversion and comparison would all flush.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float subtract(float a, float b) {
  float difference;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));
  return difference;
}
__device__ __forceinline__ float divide(float a, float b) {
  float quotient;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}
__device__ __forceinline__ double to_double(float a) {
  double wide;
  asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(a));
  return wide;
}
__device__ __forceinline__ float to_float(double a) {
  float narrow;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(a));
  return narrow;
}
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
}
__device__ __forceinline__ unsigned short float_to_half(float a) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(a));
  return bits;
}
#else
__device__ __forceinline__ float subtract(float a, float b) { return a - b; }
__device__ __forceinline__ float divide(float a, float b) { return a / b; }
__device__ __forceinline__ double to_double(float a) { return a; }
__device__ __forceinline__ float to_float(double a) { return (float)a; }
union Half {
  unsigned short bits;
  _Float16 number;
};
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  Half half;
  half.bits = bits;
  return (float)half.number;
}
__device__ __forceinline__ unsigned short float_to_half(float a) {
  Half half;
  half.number = (_Float16)a;
  return half.bits;
}
#endif
__device__ __forceinline__ double subtract(double a, double b) { return a - b; }
__device__ __forceinline__ double divide(double a, double b) { return a / b; }
__device__ __forceinline__ double to_double(double a) { return a; }

// Comparisons look at bits: a subnormal number is more than 0 whatever the compiler flushes, and
// nothing is taken for a maximum, of which -0.0 might come. NaN may be positive: such rows are bad.
__device__ __forceinline__ bool positive(float a) { return (int)__float_as_uint(a) > 0; }
__device__ __forceinline__ bool positive(double a) { return __double_as_longlong(a) > 0; }
__device__ __forceinline__ bool is_finite(float a) {
  return (__float_as_uint(a) & 0x7fffffffu) < 0x7f800000u;
}
__device__ __forceinline__ bool is_finite(double a) {
  return (__double_as_longlong(a) & 0x7fffffffffffffffll) < 0x7ff0000000000000ll;
}

// The four storage types: bits in memory, the type to compute in, and the ways between them.
struct Float32 {
  typedef unsigned int Bits;
  typedef float Wide;
  static constexpr Bits INFINITE = 0x7f800000u, MINUS_ZERO = 0x80000000u, NAN_BITS = 0x7fc00000u;
  static __device__ float widen(Bits bits) { return __uint_as_float(bits); }
  static __device__ Bits narrow(float wide) { return __float_as_uint(wide); }
  static __device__ float from_double(double mass) { return to_float(mass); }
};
struct Float64 {
  typedef unsigned long long Bits;
  typedef double Wide;
  static constexpr Bits INFINITE = 0x7ff0000000000000ull, MINUS_ZERO = 0x8000000000000000ull,
                        NAN_BITS = 0x7ff8000000000000ull;
  static __device__ double widen(Bits bits) { return __longlong_as_double((Int)bits); }
  static __device__ Bits narrow(double wide) { return (Bits)__double_as_longlong(wide); }
  static __device__ double from_double(double mass) { return mass; }
};
struct Float16 {
  typedef unsigned short Bits;
  typedef float Wide;
  static constexpr Bits INFINITE = 0x7c00u, MINUS_ZERO = 0x8000u, NAN_BITS = 0x7e00u;
  static __device__ float widen(Bits bits) { return half_to_float(bits); }
  static __device__ Bits narrow(float wide) { return float_to_half(wide); }
  static __device__ float from_double(double mass) { return to_float(mass); }
};
struct Bfloat16 {
  typedef unsigned short Bits;
  typedef float Wide;
  static constexpr Bits INFINITE = 0x7f80u, MINUS_ZERO = 0x8000u, NAN_BITS = 0x7fc0u;
  static __device__ float widen(Bits bits) { return __uint_as_float((unsigned int)bits << 16); }
  // To nearest, ties to even; quotients are never NaN.
  static __device__ Bits narrow(float wide) {
    unsigned int bits = __float_as_uint(wide);
    return (Bits)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  static __device__ float from_double(double mass) { return to_float(mass); }
};

typedef STORAGE::Bits Bits;
typedef STORAGE::Wide Wide;

__device__ __forceinline__ double not_a_number() {
  return __longlong_as_double(0x7ff8000000000000ll);
}

// Finite and not negative; -0.0 is a probability.
__device__ __forceinline__ bool is_probability(Bits bits) {
  return (bits < STORAGE::INFINITE) | (bits == STORAGE::MINUS_ZERO);
}

__device__ __forceinline__ Wide excess(Bits draft, Bits target) {
  Wide difference = subtract(STORAGE::widen(target), STORAGE::widen(draft));
  return positive(difference) ? difference : (Wide)0;
}

// Whether the draft can have proposed the token. What is no probability is found elsewhere.
__device__ bool proposed(const Bits *draft, Int stride, Int vocabulary, Int token) {
  if (token < 0 || token >= vocabulary) return false;
  Bits bits = draft[token * stride];
  return bits != 0 && bits != STORAGE::MINUS_ZERO;
}

// Whether the row's token has an accept probability, and that: min(1, target / draft).
__device__ bool acceptable(const Bits *draft, Int draft_stride, const Bits *target,
                           Int target_stride, Int vocabulary, Int token) {
  return proposed(draft, draft_stride, vocabulary, token) &&
         is_probability(draft[token * draft_stride]) &&
         is_probability(target[token * target_stride]);
}
__device__ double accepted(Bits draft, Bits target) {
  double of = to_double(STORAGE::widen(draft)), kept = to_double(STORAGE::widen(target));
  return kept < of ? kept / of : 1.0;
}

// Read TURNS entries, each `step` entries behind the one before, of which `left` are there. The usual
// case has no branches, so that all reads are on their way at once.
__device__ __forceinline__ void load(Bits (&bits)[TURNS], const Bits *at, Int step, Int left) {
  if (left >= TURNS) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++, at += step) bits[turn] = *at;
  } else {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++, at += step) bits[turn] = turn < left ? *at : (Bits)0;
  }
}

// The pairwise tree over the sums of all chunks of a row, by all threads of a block. `sums` has room
// for a number of each. Groups of BLOCK leaves are folded side by side; where there are several, a
// counter like that of the CPU puts them together: bit k of `groups` says that `trees[k]` holds the
// tree of 2^k groups.
__device__ double tree(const double *leaves, Int count, double *sums) {
  double trees[LEVELS], total = 0.0;
  Int groups = 0;
  int thread = threadIdx.x;
  for (Int first = 0; first < count; first += BLOCK) {
    int here = count - first < BLOCK ? (int)(count - first) : BLOCK;
    __syncthreads(); // the sum of the group before has been read
    if (thread < here) sums[thread] = leaves[first + thread];
    __syncthreads();
    for (int width = 1; width < here; width *= 2) {
      if (thread % (2 * width) == 0 && thread + width < here) sums[thread] += sums[thread + width];
      __syncthreads();
    }
    total = sums[0];
    if (count <= BLOCK) return total;
    int level = 0;
    for (; groups >> level & 1; level++) total += trees[level];
    trees[level] = total;
    groups++;
  }
  total = 0.0;
  for (int level = 0; groups >> level; level++)
    if (groups >> level & 1) total += trees[level];
  return total;
}

// The sum of each chunk of each row, in row order, to `sums`. The first block says in `ids_good`
// whether all ids can have been proposed. `tokens` is 0 where `token` is that of the only row.
extern "C" __global__ void __launch_bounds__(BLOCK)
excess_sums(const Bits *drafts, Int draft_row, Int draft_stride, const Bits *targets,
            Int target_row, Int target_stride, Int rows, Int vocabulary, const Int *tokens,
            Int token, double *sums, Int *ids_good) {
  __shared__ double lanes[BLOCK];
  unsigned int chunks = (unsigned int)((vocabulary + CHUNK - 1) / CHUNK);
  Int row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const Bits *draft = drafts + row * draft_row, *target = targets + row * target_row;
  int thread = threadIdx.x, lane = thread % LANES;
  Int first = chunk * CHUNK + thread / LANES * (LANES * TURNS) + lane;

  Int left = (vocabulary - first + LANES - 1) / LANES;
  Bits draft_bits[TURNS], target_bits[TURNS];
  load(draft_bits, draft + first * draft_stride, LANES * draft_stride, left);
  load(target_bits, target + first * target_stride, LANES * target_stride, left);
  double sum = 0.0;
  bool good = true;
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    good = good & is_probability(draft_bits[turn]) & is_probability(target_bits[turn]);
    sum += to_double(excess(draft_bits[turn], target_bits[turn]));
  }
  lanes[thread] = good ? sum : not_a_number();
  for (int width = LANES / 2; width > 0; width /= 2) { // the sub-blocks, 8-4-2-1
    __syncthreads();
    if (lane < width) lanes[thread] += lanes[thread + width];
  }
  for (int width = LANES; width < BLOCK; width *= 2) { // their tree
    __syncthreads();
    if (thread % (2 * width) == 0) lanes[thread] += lanes[thread + width];
  }
  if (thread == 0) sums[blockIdx.x] = lanes[0];

  if (blockIdx.x == 0) {
    bool wrong = false;
    for (Int other = thread; other < rows; other += BLOCK)
      wrong = wrong || !proposed(drafts + other * draft_row, draft_stride, vocabulary,
                                 tokens ? tokens[other] : token);
    int any = __syncthreads_or(wrong);
    if (thread == 0) *ids_good = !any;
  }
}

// What each row answers, and its residual. With `check` nothing is written where an id is wrong, and
// all answers are NaN.
extern "C" __global__ void __launch_bounds__(BLOCK)
residuals(const Bits *drafts, Int draft_row, Int draft_stride, const Bits *targets, Int target_row,
          Int target_stride, Bits *out, Int out_row, Int out_stride, Int vocabulary,
          const Int *tokens, Int token, const double *sums, const Int *ids_good, Int check,
          double *accept_prob, double *masses) {
  __shared__ double shared[BLOCK];
  unsigned int chunks = (unsigned int)((vocabulary + CHUNK - 1) / CHUNK);
  Int row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const Bits *draft = drafts + row * draft_row, *target = targets + row * target_row;
  int thread = threadIdx.x;

  double mass = tree(sums + row * chunks, chunks, shared);
  Wide divisor = STORAGE::from_double(mass); // NaN where the mass is, infinite where it is too large
  if (tokens) token = tokens[row];
  bool wrong_ids = check && !*ids_good;
  bool good = !wrong_ids && is_finite(divisor) &&
              acceptable(draft, draft_stride, target, target_stride, vocabulary, token);
  if (chunk == 0 && thread == 0) {
    accept_prob[row] =
        good ? accepted(draft[token * draft_stride], target[token * target_stride]) : not_a_number();
    masses[row] = good ? mass : not_a_number();
  }
  if (wrong_ids) return;
  if (mass == 0.0) divisor = (Wide)1; // an empty residual divides its zeros by 1
  Int first = chunk * CHUNK + thread, left = (vocabulary - first + BLOCK - 1) / BLOCK;
  Bits draft_bits[TURNS], target_bits[TURNS];
  load(draft_bits, draft + first * draft_stride, BLOCK * draft_stride, left);
  load(target_bits, target + first * target_stride, BLOCK * target_stride, left);
  Bits *slot = out + row * out_row + first * out_stride;
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++, slot += BLOCK * out_stride) {
    Wide part = excess(draft_bits[turn], target_bits[turn]);
    Bits quotient = good ? STORAGE::narrow(divide(part, divisor)) : STORAGE::NAN_BITS;
    if (turn < left) *slot = quotient;
  }
}

// The accept probability of each row alone, one thread a row.
extern "C" __global__ void __launch_bounds__(BLOCK)
accept_entries(const Bits *drafts, Int draft_row, Int draft_stride, const Bits *targets,
               Int target_row, Int target_stride, Int rows, Int vocabulary, const Int *tokens,
               double *accept_prob) {
  Int row = (Int)blockIdx.x * BLOCK + threadIdx.x;
  if (row >= rows) return;
  const Bits *draft = drafts + row * draft_row, *target = targets + row * target_row;
  Int token = tokens[row];
  accept_prob[row] =
      acceptable(draft, draft_stride, target, target_stride, vocabulary, token)
          ? accepted(draft[token * draft_stride], target[token * target_stride])
          : not_a_number();
}
