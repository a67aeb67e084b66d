//! Tests servers of the distribution under the library with clients that do not use it: responses must be the same as
//! without the library. `ci/servers` runs the servers' own test suites.

mod certificate;
mod http;
mod library;
mod memcached;
mod nginx;
mod redis;
mod resp;
mod server;
