//! Where a source is:
//! `tcp://host:port[,replay=tcp://host:port][,worker=id][,rank=n][,namespace=file]`.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The longest description of a source.
pub const SOURCE_BYTES_MAX: usize = 4096;
/// The longest name of a worker.
pub const WORKER_BYTES_MAX: usize = 256;
/// The highest data-parallel rank.
pub const RANK_MAX: u32 = 65_535;

/// An engine's publisher, and what is known of it besides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// `host:port` of the publisher.
    pub events: String,
    /// `host:port` of the replay socket.
    pub replay: Option<String>,
    /// The engine's name among workers; its publisher's address where none is given.
    pub worker: String,
    /// The rank of batches that do not name one.
    pub rank: u32,
    /// The file that describes the namespace of its blocks.
    pub namespace: Option<PathBuf>,
}

/// Which part of a description is wrong, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("a source has more than {SOURCE_BYTES_MAX} bytes")]
    TooLong,
    #[error("{part}: an address is tcp://host:port, with a port of 1 to 65535")]
    Address { part: &'static str },
    #[error("{part}: nothing is given")]
    Empty { part: &'static str },
    #[error("{part}: given twice")]
    Twice { part: &'static str },
    #[error("worker: a name has more than {WORKER_BYTES_MAX} bytes, or control characters")]
    Worker,
    #[error("rank: not a number of 0 to {RANK_MAX}")]
    Rank,
    #[error("part {number} after the address is not replay=, worker=, rank= or namespace=")]
    Unknown { number: usize },
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text.len() > SOURCE_BYTES_MAX {
            return Err(SourceError::TooLong);
        }
        let mut parts = text.split(',');
        let events = address(parts.next().unwrap_or_default(), "events")?;
        let (mut replay, mut worker, mut rank, mut namespace) = (None, None, None, None);
        for (at, text) in parts.enumerate() {
            let unknown = SourceError::Unknown { number: at + 1 };
            let (name, value) = text.split_once('=').ok_or(unknown)?;
            match name {
                "replay" => once(&mut replay, "replay", address(value, "replay")?)?,
                "worker" => once(&mut worker, "worker", worker_name(value)?)?,
                "rank" => once(&mut rank, "rank", rank_number(value)?)?,
                "namespace" => {
                    let path = PathBuf::from(given(value, "namespace")?);
                    once(&mut namespace, "namespace", path)?;
                }
                _ => return Err(unknown),
            }
        }
        Ok(Self {
            worker: worker.unwrap_or_else(|| events.clone()),
            events,
            replay,
            rank: rank.unwrap_or(0),
            namespace,
        })
    }
}

fn address(text: &str, part: &'static str) -> Result<String, SourceError> {
    let error = SourceError::Address { part };
    let address = text.strip_prefix("tcp://").ok_or(error)?;
    let (host, port) = address.rsplit_once(':').ok_or(error)?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(host) => host.parse::<Ipv6Addr>().is_ok(),
        None => {
            let is_meant = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(is_meant)
        }
    };
    match is_port && is_host {
        true => Ok(address.to_owned()),
        false => Err(error),
    }
}

fn worker_name(text: &str) -> Result<String, SourceError> {
    let name = given(text, "worker")?;
    match name.len() > WORKER_BYTES_MAX || name.chars().any(char::is_control) {
        true => Err(SourceError::Worker),
        false => Ok(name.to_owned()),
    }
}

fn rank_number(text: &str) -> Result<u32, SourceError> {
    let rank = text.parse().ok().filter(|&rank| rank <= RANK_MAX);
    rank.ok_or(SourceError::Rank)
}

fn given<'a>(text: &'a str, part: &'static str) -> Result<&'a str, SourceError> {
    match text.is_empty() {
        true => Err(SourceError::Empty { part }),
        false => Ok(text),
    }
}

fn once<T>(slot: &mut Option<T>, part: &'static str, value: T) -> Result<(), SourceError> {
    match slot.replace(value) {
        Some(_) => Err(SourceError::Twice { part }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: &Source) {
        assert_eq!(text.parse::<Source>().as_ref(), Ok(want));
    }

    fn check_error(text: &str, want: &str) {
        let error = text.parse::<Source>().map_err(|error| error.to_string());
        let is_meant = error.as_ref().is_err_and(|error| error.starts_with(want));
        assert!(is_meant, "{text}: {error:?}, not {want}");
    }

    #[test]
    fn a_source_is_read_part_by_part() {
        let plain = |address: &str| Source {
            events: address.to_owned(),
            replay: None,
            worker: address.to_owned(),
            rank: 0,
            namespace: None,
        };
        check("tcp://a:1", &plain("a:1"));
        check("tcp://[::1]:65535", &plain("[::1]:65535"));
        let whole = Source {
            replay: Some("b:2".to_owned()),
            worker: "w 1".to_owned(),
            rank: 3,
            namespace: Some("/n.json".into()),
            ..plain("a:1")
        };
        let text = "tcp://a:1,namespace=/n.json,rank=3,worker=w 1,replay=tcp://b:2";
        check(text, &whole);
    }

    #[test]
    fn an_error_names_the_part() {
        for text in [
            "",
            "a:1",
            "ipc://a",
            "tcp://a",
            "tcp://:1",
            "tcp://a:0",
            "tcp://a:65536",
            "tcp://a:+1",
            "tcp://::1:5",
            "tcp://[]:5",
            "tcp://a/b:1",
            "tcp://a b:1",
            ",worker=a",
        ] {
            check_error(text, "events:");
        }
        check_error("tcp://a:1,replay=b:2", "replay:");
        let twice = "tcp://a:1,replay=tcp://b:2,replay=tcp://b:2";
        check_error(twice, "replay: given twice");
        check_error("tcp://a:1,worker=", "worker: nothing");
        check_error("tcp://a:1,worker=a\nb", "worker: a name");
        let long = format!("tcp://a:1,worker={}", "w".repeat(WORKER_BYTES_MAX + 1));
        check_error(&long, "worker: a name");
        check_error("tcp://a:1,rank=-1", "rank:");
        check_error("tcp://a:1,rank=65536", "rank:");
        check_error("tcp://a:1,namespace=", "namespace: nothing");
        check_error("tcp://a:1,worker=a,topic=t", "part 2");
        check_error("tcp://a:1,", "part 1");
        check_error(&"x".repeat(SOURCE_BYTES_MAX + 1), "a source has");
    }
}
