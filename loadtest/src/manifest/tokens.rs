//! A server that lets in by token: the file it is given, and the token that calls show.

use tempfile::NamedTempFile;

use crate::{
    args::{CommonArgs, ManifestArgs},
    error::LoadtestError,
    wire::Shown,
};

/// Who may call, for as long as it is held.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) shown: Shown,
    /// The arguments, with the file among the server's flags.
    pub(super) common: CommonArgs,
    _file: Option<NamedTempFile>,
}

impl Tokens {
    pub(super) fn of(args: &ManifestArgs) -> Result<Self, LoadtestError> {
        let mut common = args.common.clone();
        let Some(last) = args.tokens.checked_sub(1) else {
            return Ok(Self {
                shown: Shown::default(),
                common,
                _file: None,
            });
        };
        if common.address.is_some() {
            return Err(LoadtestError::Argument {
                argument: "--tokens",
                reason: "a server that runs elsewhere has a token file of its own".to_owned(),
            });
        }
        let file = NamedTempFile::with_prefix("kvatlas-loadtest-tokens-")?;
        serde_json::to_writer(&file, &tokens(args.tokens))?;
        let path = file.path().as_os_str().to_owned();
        common.server.extend(["--token-file".into(), path]);
        Ok(Self {
            shown: Shown::token(&token(last))?,
            common,
            _file: Some(file),
        })
    }
}

// The priors are put under the one that calls show as well.
fn tokens(count: usize) -> serde_json::Value {
    let entry = |at: usize| {
        serde_json::json!({
            "name": format!("loadtest-{at}"),
            "role": "operator",
            "token": token(at),
        })
    };
    serde_json::json!({ "tokens": (0..count).map(entry).collect::<Vec<_>>() })
}

fn token(at: usize) -> String {
    format!("loadtest-token-of-nobody-{at}")
}
