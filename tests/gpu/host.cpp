// The kernels as functions that are called as the driver calls them, with an array of pointers to
// the arguments, and as a program for the sanitizers.
#include "shim.hpp"

#include "kernel.cu"

#include <tuple>

template <class... Types> struct Call : shim::Body {
  void (*kernel)(Types...);
  void **arguments;
  Call(void (*kernel)(Types...), void **arguments) : kernel(kernel), arguments(arguments) {}
  void run() const override { spread(std::index_sequence_for<Types...>{}); }
  template <size_t... Places> void spread(std::index_sequence<Places...>) const {
    kernel(*static_cast<Types *>(arguments[Places])...);
  }
};
template <class... Types>
static void launch(void (*kernel)(Types...), unsigned int blocks, unsigned int threads,
                   void **arguments) {
  shim::launch(blocks, threads, Call<Types...>(kernel, arguments));
}
template <class... Types> static int size_of(void (*)(Types...), int place) {
  int sizes[] = {static_cast<int>(sizeof(Types))..., 0};
  return place < static_cast<int>(sizeof...(Types)) ? sizes[place] : 0;
}

#define EXPORT(kernel)                                                                             \
  extern "C" void launch_##kernel(unsigned int blocks, unsigned int threads, void **arguments) {   \
    launch(kernel, blocks, threads, arguments);                                                    \
  }                                                                                                \
  extern "C" int size_##kernel(int place) { return size_of(kernel, place); }
EXPORT(excess_sums)
EXPORT(residuals)
EXPORT(accept_entries)

#ifdef PROGRAM
// Read packed rows and ids, run all kernels on memory of just the right size, write the answers.
template <class T> static std::vector<T> numbers(size_t count) {
  std::vector<T> read(count);
  if (std::fread(read.data(), sizeof(T), count, stdin) != count) std::exit(2);
  return read;
}
template <class T> static void print(const std::vector<T> &answers) {
  std::fwrite(answers.data(), sizeof(T), answers.size(), stdout);
}
template <class... Types, class... Given>
static void run(void (*kernel)(Types...), Int blocks, Given... given) {
  std::tuple<Types...> arguments(given...);
  std::apply(
      [=](Types &...each) {
        void *pointers[] = {&each...};
        launch(kernel, static_cast<unsigned int>(blocks), BLOCK, pointers);
      },
      arguments);
}

int main() {
  std::vector<Int> header = numbers<Int>(3);
  Int rows = header[0], vocabulary = header[1], check = header[2];
  Int chunks = (vocabulary + CHUNK - 1) / CHUNK;
  std::vector<Bits> draft = numbers<Bits>(rows * vocabulary), target = numbers<Bits>(draft.size());
  std::vector<Bits> out(draft.size());
  std::vector<Int> ids = numbers<Int>(rows), ids_good(1);
  std::vector<double> sums(rows * chunks), accept(rows), mass(rows), alone(rows);
  run(excess_sums, rows * chunks, draft.data(), vocabulary, 1, target.data(), vocabulary, 1, rows,
      vocabulary, ids.data(), 0, sums.data(), ids_good.data());
  run(residuals, rows * chunks, draft.data(), vocabulary, 1, target.data(), vocabulary, 1,
      out.data(), vocabulary, 1, vocabulary, ids.data(), 0, sums.data(), ids_good.data(), check,
      accept.data(), mass.data());
  run(accept_entries, (rows + BLOCK - 1) / BLOCK, draft.data(), vocabulary, 1, target.data(),
      vocabulary, 1, rows, vocabulary, ids.data(), alone.data());
  print(out);
  print(accept);
  print(mass);
  print(alone);
}
#endif
