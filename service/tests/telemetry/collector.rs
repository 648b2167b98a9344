//! A collector of spans, for tests.

use std::sync::Arc;

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use parking_lot::Mutex;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

/// What came. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    /// Listens on a free port until the test's runtime ends; returns its URL.
    pub(crate) fn start() -> (Collector, String) {
        let collector = Collector::default();
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", incoming.local_addr().unwrap());
        let service = TraceServiceServer::new(collector.clone());
        let serving = Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming);
        #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        tokio::spawn(serving);
        (collector, url)
    }

    pub(crate) fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        self.0.lock().clone()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|it| it.resource_spans);
        let scopes = resources.flat_map(|it| it.scope_spans);
        scopes.flat_map(|it| it.spans).collect()
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
