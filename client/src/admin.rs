//! What operators ask: how the server is, its namespaces, and what look-ups may lead to.

use kvatlas_proto::v1;
use tonic::Response;

use crate::{
    client::{Client, within},
    error::ClientError,
    namespace::NamespaceRef,
};

impl Client {
    /// How the server is. Also the call that makes the connection before the first look-up.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn status(&self) -> Result<v1::GetStatusResponse, ClientError> {
        let mut admin = self.admin();
        within(
            self.deadlines.control,
            v1::GetStatusRequest {},
            |request| async move { admin.get_status(request).await },
        )
        .await
    }

    /// One page; an empty token asks for the first, and stands for the last in the answer.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn list_namespaces(
        &self,
        page_size: u32,
        page_token: &str,
    ) -> Result<v1::ListNamespacesResponse, ClientError> {
        let message = v1::ListNamespacesRequest {
            page_size,
            page_token: page_token.to_owned(),
        };
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            admin.list_namespaces(request).await
        })
        .await
    }

    /// Sets the mode, and the gates where given, of one namespace or of the server.
    ///
    /// # Errors
    /// When the call fails; setting it again is safe.
    pub async fn set_mode(
        &self,
        namespace: Option<&NamespaceRef>,
        mode: v1::Mode,
        gates: Option<v1::Gates>,
    ) -> Result<v1::SetModeResponse, ClientError> {
        let message = v1::SetModeRequest {
            namespace: namespace.map(NamespaceRef::to_wire),
            mode: mode.into(),
            gates,
        };
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            admin.set_mode(request).await
        })
        .await
    }

    /// The newest records of calls, oldest first, as lines of the audit log. 0: all that are kept.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn read_window(
        &self,
        since_ms: Option<u64>,
        records_max: u32,
    ) -> Result<Vec<String>, ClientError> {
        let message = v1::ReadWindowRequest {
            since_ms,
            records_max,
        };
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            let mut pages = admin.read_window(request).await?.into_inner();
            let mut lines = Vec::new();
            while let Some(page) = pages.message().await? {
                lines.extend(page.lines);
            }
            Ok(Response::new(lines))
        })
        .await
    }
}
