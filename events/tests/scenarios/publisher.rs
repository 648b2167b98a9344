//! A publisher as engines have one: ZMTP 3.0 over TCP, its socket a PUB, to whoever subscribes.
//!
//! A PUB of `zeromq` says nothing of who subscribed, and a test must not publish before.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Messages that wait for one subscriber.
const QUEUE_MAX: usize = 64;
const COMMAND: u8 = 4;

pub(crate) struct Publisher {
    pub(crate) port: u16,
    subscribers: Arc<Subscribers>,
    accepting: JoinSet<()>,
}

#[derive(Default)]
struct Subscribers {
    queues: Mutex<Vec<mpsc::Sender<Bytes>>>,
    one_more: Notify,
}

impl Publisher {
    /// Port 0 picks one; that of a publisher that was closed may be free only a moment later.
    pub(crate) async fn bind(port: u16) -> Self {
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", port)).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let port = listener.local_addr().unwrap().port();
        let subscribers = Arc::<Subscribers>::default();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&subscribers)));
        Self {
            port,
            subscribers,
            accepting,
        }
    }

    /// Sends to everybody who subscribed, and waits for somebody to.
    pub(crate) async fn send(&self, frames: &[&[u8]]) {
        let message = message(frames);
        loop {
            let is_one_more = self.subscribers.one_more.notified();
            let queues = self.subscribers.queues.lock().clone();
            let mut is_sent = false;
            for queue in queues {
                is_sent |= queue.send(message.clone()).await.is_ok();
            }
            if is_sent {
                return;
            }
            is_one_more.await;
        }
    }

    /// Cuts everybody off.
    pub(crate) async fn close(&mut self) {
        self.accepting.shutdown().await;
    }
}

async fn accept(listener: TcpListener, subscribers: Arc<Subscribers>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&subscribers)));
    }
}

/// Serves one subscriber until it is gone.
async fn serve(mut stream: TcpStream, subscribers: Arc<Subscribers>) {
    if greet(&mut stream).await.is_err() {
        return;
    }
    let (queue, mut messages) = mpsc::channel(QUEUE_MAX);
    subscribers.queues.lock().push(queue);
    subscribers.one_more.notify_waiters();
    let mut beyond = [0; 64];
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return };
                if stream.write_all(&message).await.is_err() {
                    return;
                }
            }
            read = stream.read(&mut beyond) => {
                if !read.is_ok_and(|bytes| bytes > 0) {
                    return;
                }
            }
        }
    }
}

/// Until the other side has subscribed to everything.
async fn greet(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut hello = vec![0; 64];
    (hello[0], hello[9], hello[10]) = (0xff, 0x7f, 3);
    hello[12..16].copy_from_slice(b"NULL");
    hello.extend(frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"));
    stream.write_all(&hello).await?;
    stream.read_exact(&mut [0; 64]).await?;
    loop {
        let mut header = [0; 2];
        stream.read_exact(&mut header).await?;
        let mut body = vec![0; header[1].into()];
        stream.read_exact(&mut body).await?;
        if (header[0], body.as_slice()) == (0, &[1]) {
            return Ok(());
        }
    }
}

fn message(frames: &[&[u8]]) -> Bytes {
    let last = frames.len() - 1;
    let parts = frames.iter().enumerate();
    let parts: Vec<Bytes> = parts
        .map(|(at, body)| frame(u8::from(at < last), body))
        .collect();
    parts.concat().into()
}

fn frame(flags: u8, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    match u8::try_from(body.len()) {
        Ok(short) => out.put_slice(&[flags, short]),
        Err(_) => {
            out.put_u8(flags | 2);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
    out.freeze()
}
