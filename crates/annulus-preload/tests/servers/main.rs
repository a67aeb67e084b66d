//! Servers of the distribution on the library, from their clients' side: responses must be the same as without it.
//! Clients do not use the library. `ci/servers` runs the servers' own test suites.

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
