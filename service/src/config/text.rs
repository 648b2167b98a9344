//! Flags on prompt text: whether it is kept, and what embeds it.

use std::path::PathBuf;

use clap::{ArgAction, Args, builder::BoolishValueParser};
use thiserror::Error;

use crate::donors::text::{ModelFiles, segments::SEGMENTS_MAX};

const THREADS_MAX: u32 = 256;
const SEGMENTS_LIMIT: u32 = 64;
const _: () = assert!(SEGMENTS_LIMIT as usize == SEGMENTS_MAX);
const QUEUE_DEPTH_LIMIT: u32 = 1 << 16;

/// What is done with the text that may come with prompts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompt text")]
pub struct TextArgs {
    /// Keep the text of donors that come with it, and compare it. It lies in the data folder, and
    /// never goes into logs, metrics or errors. Without this flag text is dropped on arrival.
    #[arg(
        id = "text",
        long,
        env = "KVATLAS_TEXT",
        action = ArgAction::SetTrue,
        value_parser = BoolishValueParser::new()
    )]
    pub enabled: bool,

    /// Folder of a sentence model that donors are also found by: model.onnx, tokenizer.json,
    /// config.json, special_tokens_map.json, tokenizer_config.json. Needs --text, --onnxruntime.
    #[arg(long, env = "KVATLAS_EMBEDDING_MODEL", value_name = "DIR")]
    pub embedding_model: Option<PathBuf>,

    /// ONNX Runtime's shared library (1.24 or later), or the folder that it lies in, such as
    /// onnxruntime/capi of the Python package.
    #[arg(long, env = "KVATLAS_ONNXRUNTIME", value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,

    /// Threads that one run of the model uses.
    #[arg(
        long,
        env = "KVATLAS_EMBEDDING_THREADS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)),
        value_name = "N"
    )]
    pub embedding_threads: u32,

    /// Segments of a donor's text that are embedded, spread over the whole of it: 600 bytes each,
    /// and some 40 ms of one core with a MiniLM. Fewer than its text has cost much of what would
    /// be found.
    #[arg(
        long,
        env = "KVATLAS_DONOR_TEXT_SEGMENTS_MAX",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SEGMENTS_LIMIT)),
        value_name = "N"
    )]
    pub donor_text_segments_max: u32,

    /// Segments of a look-up's text that are embedded while its caller waits. A few suffice, if
    /// donors are embedded wholly.
    #[arg(
        long,
        env = "KVATLAS_QUERY_TEXT_SEGMENTS_MAX",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SEGMENTS_LIMIT)),
        value_name = "N"
    )]
    pub query_text_segments_max: u32,

    /// Look-ups that may wait to be embedded; one more is answered without, at once.
    #[arg(
        long,
        env = "KVATLAS_EMBEDDING_QUEUE_DEPTH_MAX",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(QUEUE_DEPTH_LIMIT)),
        value_name = "N"
    )]
    pub embedding_queue_depth_max: u32,
}

impl Default for TextArgs {
    fn default() -> TextArgs {
        TextArgs {
            enabled: false,
            embedding_model: None,
            onnxruntime: None,
            embedding_threads: 1,
            donor_text_segments_max: 32,
            query_text_segments_max: 4,
            embedding_queue_depth_max: 64,
        }
    }
}

/// Flags that do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TextArgsError {
    #[error("--embedding-model needs --text: without it there is no text to embed")]
    ModelWithoutText,
    #[error("--embedding-model needs --onnxruntime, which runs it")]
    ModelWithoutRuntime,
    #[error("--onnxruntime needs --embedding-model: it runs nothing else")]
    RuntimeWithoutModel,
}

impl TextArgs {
    /// The model that is to be opened, if any.
    ///
    /// # Errors
    /// When only a part of what it needs was given: better no start than a feature that is off.
    pub fn model(&self) -> Result<Option<ModelFiles>, TextArgsError> {
        match (&self.embedding_model, &self.onnxruntime) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(TextArgsError::RuntimeWithoutModel),
            (Some(_), _) if !self.enabled => Err(TextArgsError::ModelWithoutText),
            (Some(_), None) => Err(TextArgsError::ModelWithoutRuntime),
            (Some(folder), Some(onnxruntime)) => Ok(Some(ModelFiles {
                folder: folder.clone(),
                onnxruntime: onnxruntime.clone(),
                threads: self.embedding_threads as usize,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        text: TextArgs,
    }

    fn parse(flags: &str) -> TextArgs {
        let flags = std::iter::once("serve").chain(flags.split_whitespace());
        Command::try_parse_from(flags).unwrap().text
    }

    #[test]
    fn a_model_needs_text_and_a_runtime() {
        let check = |flags: &str, expected: TextArgsError| {
            let error = parse(flags).model().unwrap_err();
            assert_eq!(error, expected, "{flags}");
            assert!(error.to_string().starts_with("--"), "{error}");
        };
        let (model, runtime) = ("--embedding-model m", "--onnxruntime r");
        check(model, TextArgsError::ModelWithoutText);
        check(
            &format!("{model} {runtime}"),
            TextArgsError::ModelWithoutText,
        );
        check(
            &format!("--text {model}"),
            TextArgsError::ModelWithoutRuntime,
        );
        check(
            &format!("--text {runtime}"),
            TextArgsError::RuntimeWithoutModel,
        );
        let all = parse(&format!("--text {model} {runtime} --embedding-threads 3"));
        let files = all.model().unwrap().unwrap();
        assert_eq!(files.folder, PathBuf::from("m"));
        assert_eq!(files.onnxruntime, PathBuf::from("r"));
        assert_eq!(files.threads, 3);
    }

    #[test]
    fn text_is_off_unless_asked_for_and_needs_no_model() {
        assert!(!parse("").enabled);
        assert_eq!(parse("").model(), Ok(None));
        assert!(parse("--text").enabled);
        assert_eq!(parse("--text").model(), Ok(None));
    }

    #[test]
    fn numbers_beyond_their_limits_are_refused_with_the_flag() {
        for (flag, largest) in [
            ("--embedding-threads", 256_u32),
            ("--donor-text-segments-max", 64),
            ("--query-text-segments-max", 64),
            ("--embedding-queue-depth-max", 65_536),
        ] {
            for (number, is_good) in [(0, false), (1, true), (largest, true), (largest + 1, false)]
            {
                let number = number.to_string();
                let parsed = Command::try_parse_from(["serve", flag, &number]);
                assert_eq!(parsed.is_ok(), is_good, "{flag} {number}");
                if let Err(error) = parsed {
                    assert!(error.to_string().contains(flag), "{error}");
                }
            }
        }
    }
}
