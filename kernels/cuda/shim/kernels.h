// The kernels of score.cu by name, and memory for them.
#pragma once

#include <cstring>
#include <iterator>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

#include "../score.cu"

namespace shim {

struct Kernel {
    const char* name;
    // What it takes: the pointers first.
    std::size_t pointers, numbers;
    // Parameters as the driver takes them: where each one lies.
    void (*run)(void** parameters, Index grid, unsigned threads, const Schedule& schedule);
};

template <auto KERNEL, class... P>
Kernel describe(const char* name, void (*)(P...)) {
    constexpr std::size_t pointers = (0 + ... + std::is_pointer_v<P>);
    return {name, pointers, sizeof...(P) - pointers,
            [](void** parameters, Index grid, unsigned threads, const Schedule& schedule) {
                const auto take = [&]<std::size_t... I>(std::index_sequence<I...>) {
                    return std::tuple<P...>{*static_cast<std::remove_cv_t<P>*>(parameters[I])...};
                };
                const auto arguments = take(std::index_sequence_for<P...>());
                shim::run(grid, threads, schedule, [&] { std::apply(KERNEL, arguments); });
            }};
}

#define DESCRIBE(NAME) describe<NAME>(#NAME, NAME)
inline const Kernel KERNELS[] = {
    DESCRIBE(row_dots_1),      DESCRIBE(row_dots_4),    DESCRIBE(sum_planes),
    DESCRIBE(head_scores_1),   DESCRIBE(head_scores_4), DESCRIBE(head_scores_8),
    DESCRIBE(standard_scores), DESCRIBE(best_scores),   DESCRIBE(best_keys),
};
#undef DESCRIBE

// Memory that ends where an unreadable page begins: whoever reads or writes past it ends the
// process. Filled with NaN, so that what nobody wrote shows. Never freed: the process is short.
inline char* guarded_memory(std::size_t bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t whole = (bytes + page - 1) / page * page;
    void* pages =
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::runtime_error("no memory");
    char* guard = static_cast<char*>(pages) + whole;
    mprotect(guard, page, PROT_NONE);
    std::memset(guard - bytes, 0xff, bytes);
    return guard - bytes;
}

}  // namespace shim
