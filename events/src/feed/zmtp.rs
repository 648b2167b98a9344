//! One ZMTP 3.0 connection to an engine's publisher or to its replay socket, and nothing more.
//!
//! Written here rather than taken from `zeromq` 0.7, which reconnects behind the caller's back
//! (whether two frames came over one connection decides what may be believed) and sets no limit to
//! a frame: nine bytes of a header make it reserve any size, and the process aborts.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire::PAYLOAD_BYTES_MAX;

/// The most frames of a message: an empty one, a topic, a number, a payload.
pub const MESSAGE_FRAMES_MAX: usize = 4;
/// How long it may take to be connected and greeted.
pub const CONNECT_MS_MAX: u64 = 5_000;
/// What the kernel may hold of frames that came and were not read yet. Where that is full the
/// engine's publisher queues, and then drops: a gap.
pub const RECEIVE_BYTES: usize = 4 << 20;
/// What a chunk of input has room for; frames are parts of it, and keep it.
const CHUNK_BYTES: usize = 64 << 10;
/// A chunk with less room is left: small reads may not cost a chunk each.
const ROOM_BYTES_MIN: usize = 4 << 10;
/// A host that is gone without a word is noticed after the first and three of the second.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_TRIES: u32 = 3;

const GREETING_BYTES: usize = 64;
const SIGNATURE: (u8, u8) = (0xff, 0x7f);
const VERSION: u8 = 3;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
const FLAG_COMMAND: u8 = 4;

/// Why there is no connection (any more).
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the peer ended the connection")]
    Closed,
    #[error("the peer did not answer within {CONNECT_MS_MAX} ms")]
    Slow,
    #[error("the peer does not speak ZMTP 3")]
    NotZmtp,
    #[error("the peer wants a security mechanism; only NULL is known")]
    Mechanism,
    #[error("the peer refused, or is no {wanted}")]
    WrongSocket { wanted: &'static str },
    #[error("the replay socket is another engine's: it is not asked any more")]
    OtherEngine,
    #[error("a frame has flags or a length that cannot be")]
    Malformed,
    #[error("a frame has {bytes} bytes, more than {PAYLOAD_BYTES_MAX}")]
    FrameTooLong { bytes: u64 },
    #[error("a message has more than {MESSAGE_FRAMES_MAX} frames")]
    TooManyFrames,
}

/// What is said first, which decides what the peer has to be.
#[derive(Clone, Copy, Debug)]
pub enum Hello {
    /// To a publisher: everything.
    Subscribe,
    /// To a replay socket: all batches from this one on.
    Ask { from: u64 },
}

/// A connection over which messages come.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    /// Of the message that is being received.
    frames: Vec<Bytes>,
}

impl Line {
    /// Connects to `host:port`, and says hello.
    ///
    /// # Errors
    /// [`LineError`] when nobody answers there, or not who should.
    pub async fn open(address: &str, hello: Hello) -> Result<Self, LineError> {
        let limit = Duration::from_millis(CONNECT_MS_MAX);
        let opened = tokio::time::timeout(limit, Self::shake_hands(address, hello)).await;
        opened.unwrap_or(Err(LineError::Slow))
    }

    /// The next message. Nothing is lost where this is dropped before it is done.
    ///
    /// # Errors
    /// [`LineError`] when the connection is over; it does not recover.
    pub async fn message(&mut self) -> Result<Vec<Bytes>, LineError> {
        loop {
            while let Some((flags, frame)) = take_frame(&mut self.input)? {
                if flags & FLAG_COMMAND != 0 {
                    self.answer(&frame);
                    continue;
                }
                if self.frames.len() == MESSAGE_FRAMES_MAX {
                    return Err(LineError::TooManyFrames);
                }
                self.frames.push(frame);
                if flags & FLAG_MORE == 0 {
                    return Ok(std::mem::take(&mut self.frames));
                }
            }
            self.exchange().await?;
        }
    }

    async fn shake_hands(address: &str, hello: Hello) -> Result<Self, LineError> {
        let stream = TcpStream::connect(address).await?;
        tune(&stream)?;
        let mut line = Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            frames: Vec::new(),
        };
        line.output.put_slice(&greeting());
        while line.input.len() < GREETING_BYTES {
            line.exchange().await?;
        }
        check_greeting(&line.input.split_to(GREETING_BYTES))?;
        // An XPUB is no engine but a proxy: when the engine behind it starts anew the connection
        // stays, and nothing says that what was heard before is void.
        let (kind, wanted) = match hello {
            Hello::Subscribe => ("SUB", "PUB"),
            Hello::Ask { .. } => ("DEALER", "ROUTER"),
        };
        put_frame(&mut line.output, FLAG_COMMAND, &ready(kind));
        let command = loop {
            match take_frame(&mut line.input)? {
                Some((flags, frame)) if flags & FLAG_COMMAND != 0 => break frame,
                Some(_) => return Err(LineError::Malformed),
                None => line.exchange().await?,
            }
        };
        if !is_ready_of(&command, wanted) {
            return Err(LineError::WrongSocket { wanted });
        }
        match hello {
            Hello::Subscribe => put_frame(&mut line.output, 0, &[1]),
            Hello::Ask { from } => {
                // Without the empty frame there is no answer at all.
                put_frame(&mut line.output, FLAG_MORE, &[]);
                put_frame(&mut line.output, 0, &from.to_be_bytes());
            }
        }
        line.flush().await?;
        Ok(line)
    }

    /// Writes what there is to write and then reads what there is to read, at least one byte.
    async fn exchange(&mut self) -> Result<(), LineError> {
        self.flush().await?;
        if self.input.capacity() - self.input.len() < ROOM_BYTES_MIN {
            self.input.reserve(CHUNK_BYTES);
        }
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(LineError::Closed),
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), LineError> {
        while self.output.has_remaining() {
            self.stream.write_buf(&mut self.output).await?;
        }
        Ok(())
    }

    /// Answers a heartbeat; no other command asks for anything.
    fn answer(&mut self, command: &[u8]) {
        // A ping is its name, two bytes of time to live, and a context that comes back.
        if let Some(context) = command
            .strip_prefix(b"\x04PING")
            .and_then(|rest| rest.get(2..))
            && self.output.is_empty()
        {
            let mut pong = b"\x04PONG".to_vec();
            pong.extend_from_slice(&context[..context.len().min(16)]);
            put_frame(&mut self.output, FLAG_COMMAND, &pong);
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_TRIES),
    )
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9]) = SIGNATURE;
    greeting[10] = VERSION;
    greeting[12..32].copy_from_slice(MECHANISM);
    greeting
}

fn check_greeting(greeting: &[u8]) -> Result<(), LineError> {
    if (greeting[0], greeting[9]) != SIGNATURE || greeting[10] < VERSION {
        return Err(LineError::NotZmtp);
    }
    match greeting[12..32] == *MECHANISM {
        true => Ok(()),
        false => Err(LineError::Mechanism),
    }
}

fn ready(kind: &str) -> Vec<u8> {
    let mut command = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", kind), ("Identity", "")] {
        command.extend(u8::try_from(name.len()).ok());
        command.extend_from_slice(name.as_bytes());
        command.extend((u32::try_from(value.len()).unwrap_or(0)).to_be_bytes());
        command.extend_from_slice(value.as_bytes());
    }
    command
}

/// Whether a command says that the peer is ready and a socket of a kind.
fn is_ready_of(command: &[u8], kind: &str) -> bool {
    let Some(mut properties) = command.strip_prefix(b"\x05READY") else {
        return false;
    };
    while let Some((name, value)) = take_property(&mut properties) {
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return value == kind.as_bytes();
        }
    }
    false
}

fn take_property<'a>(properties: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&length, rest) = properties.split_first()?;
    let (name, rest) = rest.split_at_checked(length.into())?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (value, rest) = rest.split_at_checked(length)?;
    *properties = rest;
    Some((name, value))
}

fn put_frame(output: &mut BytesMut, flags: u8, body: &[u8]) {
    let length = u8::try_from(body.len()).expect("what is said here is short");
    output.put_slice(&[flags, length]);
    output.put_slice(body);
}

/// A frame and its flags, once it is there as a whole. Room is made for what came, not for what is
/// announced.
fn take_frame(input: &mut BytesMut) -> Result<Option<(u8, Bytes)>, LineError> {
    let Some(&flags) = input.first() else {
        return Ok(None);
    };
    if flags & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 {
        return Err(LineError::Malformed);
    }
    let (header, length) = if flags & FLAG_LONG == 0 {
        let Some(&length) = input.get(1) else {
            return Ok(None);
        };
        (2, u64::from(length))
    } else {
        let Some(length) = input.get(1..).and_then(|rest| rest.first_chunk::<8>()) else {
            return Ok(None);
        };
        (9, u64::from_be_bytes(*length))
    };
    let Some(body) = usize::try_from(length)
        .ok()
        .filter(|&length| length <= PAYLOAD_BYTES_MAX)
    else {
        return Err(LineError::FrameTooLong { bytes: length });
    };
    if input.len() < header + body {
        return Ok(None);
    }
    input.advance(header);
    Ok(Some((flags, input.split_to(body).freeze())))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn check(bytes: &[u8], want: &str) {
        // All at once, and byte by byte, it is the same.
        for step in [bytes.len().max(1), 1] {
            let mut input = BytesMut::new();
            let mut told = String::new();
            for some in bytes.chunks(step) {
                input.extend_from_slice(some);
                loop {
                    match take_frame(&mut input) {
                        Ok(Some((flags, body))) => told += &format!("{flags}:{} ", body.len()),
                        Ok(None) => break,
                        Err(error) => {
                            told += &error.to_string();
                            input.clear();
                            break;
                        }
                    }
                }
                if told.contains("frame has") {
                    break;
                }
            }
            assert_eq!(told.trim(), want);
        }
    }

    #[test]
    fn frames_are_taken_once_they_are_whole() {
        check(&[], "");
        check(&[0], "");
        check(&[1, 0, 0, 2, 7, 7], "1:0 0:2");
        check(&[1, 3, 7, 7], "");
        let long = [&[2][..], &300_u64.to_be_bytes(), &[7; 300], &[4, 1, 7]].concat();
        check(&long, "2:300 4:1");
        check(&[8, 0], &LineError::Malformed.to_string());
        let bytes = PAYLOAD_BYTES_MAX as u64 + 1;
        let endless = [&[2][..], &bytes.to_be_bytes()].concat();
        check(&endless, &LineError::FrameTooLong { bytes }.to_string());
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_were_put_in(
            bodies in vec((0..8_u8, vec(any::<u8>(), 0..600)), 0..10),
            cut in 1..700_usize,
        ) {
            let mut bytes = Vec::new();
            for (flags, body) in &bodies {
                let length = body.len() as u64;
                match u8::try_from(length) {
                    Ok(short) if flags & FLAG_LONG == 0 => bytes.extend([*flags, short]),
                    _ => {
                        bytes.push(flags | FLAG_LONG);
                        bytes.extend(length.to_be_bytes());
                    }
                }
                bytes.extend(body);
            }
            let mut input = BytesMut::new();
            let mut frames = Vec::new();
            for some in bytes.chunks(cut) {
                input.extend_from_slice(some);
                while let Some((_, frame)) = take_frame(&mut input).unwrap() {
                    frames.push(frame.to_vec());
                }
            }
            prop_assert!(frames.iter().eq(bodies.iter().map(|(_, body)| body)));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..80)) {
            let mut input = BytesMut::from(bytes.as_slice());
            while let Ok(Some((_, frame))) = take_frame(&mut input) {
                is_ready_of(&frame, "PUB");
            }
            is_ready_of(&[b"\x05READY", bytes.as_slice()].concat(), "PUB");
        }
    }

    #[test]
    fn only_the_right_kind_of_socket_is_ready() {
        assert!(is_ready_of(&ready("PUB"), "PUB"));
        assert!(!is_ready_of(&ready("XPUB"), "PUB"));
        assert!(!is_ready_of(b"\x05ERROR\x04nope", "PUB"));
        for length in 0..ready("PUB").len() {
            is_ready_of(&ready("PUB")[..length], "PUB");
        }
        check_greeting(&greeting()).unwrap();
        let mut secure = greeting();
        secure[12] = b'P';
        assert!(matches!(check_greeting(&secure), Err(LineError::Mechanism)));
        let web = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8";
        assert!(matches!(check_greeting(web), Err(LineError::NotZmtp)));
    }
}
