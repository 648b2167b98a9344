//! A caller whose host vanished: its connection stays open and nothing answers on it any more.

use bytes::Bytes;
use kvatlas_proto::v1::{self, SourceState};
use prost::Message;
use tokio::net::TcpStream;

use crate::{
    common::{self, within},
    payloads::{batch, stored},
};

/// Long enough for a busy machine to answer in, and for nothing else.
const PING_MS: u64 = 1_000;

#[tokio::test]
async fn a_stream_of_events_ends_when_its_caller_answers_no_pings() {
    let server = common::start_with(|args| args.events.ping_ms = Some(PING_MS));
    let address = server.server.grpc_addresses()[0].to_string();
    let socket = TcpStream::connect(&address).await.unwrap();
    let (sender, connection) = h2::client::handshake(socket).await.unwrap();
    let mut connection = Box::pin(connection);
    let answer = tokio::select! {
        answer = within(published(sender, &address)) => answer,
        ended = &mut connection => panic!("{ended:?}"),
    };
    assert_eq!(answer.0.source_state(), SourceState::Exact);

    // From here on nobody reads what comes over it, and it is open all the same.
    let admin = server.clients.admin.clone();
    common::until(|| {
        let mut admin = admin.clone();
        async move {
            let listed = admin.list_event_sources(v1::ListEventSourcesRequest {});
            // On a busy machine this connection may be found silent too.
            let sources = listed.await.map(|listed| listed.into_inner().sources);
            sources.is_ok_and(|sources| sources[0].state() == SourceState::Stale)
        }
    })
    .await;
    drop((answer, connection));
}

type Stream = (h2::SendStream<Bytes>, h2::RecvStream);

/// The first answer of a stream of events, and the stream.
async fn published(
    sender: h2::client::SendRequest<Bytes>,
    address: &str,
) -> (v1::PublishResponse, Stream) {
    let mut sender = sender.ready().await.unwrap();
    let request = http::Request::post(format!("http://{address}/kvatlas.v1.Events/Publish"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut sending) = sender.send_request(request, false).unwrap();
    let batch = v1::PublishRequest {
        owner: common::owner("vanishing"),
        payload: batch(&[stored(&[1], None, 0)]).into(),
        namespace: common::selector(common::namespace()),
        ..v1::PublishRequest::default()
    };
    let message = batch.encode_to_vec();
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&message);
    sending.send_data(frame.into(), false).unwrap();
    let mut receiving = response.await.unwrap().into_body();
    let answer = receiving.data().await;
    // One byte of flags and four of length come before a message.
    let answer = v1::PublishResponse::decode(&answer.unwrap().unwrap()[5..]).unwrap();
    (answer, (sending, receiving))
}
