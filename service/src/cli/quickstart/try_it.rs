//! Lines to try against the server of the tour while it stays up.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{
    corpus::{Change, Prompts},
    donors::STORE_ID,
};
use crate::cli::error::CliError;

/// Writes a request for FindDonor that `grpcurl` can read.
pub(super) fn write_body(
    folder: &Path,
    namespace_id: &str,
    prompts: &Prompts,
) -> Result<PathBuf, CliError> {
    let body = json!({
        "tokens": { "ids": prompts.changed(Change::Reordered) },
        "namespace": { "namespaceId": namespace_id },
        "readableStoreIds": [STORE_ID],
        "explain": true,
    });
    let path = folder.join("find-donor.json");
    fs::write(&path, body.to_string())?;
    Ok(path)
}

pub(super) fn lines(address: &str, body: &Path) -> String {
    let body = body.display();
    format!(
        "
Now try it yourself; Ctrl-C ends the server and removes its folder.

  kvatlas --address {address} status
  kvatlas --address {address} prior ls
  kvatlas --address {address} manifest scores --k 16 --policy A1R2K13
  kvatlas --address {address} summary show needle

  grpcurl -plaintext {address} list
  grpcurl -plaintext {address} describe kvatlas.v1.Donors.FindDonor
  grpcurl -plaintext -d '{{\"prefixHash\": \"scores\", \"k\": 16}}' \\
      {address} kvatlas.v1.Routing/GetManifest
  grpcurl -plaintext -d @ {address} kvatlas.v1.Donors/FindDonor \\
      < {body}
"
    )
}
