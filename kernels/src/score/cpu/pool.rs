//! Threads that wait for work which borrows from its caller.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Threads that one pool may have, the caller included.
pub const THREADS_MAX: usize = 256;

/// Named threads, parked between calls. The caller of [`Pool::run`] is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose work the threads do.
    turn: Mutex<()>,
}

impl Pool {
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(threads: usize) -> io::Result<Self> {
        let threads = threads.clamp(1, THREADS_MAX);
        let mut pool = Self {
            shared: Arc::default(),
            workers: Vec::with_capacity(threads - 1),
            turn: Mutex::new(()),
        };
        for number in 1..threads {
            // After an error the drop of the pool stops those that already run.
            pool.workers.push(start_worker(number, &pool.shared)?);
        }
        Ok(pool)
    }

    /// The caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once with each task, on whichever thread is free; returns when all are done.
    ///
    /// A task owns what it writes to, such as a `&mut` part of the answer. When the threads are
    /// busy with another caller's work, this caller does all of its own: it never waits for a
    /// turn, and work that calls `run` again does not deadlock.
    ///
    /// # Panics
    /// When `work` does, on whichever thread: the remaining tasks are then given up.
    pub(crate) fn run<T: Send>(&self, tasks: Vec<T>, work: impl Fn(T) + Sync) {
        let several = tasks.len() > 1;
        let tasks = Mutex::new(tasks.into_iter());
        let next = || tasks.lock().next();
        let until_empty = || {
            let drained = catch_unwind(AssertUnwindSafe(|| {
                while let Some(task) = next() {
                    work(task);
                }
            }));
            if let Err(panic) = drained {
                tasks.lock().by_ref().for_each(drop);
                resume_unwind(panic);
            }
        };
        match self.turn.try_lock() {
            Some(_turn) if several && !self.workers.is_empty() => self.together(&until_empty),
            _ => until_empty(),
        }
    }

    /// Runs `job` here and on every worker that wakes before it is done here.
    fn together(&self, job: &(dyn Fn() + Sync)) {
        let shared = &*self.shared;
        {
            let mut state = shared.state.lock();
            // The job is taken back, and nobody runs it, before this function returns or unwinds.
            state.job = Some(outlive(job));
            state.turn = state.turn.wrapping_add(1);
        }
        shared.work.notify_all();
        let own = catch_unwind(AssertUnwindSafe(job));
        let panic = {
            let mut state = shared.state.lock();
            state.job = None;
            while state.running > 0 {
                shared.done.wait(&mut state);
            }
            state.panic.take()
        };
        if let Some(panic) = own.err().or(panic) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches what its work throws, so it never ends by a panic.
            let _ended = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pool = formatter.debug_struct("Pool");
        pool.field("threads", &self.threads()).finish()
    }
}

type Job = &'static (dyn Fn() + Sync);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A job has come, or the end.
    work: Condvar,
    /// Nobody runs the job any more.
    done: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// Counts jobs, so that a worker takes part in each at most once.
    turn: u64,
    /// Workers that run the job.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
    stop: bool,
}

impl Shared {
    fn work(&self) {
        let mut last_turn = 0;
        let mut state = self.state.lock();
        while !state.stop {
            let (Some(job), true) = (state.job, state.turn != last_turn) else {
                self.work.wait(&mut state);
                continue;
            };
            last_turn = state.turn;
            state.running += 1;
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(job));
            state = self.state.lock();
            state.running -= 1;
            if let Err(panic) = outcome {
                state.panic = Some(panic);
            }
            if state.running == 0 {
                self.done.notify_one();
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the place that names the threads of kernels"
)]
fn start_worker(number: usize, shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name(format!("kernel-{number}"))
        .spawn(move || shared.work())
}

/// Lets workers hold a job that borrows from its caller.
#[expect(
    unsafe_code,
    reason = "parked threads outlive what one call borrows; a scope would start threads each call"
)]
fn outlive<'a>(job: &'a (dyn Fn() + Sync + 'a)) -> Job {
    // SAFETY: only the lifetime changes. `together`, the only caller, takes the job out of the
    // state and waits until no worker runs it, under the state's lock, before it returns or
    // unwinds; a worker copies it out and counts itself as running under one hold of that lock.
    unsafe { std::mem::transmute::<&'a (dyn Fn() + Sync + 'a), Job>(job) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part of an answer is written once, by its own task.
    fn check(pool: &Pool, items: usize, part: usize) {
        let mut answer = vec![0_usize; items];
        let tasks: Vec<_> = answer.chunks_mut(part).enumerate().collect();
        pool.run(tasks, |(number, chunk)| {
            for (offset, item) in chunk.iter_mut().enumerate() {
                *item += 1 + number * part + offset;
            }
        });
        assert!(answer.iter().copied().eq(1..=items));
    }

    #[test]
    fn every_task_is_done_once() {
        for threads in [0, 1, 2, 5] {
            let pool = Pool::start(threads).unwrap();
            assert_eq!(pool.threads(), threads.max(1));
            for items in 0..200 {
                check(&pool, items, 1 + items % 7);
            }
        }
    }

    #[test]
    fn many_callers_share_one_pool() {
        let pool = Pool::start(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..300).for_each(|items| check(&pool, items % 20, 1)));
            }
        });
    }

    #[test]
    fn work_may_ask_for_more_work() {
        let pool = Pool::start(2).unwrap();
        pool.run(vec![10, 20, 30], |items| check(&pool, items, 3));
    }

    /// Both threads are inside a task at once, or this would never end.
    #[test]
    fn the_workers_take_part() {
        let pool = Pool::start(2).unwrap();
        let both = std::sync::Barrier::new(2);
        pool.run(vec![(); 2], |()| {
            both.wait();
        });
    }

    /// What the work borrows must not go while a worker uses it.
    #[test]
    fn a_call_lasts_until_the_workers_are_done() {
        let pool = Pool::start(2).unwrap();
        let both = std::sync::Barrier::new(2);
        let mut done = [false; 2];
        pool.run(done.iter_mut().collect(), |done| {
            both.wait();
            if std::thread::current().name() == Some("kernel-1") {
                (0..10_000).for_each(|_| std::thread::yield_now());
            }
            *done = true;
        });
        assert_eq!(done, [true; 2]);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::start(2).unwrap();
        for thrower in ["caller", "kernel-1"] {
            let both = std::sync::Barrier::new(2);
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                pool.run((0..1000).collect(), |task| {
                    if task > 1 {
                        return;
                    }
                    both.wait();
                    let thread = std::thread::current();
                    let is_worker = thread.name() == Some("kernel-1");
                    assert!(is_worker != (thrower == "kernel-1"), "thrown");
                });
            }));
            let panic = thrown.unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"thrown"));
            check(&pool, 100, 3);
        }
    }

    #[test]
    fn an_idle_pool_ends_when_dropped() {
        for _ in 0..50 {
            drop(Pool::start(4).unwrap());
        }
        let pool = Pool::start(4).unwrap();
        check(&pool, 40, 1);
        drop(pool);
    }
}
