//! Encoders: model folders that the server makes queries from tokens with.

use kvatlas_proto::v1;

use crate::{
    client::{Client, within},
    error::ClientError,
};

impl Client {
    /// Registers a model folder under a name; what had the name is replaced. `model_dir` is a path
    /// on the server's machine: relative to its models folder, or absolute and below it.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn put_encoder(
        &self,
        name: &str,
        model_dir: &str,
    ) -> Result<v1::PutEncoderResponse, ClientError> {
        let message = v1::PutEncoderRequest {
            name: name.to_owned(),
            model_dir: model_dir.to_owned(),
        };
        let mut routing = self.routing();
        within(self.deadlines.control, message, |request| async move {
            routing.put_encoder(request).await
        })
        .await
    }

    /// All encoders, sorted by name.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn list_encoders(&self) -> Result<Vec<v1::Encoder>, ClientError> {
        let message = v1::ListEncodersRequest {};
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.list_encoders(request).await
        })
        .await;
        answer.map(|answer| answer.encoders)
    }

    /// Forgets an encoder; its folder stays as it is. Returns whether it was there.
    ///
    /// # Errors
    /// When the call fails; deleting again is safe.
    pub async fn delete_encoder(&self, name: &str) -> Result<bool, ClientError> {
        let message = v1::DeleteEncoderRequest {
            name: name.to_owned(),
        };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.delete_encoder(request).await
        })
        .await;
        match answer {
            Ok(v1::DeleteEncoderResponse {}) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
