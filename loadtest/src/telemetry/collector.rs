//! A collector that takes spans and forgets them.

use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::{child::Ready, error::LoadtestError};

/// Serves on a free port until the process ends; says where on standard output.
///
/// # Errors
/// When no socket can be opened.
pub fn serve() -> Result<(), LoadtestError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = TcpIncoming::bind(loopback)?.with_nodelay(Some(true));
        Ready::at(incoming.local_addr()?).say()?;
        Server::builder()
            .add_service(TraceServiceServer::new(Forgetful))
            .serve_with_incoming(incoming)
            .await?;
        Ok(())
    })
}

#[derive(Debug, Clone, Copy)]
struct Forgetful;

#[tonic::async_trait]
impl TraceService for Forgetful {
    async fn export(
        &self,
        _spans: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
