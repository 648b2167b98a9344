#include "block.h"

#include <csetjmp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <ucontext.h>

// Bounds of the section that cuda.h puts shared variables into.
extern "C" char __start_shared_memory[], __stop_shared_memory[];

namespace shim {
namespace {

constexpr std::size_t STACK_BYTES = 64 << 10;

enum class State { runnable, at_barrier, in_exchange, done };

struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    std::jmp_buf resume;
    State state = State::done;
    int line = 0;  // where it waits
    unsigned index = 0;
    unsigned exchanges = 0;
    bool started = false;
};

struct Warp {
    // Two sets in turn: a lane can be one exchange ahead of another that has still to read.
    unsigned long long values[2][LANES_OF_WARP];
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
std::function<void()> kernel;
Schedule schedule;
Index grid, block;
unsigned threads;
Fiber* current = nullptr;
std::jmp_buf scheduler;
// Why a fiber gave up: no exception crosses from its stack to the scheduler's.
std::string failure;

// Back to the scheduler, until it chooses this fiber again. _setjmp rather than swapcontext, which
// makes a system call each time.
void pause(State state, int line) {
    current->state = state;
    current->line = line;
    if (_setjmp(current->resume) == 0) _longjmp(scheduler, 1);
}

// A fiber runs one block after the other.
void fiber_main() {
    for (;;) {
        kernel();
        pause(State::done, 0);
    }
}

void resume(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler) != 0) {
        if (!failure.empty()) throw Stuck(failure);
        return;
    }
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
}

bool warp_is_complete(unsigned warp) {
    for (unsigned lane = 0; lane < LANES_OF_WARP; ++lane) {
        if (fibers[warp * LANES_OF_WARP + lane].state != State::in_exchange) return false;
    }
    return true;
}

void release_warp(unsigned warp) {
    Fiber* lanes = &fibers[warp * LANES_OF_WARP];
    for (unsigned lane = 0; lane < LANES_OF_WARP; ++lane) {
        if (lanes[lane].line != lanes[0].line) {
            throw Stuck("divergent warp: lanes exchange in lines " +
                        std::to_string(lanes[0].line) + " and " + std::to_string(lanes[lane].line));
        }
    }
    for (unsigned lane = 0; lane < LANES_OF_WARP; ++lane) lanes[lane].state = State::runnable;
}

// Runs a warp until its lanes are done or wait for others than each other.
void run_warp(unsigned warp, const std::vector<unsigned>& lanes) {
    for (bool progress = true; progress;) {
        progress = false;
        for (unsigned lane : lanes) {
            Fiber& fiber = fibers[warp * LANES_OF_WARP + lane];
            if (fiber.state != State::runnable) continue;
            resume(fiber);
            progress = true;
        }
        if (warp_is_complete(warp)) release_warp(warp);
    }
}

// Whether the block is done; else lets its threads pass the barrier that all have reached.
bool release_block() {
    unsigned done = 0, exchanging = 0;
    int first_line = 0, other_line = 0;
    for (unsigned i = 0; i < threads; ++i) {
        const Fiber& fiber = fibers[i];
        done += fiber.state == State::done;
        exchanging += fiber.state == State::in_exchange;
        if (fiber.state != State::at_barrier) continue;
        if (first_line == 0) first_line = fiber.line;
        if (fiber.line != first_line) other_line = fiber.line;
    }
    if (done == threads) return true;
    if (done > 0 || exchanging > 0 || other_line != 0) {
        std::string report = "divergent barrier: of " + std::to_string(threads) + " threads " +
                             std::to_string(done) + " have ended, " + std::to_string(exchanging) +
                             " wait for their warp";
        if (first_line != 0) report += ", others in line " + std::to_string(first_line);
        if (other_line != 0) report += ", others in line " + std::to_string(other_line);
        throw Stuck(report);
    }
    for (unsigned i = 0; i < threads; ++i) fibers[i].state = State::runnable;
    return false;
}

std::vector<unsigned> ordered(unsigned count, std::mt19937& random) {
    std::vector<unsigned> order(count);
    std::iota(order.begin(), order.end(), 0u);
    if (schedule.seed == 1) return {order.rbegin(), order.rend()};
    if (schedule.seed > 1) {
        for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    }
    return order;
}

void run_block() {
    std::memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
    std::mt19937 random(schedule.seed * 1000003u + block.y * 1009u + block.x);
    const auto warp_order = ordered(threads / LANES_OF_WARP, random);
    const auto lane_order = ordered(LANES_OF_WARP, random);
    for (unsigned i = 0; i < threads; ++i) fibers[i].state = State::runnable;
    do {
        for (unsigned warp : warp_order) run_warp(warp, lane_order);
    } while (!release_block());
}

}  // namespace

void run(Index grid_, unsigned threads_, const Schedule& schedule_, std::function<void()> kernel_) {
    if (threads_ == 0 || threads_ % LANES_OF_WARP != 0) throw Stuck("a block is whole warps");
    grid = grid_;
    threads = threads_;
    schedule = schedule_;
    kernel = std::move(kernel_);
    // Fibers stay where they are: a paused one holds its own address.
    if (fibers.empty()) fibers = std::vector<Fiber>(1024);
    if (threads > fibers.size()) throw Stuck("a block has at most 1024 threads");
    for (unsigned i = 0; i < fibers.size(); ++i) fibers[i].index = i;
    warps.resize(threads / LANES_OF_WARP);
    for (block.y = 0; block.y < grid.y; ++block.y) {
        for (block.x = 0; block.x < grid.x; ++block.x) run_block();
    }
}

Index current_thread() { return {current->index, 0}; }
Index current_block() { return block; }
Index current_grid() { return grid; }

void wait_for_block(int line) {
    if (line == schedule.sabotage.omitted_line) return;
    const bool last_warp = current->index + LANES_OF_WARP >= threads;
    if (line == schedule.sabotage.stray_line && last_warp && current->index % 2 == 1) return;
    pause(State::at_barrier, line);
}

const unsigned long long* exchange(unsigned mask, unsigned long long value, int line) {
    if (mask != 0xffffffffu) failure = "only whole warps exchange";
    auto& values = warps[current->index / LANES_OF_WARP].values[current->exchanges++ % 2];
    values[current->index % LANES_OF_WARP] = value;
    pause(State::in_exchange, line);
    return values;
}

}  // namespace shim
