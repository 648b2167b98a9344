// Runs the threads of a block as fibers of one processor thread, in a chosen order.
//
// A thread runs until it waits for its warp or its block, so that every order of waits that the
// schedule asks for really happens. A warp that can go on does so before the next one starts: the
// first is as far ahead of the others as barriers let it be, which is what shows a missing one.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace shim {

constexpr unsigned LANES_OF_WARP = 32;

struct Index {
    unsigned x = 0, y = 0;
};

// What is broken on purpose, so that a test can see whether that is noticed.
struct Sabotage {
    int omitted_line = 0;  // no thread waits at the barrier in this line of the source
    int stray_line = 0;    // the last warp's odd lanes do not
};

struct Schedule {
    // 0: ascending threads; 1: descending; else warps and lanes shuffled by this seed.
    unsigned seed = 0;
    Sabotage sabotage;
};

// A wait that can never end, or that the language leaves undefined.
struct Stuck : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Runs all blocks of a grid. After Stuck nothing more can be run.
void run(Index grid, unsigned threads, const Schedule& schedule, std::function<void()> kernel);

Index current_thread();
Index current_block();
Index current_grid();

// __syncthreads in a line of the source.
void wait_for_block(int line);
// What all lanes of the warp give, once they have; valid until the lane's next exchange.
const unsigned long long* exchange(unsigned mask, unsigned long long value, int line);

}  // namespace shim
