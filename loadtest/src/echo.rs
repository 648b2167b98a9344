//! The ceiling: unary calls that carry an empty message, or bytes, and do nothing.

use std::net::SocketAddr;

use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    child::Ready,
    error::LoadtestError,
    wire::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES},
};

/// The call that carries nothing.
pub const PATH: &str = "/kvatlas.loadtest.Echo/Echo";
/// The one that gives back what it carries, and the one that does not.
pub const RETURN_PATH: &str = "/kvatlas.loadtest.Echo/Return";
pub const TAKE_PATH: &str = "/kvatlas.loadtest.Echo/Take";
/// One worker beats two on two cores, so the ceiling has one as the service has.
const WORKERS: usize = 1;

#[expect(
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    clippy::too_many_lines,
    reason = "generated"
)]
mod generated {
    tonic::include_proto!("kvatlas.loadtest");
}

use generated::echo_server::{Echo, EchoServer};
pub use generated::{Empty, Payload};

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
            .add_service(EchoServer::new(Answer))
            .serve_with_incoming(incoming)
            .await?;
        Ok(())
    })
}

#[derive(Debug, Clone, Copy)]
struct Answer;

#[tonic::async_trait]
impl Echo for Answer {
    async fn echo(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn r#return(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn take(&self, _request: Request<Payload>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}
