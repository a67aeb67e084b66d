//! Servers of the distribution on the library, from their clients' side: responses must be the same as without it.
//! Clients do not use the library. `ci/servers` runs the servers' own test suites.

mod certificate;
mod http;
mod library;
mod memcached;
mod nginx;
mod redis;
mod resp;
mod server;
