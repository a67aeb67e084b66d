//! What numbers and times may look like.

use std::time::Duration;

use super::Args;
use super::value::{parse_bytes, parse_limit, parse_seconds, parse_time};

#[test]
fn bytes_are_read_as_fio_reads_them() {
    assert_eq!(parse_bytes("512"), Ok(512));
    assert_eq!(parse_bytes("4k"), Ok(4096));
    assert_eq!(parse_bytes("16KiB"), Ok(16384));
    assert_eq!(parse_bytes("2G"), Ok(2 << 30));
    assert!(parse_bytes("4x").is_err());
    assert!(parse_bytes("").is_err());
    assert!(parse_bytes("-1").is_err());
    assert!(parse_bytes("99999999999T").is_err());
}

#[test]
fn times_are_read_with_and_without_a_unit() {
    assert_eq!(parse_seconds("0.05"), Ok(Duration::from_millis(50)));
    assert_eq!(parse_seconds("200ms"), Ok(Duration::from_millis(200)));
    assert_eq!(parse_seconds("2m"), Ok(Duration::from_secs(120)));
    for bad in ["0", "-1", "NaN", "inf", "x", ""] {
        assert!(parse_seconds(bad).is_err(), "{bad}");
        assert!(parse_limit(bad).is_err(), "{bad}");
        assert_eq!(parse_time(bad).is_ok(), bad == "0", "{bad}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Args::command().debug_assert();
}
