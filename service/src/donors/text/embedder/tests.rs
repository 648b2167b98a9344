//! What callers of the embedder see, with a model that is held back step by step.

use std::{
    ops::Range,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    task::{Context, Poll, Waker},
    thread::{self, Scope, ScopedJoinHandle},
    time::Duration,
};

use super::*;

/// What the held model does with a batch.
enum Act {
    Serve,
    Fail,
    Answer(Vec<Vec<f32>>),
}

/// A model that tells of each batch and waits to be told what to do. Dimensions: 2.
struct Held {
    begun: SyncSender<Vec<String>>,
    acts: Receiver<Act>,
}

impl Embed for Held {
    fn dimensions(&self) -> usize {
        2
    }

    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelFailure> {
        let told = texts.iter().map(|text| (*text).to_owned()).collect();
        self.begun.send(told).map_err(|_| ModelFailure::Run)?;
        match self.acts.recv() {
            Ok(Act::Serve) => Ok(texts.iter().map(|text| vector(text)).collect()),
            Ok(Act::Answer(vectors)) => Ok(vectors),
            Ok(Act::Fail) | Err(_) => Err(ModelFailure::Run),
        }
    }
}

/// A text that is a number is the direction at that angle.
fn vector(text: &str) -> Vec<f32> {
    let angle: f32 = text.parse().unwrap();
    vec![angle.cos(), angle.sin()]
}

fn texts(numbers: Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

fn vectors(numbers: Range<u32>) -> Vec<Vec<f32>> {
    texts(numbers).iter().map(|text| vector(text)).collect()
}

struct Bench {
    embedder: Arc<Embedder>,
    begun: Receiver<Vec<String>>,
    acts: SyncSender<Act>,
    now_ns: Arc<AtomicU64>,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Embedded> + 'a>>;

/// Runs the embedder with `queue_depth_max` places for as long as `steps` take.
fn check(queue_depth_max: usize, steps: impl FnOnce(&Bench)) {
    check_with_donors(queue_depth_max, |bench, _| steps(bench));
}

/// The same for steps that register donors, on threads of their own: those block.
fn check_with_donors<F>(queue_depth_max: usize, steps: F)
where
    F: for<'scope> FnOnce(&Bench, &'scope Scope<'scope, '_>),
{
    let (begin, begun) = sync_channel(64);
    let (acts, act) = sync_channel(64);
    let held = Held {
        begun: begin,
        acts: act,
    };
    let now_ns = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now_ns);
    let clock_ns = move || clock.load(Ordering::SeqCst);
    let (embedder, worker) = Embedder::new(held, queue_depth_max, clock_ns);
    let bench = Bench {
        embedder: Arc::new(embedder),
        begun,
        acts,
        now_ns,
    };
    thread::scope(|scope| {
        scope.spawn(|| worker.run());
        // Also when a step panics: the threads would otherwise never end.
        let bench = bench;
        steps(&bench, scope);
    });
}

impl Bench {
    /// A look-up that has been put into the queue.
    fn ask(&self, numbers: Range<u32>, deadline_ns: u64) -> Answer<'_> {
        let mut answer: Answer<'_> =
            Box::pin(self.embedder.embed_query(texts(numbers), deadline_ns));
        assert_eq!(poll(&mut answer), Poll::Pending);
        answer
    }

    fn register<'scope>(
        &self,
        numbers: Range<u32>,
        scope: &'scope Scope<'scope, '_>,
    ) -> ScopedJoinHandle<'scope, Embedded> {
        let embedder = Arc::clone(&self.embedder);
        scope.spawn(move || embedder.embed_donor(texts(numbers)))
    }

    /// A look-up that is refused at once.
    fn refused(&self, deadline_ns: u64) -> EmbedRefusal {
        match poll(&mut pin!(
            self.embedder.embed_query(texts(0..1), deadline_ns)
        )) {
            Poll::Ready(answer) => answer.unwrap_err(),
            Poll::Pending => panic!("it waits"),
        }
    }

    fn next_batch(&self, expected: Range<u32>) {
        assert_eq!(self.begun.recv_timeout(PATIENCE).unwrap(), texts(expected));
    }

    fn act(&self, act: Act) {
        self.acts.send(act).unwrap();
    }
}

fn poll(answer: &mut (impl Future<Output = Embedded> + Unpin)) -> Poll<Embedded> {
    Pin::new(answer).poll(&mut Context::from_waker(Waker::noop()))
}

fn wait(answer: Answer<'_>) -> Embedded {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let in_time = async { tokio::time::timeout(PATIENCE, answer).await };
    runtime.unwrap().block_on(in_time).expect("an answer")
}

/// What never comes must not hold up the tests for ever.
const PATIENCE: Duration = Duration::from_secs(20);
const FAR: u64 = 1_000;

#[test]
fn what_waits_is_embedded_together_and_answered_in_order() {
    check(8, |bench| {
        let first = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        let second = bench.ask(1..3, FAR);
        let third = bench.ask(3..5, FAR);
        assert_eq!(bench.embedder.queued(), 2);
        bench.act(Act::Serve);
        bench.next_batch(1..5);
        bench.act(Act::Serve);
        assert_eq!(wait(third), Ok(vectors(3..5)));
        assert_eq!(wait(second), Ok(vectors(1..3)));
        assert_eq!(wait(first), Ok(vectors(0..1)));
        assert_eq!(bench.embedder.queued(), 0);
    });
}

#[test]
fn a_look_up_waits_for_one_segment_of_donors_at_most() {
    check_with_donors(8, |bench, scope| {
        let donor = bench.register(0..3, scope);
        bench.next_batch(0..1);
        let query = bench.ask(10..13, FAR);
        bench.act(Act::Serve);
        bench.next_batch(10..13);
        bench.act(Act::Serve);
        assert_eq!(wait(query), Ok(vectors(10..13)));
        for rest in [1..2, 2..3] {
            bench.next_batch(rest);
            bench.act(Act::Serve);
        }
        assert_eq!(donor.join().unwrap(), Ok(vectors(0..3)));
    });
}

#[test]
fn a_long_look_up_takes_several_batches() {
    check(8, |bench| {
        let long = bench.ask(0..10, FAR);
        bench.next_batch(0..4);
        let short = bench.ask(10..11, FAR);
        bench.act(Act::Serve);
        bench.next_batch(4..8);
        bench.act(Act::Serve);
        bench.next_batch(8..11);
        bench.act(Act::Serve);
        assert_eq!(wait(long), Ok(vectors(0..10)));
        assert_eq!(wait(short), Ok(vectors(10..11)));
    });
}

#[test]
fn what_is_late_or_no_longer_wanted_is_not_embedded() {
    check(8, |bench| {
        let long = bench.ask(0..20, 50);
        bench.next_batch(0..4);
        let late = bench.ask(30..31, 50);
        drop(bench.ask(40..41, FAR));
        let in_time = bench.ask(50..51, FAR);
        bench.now_ns.store(50, Ordering::SeqCst);
        bench.act(Act::Serve);
        bench.next_batch(50..51);
        assert_eq!(wait(long), Err(EmbedRefusal::Late));
        assert_eq!(wait(late), Err(EmbedRefusal::Late));
        assert_eq!(bench.refused(50), EmbedRefusal::Late);
        bench.act(Act::Serve);
        assert_eq!(wait(in_time), Ok(vectors(50..51)));
    });
}

#[test]
fn a_full_queue_refuses_at_once_and_the_unwanted_make_room() {
    check(2, |bench| {
        let working = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        let late = bench.ask(1..2, 50);
        let gone = bench.ask(2..3, FAR);
        assert_eq!(bench.refused(FAR), EmbedRefusal::Busy);
        bench.now_ns.store(50, Ordering::SeqCst);
        let third = bench.ask(3..4, FAR);
        assert_eq!(wait(late), Err(EmbedRefusal::Late));
        assert_eq!(bench.refused(FAR), EmbedRefusal::Busy);
        drop(gone);
        let fourth = bench.ask(4..5, FAR);
        assert_eq!(bench.refused(FAR), EmbedRefusal::Busy);
        bench.act(Act::Serve);
        bench.next_batch(3..5);
        bench.act(Act::Serve);
        assert_eq!(wait(working), Ok(vectors(0..1)));
        assert_eq!(wait(third), Ok(vectors(3..4)));
        assert_eq!(wait(fourth), Ok(vectors(4..5)));
    });
}

#[test]
fn look_ups_and_donors_have_a_queue_each() {
    check_with_donors(1, |bench, scope| {
        let working = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        let query = bench.ask(1..2, FAR);
        let donor = bench.register(2..3, scope);
        bench.act(Act::Serve);
        bench.next_batch(1..2);
        bench.act(Act::Serve);
        bench.next_batch(2..3);
        bench.act(Act::Serve);
        assert_eq!(donor.join().unwrap(), Ok(vectors(2..3)));
        assert_eq!(wait(working), Ok(vectors(0..1)));
        assert_eq!(wait(query), Ok(vectors(1..2)));
    });
}

#[test]
fn stopping_refuses_what_waits_and_answers_what_is_being_embedded() {
    // A look-up of five segments has a batch left when the first is done.
    for (segments, answer) in [(4, Ok(vectors(0..4))), (5, Err(EmbedRefusal::Stopped))] {
        check_with_donors(8, |bench, scope| {
            let working = bench.ask(0..segments, FAR);
            bench.next_batch(0..4);
            let query = bench.ask(20..21, FAR);
            let donor = bench.register(30..31, scope);
            while bench.embedder.queued() < 2 {
                thread::yield_now();
            }
            bench.embedder.stop();
            assert_eq!(wait(query), Err(EmbedRefusal::Stopped));
            assert_eq!(donor.join().unwrap(), Err(EmbedRefusal::Stopped));
            assert_eq!(bench.refused(FAR), EmbedRefusal::Stopped);
            bench.act(Act::Serve);
            assert_eq!(wait(working), answer);
        });
    }
}

#[test]
fn no_text_is_no_vector_and_needs_no_model() {
    check(1, |bench| {
        assert_eq!(bench.embedder.embed_donor(Vec::new()), Ok(Vec::new()));
    });
}

#[test]
fn what_is_not_a_vector_of_unit_length_is_refused() {
    let bad = [
        (Act::Fail, ModelFailure::Run),
        (Act::Answer(vec![]), ModelFailure::Count),
        (Act::Answer(vec![vec![1.0, 0.0]; 2]), ModelFailure::Count),
        (Act::Answer(vec![vec![1.0]]), ModelFailure::Dimensions),
        (Act::Answer(vec![vec![0.0, 0.0]]), ModelFailure::Length),
        (Act::Answer(vec![vec![1.0, 0.1]]), ModelFailure::Length),
        (Act::Answer(vec![vec![f32::NAN, 1.0]]), ModelFailure::Length),
        (
            Act::Answer(vec![vec![f32::INFINITY, 0.0]]),
            ModelFailure::Length,
        ),
    ];
    check(1, |bench| {
        for (act, failure) in bad {
            let answer = bench.ask(0..1, FAR);
            bench.next_batch(0..1);
            bench.act(act);
            assert_eq!(wait(answer), Err(failure.into()));
        }
        let answer = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        bench.act(Act::Serve);
        assert_eq!(wait(answer), Ok(vectors(0..1)), "it goes on");
    });
}

#[test]
fn a_text_that_the_model_fails_on_costs_no_other_its_answer() {
    check(8, |bench| {
        let working = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        let [first, poison, last] = [1..2, 2..4, 4..5].map(|numbers| bench.ask(numbers, FAR));
        bench.act(Act::Serve);
        bench.next_batch(1..5);
        bench.act(Act::Fail);
        bench.next_batch(1..2);
        bench.act(Act::Serve);
        bench.next_batch(2..4);
        bench.act(Act::Fail);
        bench.next_batch(4..5);
        bench.act(Act::Serve);
        assert_eq!(wait(working), Ok(vectors(0..1)));
        assert_eq!(wait(first), Ok(vectors(1..2)));
        assert_eq!(wait(poison), Err(ModelFailure::Run.into()));
        assert_eq!(wait(last), Ok(vectors(4..5)));
    });
}

#[test]
fn texts_are_not_shown() {
    check(8, |bench| {
        let working = bench.ask(0..1, FAR);
        bench.next_batch(0..1);
        let waiting = bench.ask(123_456..123_457, FAR);
        let shown = format!("{:?}", bench.embedder);
        assert!(shown.contains("queued: 1"), "{shown}");
        assert!(!shown.contains("123456"), "{shown}");
        drop((working, waiting));
    });
}
