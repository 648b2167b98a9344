//! What flags mean, and which are refused.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    serve: ServeArgs,
}

#[test]
fn no_flags_means_the_defaults() {
    let parsed = Command::parse_from(["serve"]).serve;
    assert_eq!(format!("{parsed:?}"), format!("{:?}", ServeArgs::default()));
}

#[test]
fn addresses_are_ip_and_port_or_a_unix_path() {
    for good in ["127.0.0.1:0", "[::1]:50051", "unix:/run/kvatlas.sock"] {
        let address: ListenAddress = good.parse().unwrap();
        assert_eq!(address.to_string(), good);
    }
    for bad in ["", "50051", "localhost:50051", "unix:"] {
        assert!(bad.parse::<ListenAddress>().is_err(), "{bad}");
    }
}

#[test]
fn shares_lie_between_0_and_1() {
    for bad in ["-0.1", "1.1", "NaN", "x"] {
        assert!(
            Command::try_parse_from(["serve", "--min-similarity", bad]).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn a_limit_of_nothing_is_refused_by_name() {
    for flag in [
        "--calls-in-flight-max",
        "--message-bytes-max",
        "--call-ms-max",
        "--prior-bytes-max",
        "--summary-bytes-max",
        "--upload-ms-max",
        "--donors-max",
        "--donor-tokens-max",
        "--leases-max",
        "--lease-ttl-ms",
        "--queries-max",
        "--query-bytes-max",
        "--query-ttl-ms",
    ] {
        let refused = Command::try_parse_from(["serve", flag, "0"]).err();
        let refused = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains(flag), "{flag}: {refused}");
        assert!(refused.contains("0 is not in 1.."), "{flag}: {refused}");
        assert!(
            Command::try_parse_from(["serve", flag, "1"]).is_ok(),
            "{flag}"
        );
    }
}

#[test]
fn more_threads_than_can_be_started_are_refused() {
    let parse = |count: &str| Command::try_parse_from(["serve", "--workers", count]);
    assert!(parse("0").is_ok());
    assert!(parse("1024").is_ok());
    for bad in ["1025", "18446744073709551615"] {
        let refused = parse(bad).unwrap_err().to_string();
        assert!(refused.contains("is not in 0..=1024"), "{refused}");
    }
}
