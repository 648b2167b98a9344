//! An engine as it looks from outside: a publisher and a replay socket that can die and come back
//! at the same place, and an engine's memory of what it published.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::publisher::Publisher;

const HOST: &str = "tcp://127.0.0.1";
const PATIENCE: Duration = Duration::from_secs(30);
const TOPIC: &[u8] = b"kv-events";

/// Whether the replay socket sends the topic along.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    ThreeFrames,
    FourFrames,
}

pub(crate) struct Engine {
    publisher: Publisher,
    kept: usize,
    reply: Reply,
    published: Arc<Mutex<Published>>,
    replays: JoinSet<()>,
    pub(crate) ports: (u16, u16),
}

#[derive(Default)]
struct Published {
    next: u64,
    kept: VecDeque<(u64, Vec<u8>)>,
}

impl Engine {
    pub(crate) async fn start(kept: usize, reply: Reply) -> Self {
        Self::start_at((0, 0), kept, reply, Arc::default()).await
    }

    async fn start_at(
        ports: (u16, u16),
        kept: usize,
        reply: Reply,
        published: Arc<Mutex<Published>>,
    ) -> Self {
        let publisher = Publisher::bind(ports.0).await;
        let events = publisher.port;
        let mut router = RouterSocket::new();
        let replay = bind(&mut router, ports.1).await;
        let mut replays = JoinSet::new();
        replays.spawn(serve(router, Arc::clone(&published), reply));
        Self {
            publisher,
            kept,
            reply,
            published,
            replays,
            ports: (events, replay),
        }
    }

    /// Another process at the same place, which knows nothing of this one.
    pub(crate) async fn restart(self) -> Self {
        self.reopen(Arc::default()).await
    }

    /// The same process after everybody was cut off.
    pub(crate) async fn cut(self) -> Self {
        let published = Arc::clone(&self.published);
        self.reopen(published).await
    }

    async fn reopen(mut self, published: Arc<Mutex<Published>>) -> Self {
        self.replays.shutdown().await;
        self.publisher.close().await;
        Self::start_at(self.ports, self.kept, self.reply, published).await
    }

    /// Publishes to whoever subscribed, and waits for somebody to.
    pub(crate) async fn publish(&mut self, payload: &[u8]) {
        let sequence = self.keep(payload);
        let frames = [TOPIC, &sequence.to_be_bytes(), payload];
        let sent = tokio::time::timeout(PATIENCE, self.publisher.send(&frames));
        sent.await.expect("somebody subscribes");
    }

    /// Publishes, and the message is lost on its way.
    pub(crate) fn publish_unheard(&mut self, payload: &[u8]) {
        self.keep(payload);
    }

    pub(crate) fn latest(&self) -> Option<u64> {
        self.published.lock().next.checked_sub(1)
    }

    fn keep(&self, payload: &[u8]) -> u64 {
        let mut published = self.published.lock();
        let sequence = published.next;
        published.next += 1;
        published.kept.push_back((sequence, payload.to_vec()));
        while published.kept.len() > self.kept {
            published.kept.pop_front();
        }
        sequence
    }
}

/// The port of one that died may be free only a moment later.
async fn bind(socket: &mut RouterSocket, port: u16) -> u16 {
    let address = format!("{HOST}:{port}");
    for _ in 0..100_000 {
        match socket.bind(&address).await {
            Ok(endpoint) => {
                let endpoint = endpoint.to_string();
                return endpoint.rsplit(':').next().unwrap().parse().unwrap();
            }
            Err(_) => tokio::task::yield_now().await,
        }
    }
    panic!("the port is not free again");
}

/// Answers `[identity, "", from]` with all that is kept from there on, and with the end.
async fn serve(mut router: RouterSocket, published: Arc<Mutex<Published>>, reply: Reply) {
    while let Ok(asked) = router.recv().await {
        let asked = asked.into_vec();
        let [identity, empty, from] = asked.as_slice() else {
            continue;
        };
        if !empty.is_empty() {
            continue;
        }
        let from = u64::from_be_bytes(from.as_ref().try_into().unwrap());
        let kept: Vec<_> = published.lock().kept.iter().cloned().collect();
        let batches = kept.into_iter().filter(|(sequence, _)| *sequence >= from);
        for (sequence, payload) in batches.chain([(u64::MAX, Vec::new())]) {
            let sequence = sequence.to_be_bytes();
            let mut frames: Vec<&[u8]> = vec![identity, b"", &sequence, &payload];
            match reply {
                Reply::ThreeFrames => {}
                Reply::FourFrames if payload.is_empty() => frames.insert(2, b""),
                Reply::FourFrames => frames.insert(2, TOPIC),
            }
            if router.send(message(&frames)).await.is_err() {
                break;
            }
        }
    }
}

fn message(frames: &[&[u8]]) -> ZmqMessage {
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| bytes::Bytes::copy_from_slice(frame))
        .collect();
    ZmqMessage::try_from(frames).unwrap()
}
