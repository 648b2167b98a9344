//! What a feed does about its connections, and what it tells of it.

use std::sync::Arc;
use std::time::Duration;

use kvatlas_events::feed::{self, Feed, News, Progress, Shared, Socket, State};
use kvatlas_events::view::{Change, Namespace, SourceId, View};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::engine::{Engine, Reply};
use crate::payloads::{batch, fixture};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq)]
enum Told {
    Follows(u32),
    Stored(usize),
    Cleared,
    State(State, u64),
    Failed(String),
    Forgets,
}

/// A feed that runs, and what it told so far.
struct Running {
    told: Arc<Mutex<Vec<Told>>>,
    view: Arc<View>,
    sources: Arc<Mutex<Vec<SourceId>>>,
    progress: watch::Receiver<Progress>,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<()>,
}

impl Running {
    fn start(source: &str) -> Self {
        let told = Arc::<Mutex<Vec<Told>>>::default();
        let sources = Arc::<Mutex<Vec<SourceId>>>::default();
        let shared = Shared::default();
        let view = Arc::clone(&shared.view);
        let tell = {
            let (told, sources) = (Arc::clone(&told), Arc::clone(&sources));
            move |news: News<'_>| {
                told.lock().push(note(news, &sources));
                feed::Reply::Heard
            }
        };
        let feed = Feed::new(source.parse().unwrap(), Namespace(1), None, shared, tell);
        let progress = feed.progress();
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(feed.run(async {
            stopped.await.unwrap();
        }));
        Self {
            told,
            view,
            sources,
            progress,
            stop,
            tasks,
        }
    }

    fn of(engine: &Engine, has_replay: bool) -> Self {
        let (events, replay) = engine.ports;
        let mut source = format!("tcp://127.0.0.1:{events}");
        if has_replay {
            source += &format!(",replay=tcp://127.0.0.1:{replay}");
        }
        Self::start(&source)
    }

    async fn wait(&mut self, is_there: impl FnMut(&Progress) -> bool) -> Progress {
        let there = tokio::time::timeout(PATIENCE, self.progress.wait_for(is_there)).await;
        *there.expect("in time").unwrap()
    }

    async fn wait_exact(&mut self, last: u64, connections: u64) -> Progress {
        self.wait(|progress| {
            progress.state == State::Exact
                && progress.met.connections == connections
                && progress.applied.is_some_and(|applied| applied.1 == last)
        })
        .await
    }

    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock())
    }
}

fn note(news: News<'_>, sources: &Mutex<Vec<SourceId>>) -> Told {
    match news {
        News::Follows { rank, source } => {
            sources.lock().push(source);
            Told::Follows(rank)
        }
        News::Changes { changes, .. } => match changes {
            [Change::Cleared] => Told::Cleared,
            stored => Told::Stored(stored.len()),
        },
        News::State { state, epoch } => Told::State(state, epoch),
        News::Failed { socket, error } => {
            assert_eq!(socket, Socket::Events);
            Told::Failed(error.to_string())
        }
        News::Forgets { .. } => Told::Forgets,
    }
}

fn min() -> Vec<u8> {
    fixture("vllm_map_stored_min")
}

fn child() -> Vec<u8> {
    fixture("vllm_map_stored_child")
}

#[tokio::test]
async fn with_a_replay_nothing_is_given_up_for_a_cut() {
    let mut engine = Engine::start(100, Reply::FourFrames).await;
    let mut feed = Running::of(&engine, true);
    engine.publish(&min()).await;
    feed.wait_exact(0, 1).await;
    assert_eq!(feed.told().last(), Some(&Told::State(State::Exact, 0)));

    let mut engine = engine.cut().await;
    engine.publish_unheard(&child());
    engine.publish(&batch(&[])).await;
    let progress = feed.wait_exact(2, 2).await;
    assert_eq!((progress.epoch, progress.applied), (0, Some((0, 2))));
    let told = feed.told();
    let connected = |told: &Told| !matches!(told, Told::Failed(_));
    let told: Vec<_> = told.into_iter().filter(connected).collect();
    assert_eq!(
        told,
        [
            Told::State(State::Stale, 0),
            Told::State(State::Degraded, 0),
            Told::Stored(1),
            Told::State(State::Exact, 0),
        ]
    );
}

#[tokio::test]
async fn without_one_everything_is() {
    let mut engine = Engine::start(100, Reply::FourFrames).await;
    let mut feed = Running::of(&engine, false);
    engine.publish(&min()).await;
    feed.wait_exact(0, 1).await;
    feed.told();

    let mut engine = engine.cut().await;
    engine.publish(&child()).await;
    let progress = feed.wait_exact(1, 2).await;
    assert_eq!((progress.epoch, progress.applied), (1, Some((1, 1))));
    let told = feed.told();
    let connected = |told: &Told| !matches!(told, Told::Failed(_));
    let told: Vec<_> = told.into_iter().filter(connected).collect();
    assert_eq!(
        told,
        [
            Told::State(State::Stale, 1),
            Told::Cleared,
            Told::State(State::Degraded, 1),
            Told::State(State::Exact, 1),
        ]
    );
}

#[tokio::test]
async fn a_feed_that_stops_leaves_nothing_in_the_view() {
    let mut engine = Engine::start(100, Reply::FourFrames).await;
    let mut feed = Running::of(&engine, false);
    engine.publish(&fixture("vllm_map_dp3")).await;
    engine.publish(&min()).await;
    feed.wait_exact(1, 1).await;
    let sources = feed.sources.lock().clone();
    // Rank 0 was followed before any batch came, and given up when rank 3 published.
    let blocks: Vec<_> = sources
        .iter()
        .map(|&source| feed.view.blocks(source))
        .collect();
    assert_eq!(blocks, [0, 2, 2]);
    feed.stop.send(()).unwrap();
    while let Some(done) = feed.tasks.join_next().await {
        done.unwrap();
    }
    assert!(sources.iter().all(|&source| feed.view.blocks(source) == 0));
    assert_eq!(
        *feed.told.lock(),
        [
            Told::Follows(0),
            Told::State(State::Degraded, 0),
            Told::Cleared,
            Told::Forgets,
            Told::Follows(3),
            Told::Stored(2),
            Told::State(State::Exact, 0),
            Told::Follows(0),
            Told::Stored(2),
            Told::State(State::Stale, 0),
            Told::Cleared,
            Told::Forgets,
            Told::Cleared,
            Told::Forgets,
        ]
    );
}

/// Who answers with these bytes is tried again, and this is told.
async fn check_failure(answer: &[u8], want: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut feed = Running::start(&format!("tcp://127.0.0.1:{port}"));
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(answer).await.unwrap();
        let mut hello = [0; 64];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!((hello[0], hello[9], hello[10]), (0xff, 0x7f, 3));
        let failures = feed.progress.borrow_and_update().met.failures;
        feed.wait(|progress| progress.met.failures > failures).await;
        let is_meant = |told: &Told| matches!(told, Told::Failed(told) if told.contains(want));
        let told = feed.told();
        assert!(told.iter().any(is_meant), "{want}, not {told:?}");
    }
}

/// What a socket of this kind says first.
fn ready(kind: &str) -> Vec<u8> {
    let mut hello = [0; 64];
    hello[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
    hello[12..16].copy_from_slice(b"NULL");
    let length = u8::try_from(kind.len()).unwrap();
    let name = b"\x05READY\x0bSocket-Type\0\0\0";
    let command = [name, &[length][..], kind.as_bytes()].concat();
    let frame = [4, u8::try_from(command.len()).unwrap()];
    [&hello[..], &frame, &command].concat()
}

#[tokio::test]
async fn a_heartbeat_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _feed = Running::start(&format!("tcp://127.0.0.1:{port}"));
    let (mut stream, _) = listener.accept().await.unwrap();
    let ping = b"\x04\x09\x04PING\x00\x0aab";
    let all = [&ready("PUB")[..], ping].concat();
    stream.write_all(&all).await.unwrap();
    let mut heard = Vec::new();
    let answer = async {
        while !heard.ends_with(b"\x04\x07\x04PONGab") {
            assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
        }
    };
    tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("in time");
}

#[tokio::test(start_paused = true)]
async fn where_nobody_is_pauses_grow() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut feed = Running::start(&format!("tcp://127.0.0.1:{port}"));
    let began = tokio::time::Instant::now();
    while feed.progress.borrow_and_update().met.failures < 40 {
        feed.progress.changed().await.unwrap();
    }
    assert!(began.elapsed() > Duration::from_secs(60));
}

#[tokio::test]
async fn who_is_no_engine_is_told() {
    check_failure(&[b'H'; 64], "does not speak ZMTP").await;
    check_failure(&ready("ROUTER"), "is no PUB").await;
    // A proxy: a restart behind it would not be seen.
    check_failure(&ready("XPUB"), "is no PUB").await;
    let header = [&[2][..], &(1_u64 << 62).to_be_bytes()].concat();
    check_failure(&[ready("PUB"), header].concat(), "a frame has").await;
    let frames = [1, 0].repeat(5);
    check_failure(&[ready("PUB"), frames].concat(), "frames").await;
}
