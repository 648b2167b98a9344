//! The client's side of a call: requests encoded once, answers decoded to what is checked.

use std::{marker::PhantomData, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{http::uri::PathAndQuery, tokio_stream::Stream},
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::error::LoadtestError;

/// Window of a connection, as the server's: a small one stalls, an adaptive one trips the flood
/// guard.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Window of a stream, as the server's.
pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Answers are never near this.
const ANSWER_MAX_BYTES: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to `host:port`, once or several times.
///
/// # Errors
/// When the address is none, or nobody answers there.
pub async fn connect(address: &str, connections: usize) -> Result<Vec<Channel>, LoadtestError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES);
    let mut channels = Vec::with_capacity(connections);
    for _ in 0..connections {
        channels.push(endpoint.connect().await?);
    }
    Ok(channels)
}

/// What calls show to the server: a bearer's token, or nothing.
#[derive(Debug, Clone, Default)]
pub struct Shown(Option<MetadataValue<Ascii>>);

impl Shown {
    /// The token that a server knows.
    ///
    /// # Errors
    /// When it has characters that no token has.
    pub fn token(token: &str) -> Result<Self, LoadtestError> {
        let value = format!("Bearer {token}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| LoadtestError::Argument {
            argument: "token",
            reason: "holds characters that none has".to_owned(),
        })?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }

    /// The message with it.
    #[must_use]
    pub fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }
}

/// A method, and a way to call it without encoding the request anew.
///
/// The measured calls all go this way, the echo's too, so that what the client costs is the same
/// for all of them.
#[derive(Debug)]
pub struct Method<Answer> {
    grpc: Grpc<Channel>,
    path: PathAndQuery,
    shown: Shown,
    answer: PhantomData<fn() -> Answer>,
}

impl<Answer> Clone for Method<Answer> {
    fn clone(&self) -> Self {
        Self {
            grpc: self.grpc.clone(),
            path: self.path.clone(),
            shown: self.shown.clone(),
            answer: PhantomData,
        }
    }
}

impl<Answer: Message + Default + 'static> Method<Answer> {
    /// The method at `path`, such as `/kvatlas.v1.Routing/GetManifest`.
    #[must_use]
    pub fn new(channel: Channel, path: &'static str) -> Self {
        Self {
            grpc: Grpc::new(channel).max_decoding_message_size(ANSWER_MAX_BYTES),
            path: PathAndQuery::from_static(path),
            shown: Shown::default(),
            answer: PhantomData,
        }
    }

    /// The same, with what its calls show.
    #[must_use]
    pub fn showing(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// One unary call.
    ///
    /// # Errors
    /// The status the server answered, or UNAVAILABLE when the connection is gone.
    pub async fn call(&mut self, request: Bytes) -> Result<Answer, Status> {
        self.ready().await?;
        let answer = self
            .grpc
            .unary(self.shown.with(request), self.path.clone(), RawCodec::new())
            .await?;
        Ok(answer.into_inner())
    }

    /// One bidirectional stream.
    ///
    /// # Errors
    /// As [`Method::call`].
    pub async fn stream(
        &mut self,
        requests: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Answer>, Status> {
        self.ready().await?;
        let answers = self
            .grpc
            .streaming(
                self.shown.with(requests),
                self.path.clone(),
                RawCodec::new(),
            )
            .await?;
        Ok(answers.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc
            .ready()
            .await
            .map_err(|source| Status::unavailable(source.to_string()))
    }
}

/// `{1: correlation_id, 2: request}`, which is what every request of a stream looks like.
#[must_use]
pub fn correlated(correlation_id: u64, request: &[u8]) -> Bytes {
    const HEADER_MAX_BYTES: usize = 22;
    let mut message = BytesMut::with_capacity(request.len() + HEADER_MAX_BYTES);
    prost::encoding::uint64::encode(1, &correlation_id, &mut message);
    prost::encoding::encode_key(2, prost::encoding::WireType::LengthDelimited, &mut message);
    prost::encoding::encode_varint(request.len() as u64, &mut message);
    message.put_slice(request);
    message.freeze()
}

/// Sends bytes as they are, decodes answers with prost.
#[derive(Debug)]
struct RawCodec<Answer>(PhantomData<fn() -> Answer>);

impl<Answer> RawCodec<Answer> {
    const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<Answer: Message + Default + 'static> Codec for RawCodec<Answer> {
    type Encode = Bytes;
    type Decode = Answer;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<Answer> Encoder for RawCodec<Answer> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, request: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(request);
        Ok(())
    }
}

impl<Answer: Message + Default> Decoder for RawCodec<Answer> {
    type Item = Answer;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Answer>, Status> {
        Answer::decode(from)
            .map(Some)
            .map_err(|source| Status::internal(source.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_proto::v1::{GetManifestRequest, GetManifestsRequest};

    use super::*;

    #[test]
    fn a_correlated_request_is_the_generated_message() {
        for correlation_id in [1, 127, 128, u64::MAX] {
            let request = GetManifestRequest {
                prefix_hash: "p".repeat(200),
                k: 16,
                ..GetManifestRequest::default()
            };
            let ours = correlated(correlation_id, &request.encode_to_vec());
            let generated = GetManifestsRequest {
                correlation_id,
                request: Some(request),
            };
            assert_eq!(ours, generated.encode_to_vec());
        }
    }
}
