//! Named threads and tasks: one that dies ends the server, with a clear message.

use std::{
    future::Future,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// A ninth of the weight of the threads that answer.
const BACKGROUND_NICE: i32 = 10;

/// Gives the calling thread this much less of a busy processor. Where the system does not let it,
/// it goes on as before.
fn step_back(nice: i32) {
    // Linux takes a thread for a process here.
    let _unchanged = rustix::process::setpriority_process(None, nice);
}

/// Where deaths are told. Clones share it.
#[derive(Debug, Clone)]
pub struct Supervisor {
    death: watch::Sender<Option<&'static str>>,
}

impl Supervisor {
    #[must_use]
    pub fn new() -> Supervisor {
        Supervisor {
            death: watch::Sender::new(None),
        }
    }

    /// Runs `work` on a thread of its own; a panic there ends the server.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the place that names threads"
    )]
    pub fn thread<F>(&self, name: &'static str, work: F) -> io::Result<JoinHandle<()>>
    where
        F: FnOnce() + Send + 'static,
    {
        let death = self.death.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    death.send_replace(Some(name));
                }
            })
    }

    /// As [`Self::thread`], for work that nobody waits for: it steps back behind the others where
    /// there are fewer processors than threads.
    pub fn background<F>(&self, name: &'static str, work: F) -> io::Result<JoinHandle<()>>
    where
        F: FnOnce() + Send + 'static,
    {
        self.thread(name, move || {
            step_back(BACKGROUND_NICE);
            work();
        })
    }

    /// Runs `work` on the current runtime; a panic there ends the server.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the place that names tasks"
    )]
    pub fn task<F>(&self, name: &'static str, work: F) -> tokio::task::JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let death = self.death.clone();
        let running = tokio::spawn(work);
        tokio::spawn(async move {
            if running.await.is_err_and(|error| error.is_panic()) {
                death.send_replace(Some(name));
            }
        })
    }

    /// Resolves to the name of the first worker that dies.
    pub async fn died(&self) -> &'static str {
        let mut deaths = self.death.subscribe();
        loop {
            if let Some(name) = *deaths.borrow_and_update() {
                return name;
            }
            if deaths.changed().await.is_err() {
                // Cannot happen while `self` holds the sender; never resolving is the safe answer.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Default for Supervisor {
    fn default() -> Supervisor {
        Supervisor::new()
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A few named threads behind a bounded queue, for work that is too long for an async thread.
#[derive(Debug)]
pub struct Workers {
    queue: Mutex<Option<SyncSender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The queue is full, or the workers have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl Workers {
    /// Starts `threads` threads that share a queue of at most `queue_depth_max` waiting jobs.
    pub fn start(
        supervisor: &Supervisor,
        name: &'static str,
        threads: usize,
        queue_depth_max: usize,
    ) -> io::Result<Workers> {
        let (sender, receiver) = sync_channel::<Job>(queue_depth_max);
        let receiver = std::sync::Arc::new(Mutex::new(receiver));
        let mut handles = Vec::with_capacity(threads);
        for _ in 0..threads {
            let receiver = std::sync::Arc::clone(&receiver);
            handles.push(supervisor.thread(name, move || run_jobs(&receiver))?);
        }
        Ok(Workers {
            queue: Mutex::new(Some(sender)),
            threads: Mutex::new(handles),
        })
    }

    /// Queues `job`, or refuses at once.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), QueueFull> {
        let queue = self.queue.lock();
        let sender = queue.as_ref().ok_or(QueueFull)?;
        sender.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => QueueFull,
        })
    }

    /// Lets queued jobs finish, then ends the threads.
    pub fn stop(&self) {
        drop(self.queue.lock().take());
        for thread in self.threads.lock().drain(..) {
            // The supervisor has already told of a panic.
            let _ended = thread.join();
        }
    }
}

fn run_jobs(receiver: &Mutex<Receiver<Job>>) {
    loop {
        let job = receiver.lock().recv();
        let Ok(job) = job else {
            return;
        };
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_thread_is_named() {
        let supervisor = Supervisor::new();
        let thread = supervisor
            .thread("doomed", || panic!("on purpose"))
            .unwrap();
        assert_eq!(supervisor.died().await, "doomed");
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn a_dead_task_is_named() {
        let supervisor = Supervisor::new();
        supervisor.task("fine", async {});
        supervisor.task("doomed", async { panic!("on purpose") });
        assert_eq!(supervisor.died().await, "doomed");
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_stopping_finishes_what_was_queued() {
        let supervisor = Supervisor::new();
        let workers = Workers::start(&supervisor, "worker", 1, 1).unwrap();
        let (started, has_started) = sync_channel(1);
        let (release, released) = sync_channel::<()>(0);
        let (done, is_done) = sync_channel(4);
        let first_done = done.clone();
        workers
            .submit(move || {
                started.send(()).unwrap();
                released.recv().unwrap();
                first_done.send(1).unwrap();
            })
            .unwrap();
        has_started.recv().unwrap();
        workers.submit(move || done.send(2).unwrap()).unwrap();
        assert_eq!(workers.submit(|| {}), Err(QueueFull));
        release.send(()).unwrap();
        workers.stop();
        assert_eq!(is_done.iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(workers.submit(|| {}), Err(QueueFull));
    }
}
