// A device in a process of its own: takes orders on its input, answers on its output. Each order
// is a letter and what it takes, each answer a 0 and what was asked for, or a 1, the length of a
// message and the message, after which the process ends. Numbers are 64-bit, the machine's way
// round.
//
//     device SEED [omit|stray LINE]
//
//     A bytes                                      allocates; buffers are numbered from 0
//     W buffer bytes, then as many                 writes to a buffer's start
//     R buffer offset bytes                        reads
//     L kernel grid_x grid_y threads               launches: the kernel as its place in KERNELS,
//       count, then (buffer, offset) each          what it takes, in its order
//       count, then numbers

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace {

using Number = unsigned long long;

struct Buffer {
    char* start;
    std::size_t bytes;
};

std::vector<Buffer> buffers;

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

char* place(Number buffer, Number offset, Number bytes) {
    const Buffer& at = buffers.at(buffer);
    if (offset > at.bytes || bytes > at.bytes - offset) throw std::runtime_error("past a buffer");
    return at.start + offset;
}

void launch(const shim::Schedule& schedule) {
    const Number index = read_number();
    if (index >= std::size(shim::KERNELS)) throw std::runtime_error("no such kernel");
    const shim::Kernel& kernel = shim::KERNELS[index];
    shim::Index grid;
    grid.x = static_cast<unsigned>(read_number());
    grid.y = static_cast<unsigned>(read_number());
    const auto threads = static_cast<unsigned>(read_number());
    std::vector<char*> pointers(read_number());
    for (char*& pointer : pointers) {
        const Number buffer = read_number(), offset = read_number();
        pointer = place(buffer, offset, 0);
    }
    std::vector<unsigned> numbers(read_number());
    for (unsigned& number : numbers) number = static_cast<unsigned>(read_number());
    if (pointers.size() != kernel.pointers || numbers.size() != kernel.numbers) {
        throw std::runtime_error(std::string(kernel.name) + " takes other arguments");
    }
    std::vector<void*> parameters(pointers.size() + numbers.size());
    for (std::size_t i = 0; i < pointers.size(); ++i) parameters[i] = &pointers[i];
    for (std::size_t i = 0; i < numbers.size(); ++i) parameters[pointers.size() + i] = &numbers[i];
    kernel.run(parameters.data(), grid, threads, schedule);
}

void answer(const void* bytes, std::size_t count) {
    std::fputc(0, stdout);
    if (count > 0) std::fwrite(bytes, count, 1, stdout);
    std::fflush(stdout);
}

void obey(int order, const shim::Schedule& schedule) {
    switch (order) {
        case 'A': {
            const Number bytes = read_number();
            buffers.push_back({shim::guarded_memory(bytes), bytes});
            return answer(nullptr, 0);
        }
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
            launch(schedule);
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
        (omit ? schedule.sabotage.omitted_line : schedule.sabotage.stray_line) =
            std::atoi(words[3]);
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
