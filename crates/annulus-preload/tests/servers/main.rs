//! Servers as the distribution has them, on the library, from their clients' side: what is answered must be what it is
//! without. Clients are not on the library. The servers' own test suites are run by `ci/servers`.

#[path = "../built/library.rs"]
mod built;
mod certificate;
mod http;
mod library;
mod memcached;
mod nginx;
#[path = "../../../annulus/tests/child/once.rs"]
mod once;
mod redis;
mod resp;
mod server;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "nothing here needs root")]
mod skip;
