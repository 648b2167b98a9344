//! The ceiling: a unary call that carries an empty message and does nothing.

use std::{convert::Infallible, net::SocketAddr};

use tonic::{
    Request, Response, Status,
    body::Body as GrpcBody,
    codegen::{Body, BoxFuture, Context, Poll, Service, StdError, http},
    server::{NamedService, UnaryService},
    transport::{Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use crate::{
    child::Ready,
    error::LoadtestError,
    wire::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES},
};

/// The path of the one method.
pub const PATH: &str = "/kvatlas.loadtest.Echo/Echo";
/// One worker beats two on two cores, so the ceiling has one as the service has.
const WORKERS: usize = 1;

/// Nothing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Serves the echo on a free port until the process ends; says where on standard output.
///
/// # Errors
/// When no socket can be opened.
pub fn serve() -> Result<(), LoadtestError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = TcpIncoming::bind(loopback)?.with_nodelay(Some(true));
        Ready::at(incoming.local_addr()?).say()?;
        Server::builder()
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .add_service(Echo)
            .serve_with_incoming(incoming)
            .await?;
        Ok(())
    })
}

#[derive(Debug, Clone, Copy)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "kvatlas.loadtest.Echo";
}

/// What the generated server of a one-method service looks like.
impl<B> Service<http::Request<B>> for Echo
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<GrpcBody>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<Empty, Empty>::default();
            Ok(tonic::server::Grpc::new(codec).unary(Answer, request).await)
        })
    }
}

struct Answer;

impl UnaryService<Empty> for Answer {
    type Response = Empty;
    type Future = std::future::Ready<Result<Response<Empty>, Status>>;

    fn call(&mut self, request: Request<Empty>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_inner())))
    }
}
