// CUDA's words for a C++ compiler, so that the text of the kernels runs on the CPU as it is.
//
// The threads of a block are fibers, which run in a random order from one barrier to the next; a
// barrier that some threads never reach ends the program. With SHIM_THREADS they are threads of the
// system instead, for the sanitizers. Blocks follow each other, in a random order.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static // one block runs at a time

template <class To, class From> static inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
static inline unsigned int __float_as_uint(float a) { return same_bits<unsigned int>(a); }
static inline float __uint_as_float(unsigned int a) { return same_bits<float>(a); }
static inline long long __double_as_longlong(double a) { return same_bits<long long>(a); }
static inline double __longlong_as_double(long long a) { return same_bits<double>(a); }

namespace shim {
struct Index {
  unsigned int x;
};
struct Body { // what each thread does
  virtual void run() const = 0;
};

inline std::vector<unsigned int> shuffled(unsigned int count) {
  static unsigned long long random = 1;
  std::vector<unsigned int> order(count);
  for (unsigned int i = 0; i < count; i++) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    unsigned int other = static_cast<unsigned int>((random >> 33) % (i + 1));
    order[i] = order[other];
    order[other] = i;
  }
  return order;
}
} // namespace shim

#ifndef SHIM_THREADS
#include <ucontext.h>

namespace shim {
enum class State { running, waiting, done };
struct Fiber {
  ucontext_t context;
  State state;
  bool vote;
  std::vector<char> stack;
};
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline const Body *body;
inline Index thread, block;
inline bool ballot;

inline void leave(State state) {
  Fiber &self = fibers[thread.x];
  self.state = state;
  swapcontext(&self.context, &scheduler);
}
inline void enter() {
  body->run();
  leave(State::done);
}
inline int barrier(bool vote) {
  fibers[thread.x].vote = vote;
  leave(State::waiting);
  return ballot;
}
inline void run_block(unsigned int threads) {
  fibers.resize(threads);
  for (Fiber &fiber : fibers) {
    fiber.stack.resize(1 << 16);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
    fiber.state = State::running;
  }
  for (;;) {
    for (unsigned int index : shuffled(threads)) {
      thread.x = index;
      swapcontext(&scheduler, &fibers[index].context);
    }
    unsigned int waiting = 0;
    ballot = false;
    for (const Fiber &fiber : fibers) {
      waiting += fiber.state == State::waiting;
      ballot = ballot || fiber.vote;
    }
    if (waiting == 0) return;
    if (waiting < threads) {
      std::fprintf(stderr, "shim: a barrier that some threads never reach\n");
      std::abort();
    }
  }
}
inline void launch(unsigned int blocks, unsigned int threads, const Body &work) {
  body = &work;
  for (unsigned int index : shuffled(blocks)) {
    block.x = index;
    run_block(threads);
  }
}
} // namespace shim

#else
#include <atomic>
#include <pthread.h>

namespace shim {
inline thread_local Index thread, block;
// Two in turn: to the sanitizer whoever leaves a barrier has seen all that was done before others
// came to it, also when they come a second time.
inline pthread_barrier_t meetings[2];
inline thread_local int turn;
inline std::atomic<int> votes;

inline void meet() { pthread_barrier_wait(&meetings[turn ^= 1]); }
inline int barrier(bool vote) {
  if (vote) votes = 1;
  meet();
  return votes;
}
inline int vote_of_all(bool vote) {
  int any = barrier(vote);
  meet();
  votes = 0;
  meet();
  return any;
}
struct Member {
  unsigned int index;
  const std::vector<unsigned int> *blocks;
  const Body *body;
};
inline void *serve(void *given) {
  const Member &self = *static_cast<const Member *>(given);
  thread.x = self.index;
  for (unsigned int next : *self.blocks) {
    block.x = next;
    self.body->run();
    meet();
  }
  return nullptr;
}
inline void launch(unsigned int blocks, unsigned int threads, const Body &body) {
  for (pthread_barrier_t &meeting : meetings) pthread_barrier_init(&meeting, nullptr, threads);
  std::vector<unsigned int> order = shuffled(blocks);
  std::vector<Member> members;
  std::vector<pthread_t> crew(threads);
  for (unsigned int index = 0; index < threads; index++) members.push_back({index, &order, &body});
  for (unsigned int index = 0; index < threads; index++)
    if (pthread_create(&crew[index], nullptr, serve, &members[index])) std::abort();
  for (pthread_t member : crew) pthread_join(member, nullptr);
}
} // namespace shim
#endif

#define threadIdx shim::thread
#define blockIdx shim::block
static inline void __syncthreads() { shim::barrier(false); }
#ifndef SHIM_THREADS
static inline int __syncthreads_or(int vote) { return shim::barrier(vote != 0); }
#else
static inline int __syncthreads_or(int vote) { return shim::vote_of_all(vote != 0); }
#endif
