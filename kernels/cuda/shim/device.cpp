// A device in a process of its own: takes orders on its input, answers on its output. Each order
// is a letter and what it takes, each answer a 0 and what was asked for, or a 1, the length of a
// message and the message, after which the process ends. Numbers are 64-bit, the machine's way
// round.
//
//     device [SEED [omit|stray LINE]]
//
//     A bytes                                      allocates; buffers are numbered from 0
//     W buffer bytes, then as many                 writes to a buffer's start
//     R buffer offset bytes                        reads
//     L kernel grid_x grid_y threads               launches: the kernel as its place in KERNELS,
//       count, then (buffer, offset) each          what it takes, in its order
//       count, then numbers

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

#include "../score.cu"

namespace {

using Number = unsigned long long;

void read_exactly(void* to, std::size_t bytes) {
    if (bytes > 0 && std::fread(to, bytes, 1, stdin) != 1) {
        throw std::runtime_error("the orders break off");
    }
}

Number read_number() {
    Number number;
    read_exactly(&number, sizeof number);
    return number;
}

// Memory that ends where an unreadable page begins: whoever reads or writes past it ends the
// process. Filled with NaN, so that what nobody wrote shows. Never freed: the process is short.
struct Buffer {
    char* start;
    std::size_t bytes;

    explicit Buffer(std::size_t size) : bytes(size) {
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t whole = (size + page - 1) / page * page;
        void* pages = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) throw std::runtime_error("no memory");
        char* guard = static_cast<char*>(pages) + whole;
        mprotect(guard, page, PROT_NONE);
        start = guard - size;
        std::memset(start, 0xff, size);
    }
};

std::vector<Buffer> buffers;

char* place(Number buffer, Number offset, Number bytes) {
    const Buffer& at = buffers.at(buffer);
    if (offset > at.bytes || bytes > at.bytes - offset) throw std::runtime_error("past a buffer");
    return at.start + offset;
}

struct Launch {
    shim::Index grid;
    unsigned threads = 0;
    std::vector<char*> pointers;
    std::vector<unsigned> numbers;
    std::size_t pointers_taken = 0, numbers_taken = 0;

    template <class T>
    T take() {
        if constexpr (std::is_pointer_v<T>) {
            return reinterpret_cast<T>(pointers.at(pointers_taken++));
        } else {
            return numbers.at(numbers_taken++);
        }
    }
};

template <class... P>
void run(void (*kernel)(P...), Launch& launch, const shim::Schedule& schedule) {
    std::tuple<std::remove_cv_t<P>...> arguments{launch.take<std::remove_cv_t<P>>()...};
    if (launch.pointers_taken != launch.pointers.size() ||
        launch.numbers_taken != launch.numbers.size()) {
        throw std::runtime_error("more arguments than the kernel takes");
    }
    shim::run(launch.grid, launch.threads, schedule, [&] { std::apply(kernel, arguments); });
}

template <auto KERNEL>
void run_kernel(Launch& launch, const shim::Schedule& schedule) {
    run(KERNEL, launch, schedule);
}

constexpr void (*KERNELS[])(Launch&, const shim::Schedule&) = {
    run_kernel<row_dots_1>,      run_kernel<row_dots_4>,    run_kernel<sum_planes>,
    run_kernel<head_scores_1>,   run_kernel<head_scores_4>, run_kernel<head_scores_8>,
    run_kernel<standard_scores>, run_kernel<best_scores>,   run_kernel<best_keys>,
};

void launch_kernel(const shim::Schedule& schedule) {
    Launch launch;
    const Number kernel = read_number();
    if (kernel >= std::size(KERNELS)) throw std::runtime_error("no such kernel");
    launch.grid.x = static_cast<unsigned>(read_number());
    launch.grid.y = static_cast<unsigned>(read_number());
    launch.threads = static_cast<unsigned>(read_number());
    for (Number count = read_number(); count > 0; --count) {
        const Number buffer = read_number(), offset = read_number();
        launch.pointers.push_back(place(buffer, offset, 0));
    }
    for (Number count = read_number(); count > 0; --count) {
        launch.numbers.push_back(static_cast<unsigned>(read_number()));
    }
    KERNELS[kernel](launch, schedule);
}

void answer(const void* bytes, std::size_t count) {
    std::fputc(0, stdout);
    if (count > 0) std::fwrite(bytes, count, 1, stdout);
    std::fflush(stdout);
}

void obey(int order, const shim::Schedule& schedule) {
    switch (order) {
        case 'A':
            buffers.emplace_back(read_number());
            return answer(nullptr, 0);
        case 'W': {
            const Number buffer = read_number(), bytes = read_number();
            read_exactly(place(buffer, 0, bytes), bytes);
            return answer(nullptr, 0);
        }
        case 'R': {
            const Number buffer = read_number(), offset = read_number(), bytes = read_number();
            return answer(place(buffer, offset, bytes), bytes);
        }
        case 'L':
            launch_kernel(schedule);
            return answer(nullptr, 0);
        default:
            throw std::runtime_error("no such order");
    }
}

shim::Schedule schedule_of(int count, char** words) {
    shim::Schedule schedule;
    if (count > 1) schedule.seed = static_cast<unsigned>(std::atoi(words[1]));
    if (count > 3) {
        const bool omit = std::string(words[2]) == "omit";
        (omit ? schedule.sabotage.omitted_line : schedule.sabotage.stray_line) = std::atoi(words[3]);
    }
    return schedule;
}

}  // namespace

int main(int count, char** words) {
    const shim::Schedule schedule = schedule_of(count, words);
    try {
        for (int order; (order = std::fgetc(stdin)) != EOF;) obey(order, schedule);
    } catch (const std::exception& error) {
        const std::string message = error.what();
        const Number length = message.size();
        std::fputc(1, stdout);
        std::fwrite(&length, sizeof length, 1, stdout);
        std::fwrite(message.data(), length, 1, stdout);
        std::fflush(stdout);
        return 1;
    }
    return 0;
}
