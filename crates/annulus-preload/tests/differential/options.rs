//! Checks that each socket option in the kernel's headers is listed in the library.

use std::collections::BTreeMap;
use std::process::Command;

use annulus_testing::skip::skip;

use crate::sockopt_effects::{Effect, OPTIONS, effect};

/// Names in the headers that are values or flags of options, or have another meaning.
const NO_OPTIONS: [&str; 16] = [
    "TCP_MSS_",
    "TCP_REPAIR_ON",
    "TCP_REPAIR_OFF",
    "TCP_MD5SIG_MAXKEYLEN",
    "TCP_MD5SIG_FLAG_",
    "TCP_RECEIVE_ZEROCOPY_FLAG_",
    "TCP_AO_MAXKEYLEN",
    "TCP_AO_KEYF_",
    "IP_PMTUDISC_",
    "IP_DEFAULT_MULTICAST_",
    "IPV6_FL_",
    "IPV6_FLOWINFO_FLOWLABEL",
    "IPV6_FLOWINFO_PRIORITY",
    "IPV6_TLV_",
    "IPV6_PMTUDISC_",
    "IPV6_PREFER_SRC_",
];

/// The level, the header and the prefix of its options.
const HEADERS: [(i32, &str, &str); 4] = [
    (libc::SOL_SOCKET, "asm/socket.h", "SO_"),
    (libc::IPPROTO_TCP, "linux/tcp.h", "TCP_"),
    (libc::IPPROTO_IP, "linux/in.h", "IP_"),
    (libc::IPPROTO_IPV6, "linux/in6.h", "IPV6_"),
];

/// Returns the names and numbers that a header defines.
fn defined(header: &str, prefix: &str) -> Option<BTreeMap<String, i32>> {
    let include = format!("echo '#include <{header}>' | cc -E -dM -");
    let output = Command::new("sh").args(["-c", &include]).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let of_line = |line: &str| {
        let mut words = line.strip_prefix("#define ")?.split_whitespace();
        let (name, number) = (words.next()?, words.next()?);
        let recognised = name.starts_with(prefix)
            && !name.starts_with("IPV6_PRIORITY_")
            && !NO_OPTIONS.iter().any(|other| name.starts_with(other));
        recognised.then_some((name.to_owned(), number.parse().ok()?))
    };
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().filter_map(of_line).collect())
}

#[test]
fn every_option_of_the_kernel_is_classified() {
    for (level, header, prefix) in HEADERS {
        let Some(named) = defined(header, prefix) else {
            skip(format_args!("no compiler, or no {header}"));
            return;
        };
        assert!(named.len() > 20, "{header}: {named:?}");
        for (name, number) in named {
            let listed = (OPTIONS.iter())
                .find(|option| (option.0, option.1, option.2) == (level, number, &*name));
            let decided = listed.map(|option| option.3);
            assert!(
                decided.is_some() && decided == effect(level, number),
                "{name} ({number}): classify it in sockopt_effects.rs by its effect on a served connection"
            );
        }
    }
}

#[test]
fn an_option_that_is_newer_than_the_library_is_not_taken_for_harmless() {
    assert_eq!(effect(libc::SOL_SOCKET, 9999), None);
    assert_eq!(effect(9999, 1), None);
    let rcvlowat = effect(libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    assert_eq!(rcvlowat, Some(Effect::Differs { unless: 1 }));
}
