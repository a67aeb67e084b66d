//! The backends of the tests.

use std::future::Future;
use std::time::Duration;

use annulus::Backend;
use annulus::runtime::{ReceiveMode, Runtime, RuntimeBuilder};
use annulus::time::timeout;
use annulus_testing::skip::skip;

/// The time limit of a test that hangs. No other result depends on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A backend with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Uring,
    Epoll,
    /// A ring of two entries, and one buffer of 64 bytes.
    TinyUring,
    TinyEpoll,
    /// Receive buffers that are filled incrementally, so few that they are often full.
    Incremental,
}

/// The two backends, with normal and with minimal limits.
pub(crate) const BACKENDS: [Way; 4] = [Way::Uring, Way::Epoll, Way::TinyUring, Way::TinyEpoll];

const WAYS: [Way; 5] = [
    Way::Uring,
    Way::Epoll,
    Way::TinyUring,
    Way::TinyEpoll,
    Way::Incremental,
];

impl Way {
    /// Returns whether it has normal limits.
    pub(crate) fn is_large(self) -> bool {
        matches!(self, Way::Uring | Way::Epoll)
    }

    pub(crate) fn is_tiny(self) -> bool {
        matches!(self, Way::TinyUring | Way::TinyEpoll)
    }

    pub(crate) fn builder(self) -> RuntimeBuilder {
        let backend = match self {
            Way::Uring | Way::TinyUring | Way::Incremental => Backend::Uring,
            Way::Epoll | Way::TinyEpoll => Backend::Fallback,
        };
        let builder = Runtime::builder().cores(1).backend(backend);
        match self {
            Way::Uring | Way::Epoll => builder,
            Way::TinyUring | Way::TinyEpoll => builder.ring_entries(2).receive_buffers(1, 64),
            Way::Incremental => {
                (builder.receive_buffers(4, 4096)).receive_mode(ReceiveMode::Incremental)
            }
        }
    }
}

/// Runs the test on a core of each kind; skips a backend that cannot run here.
pub(crate) fn for_each_way<F>(test: impl Fn(Way) -> F)
where
    F: Future<Output = ()> + 'static,
{
    for_each_builder(|builder| builder, test);
}

/// Runs the test on a core of each kind, with a changed configuration.
pub(crate) fn for_each_builder<F>(
    change: impl Fn(RuntimeBuilder) -> RuntimeBuilder,
    test: impl Fn(Way) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    for way in WAYS {
        let future = test(way);
        let ran = change(way.builder()).block_on(async move { timeout(PATIENCE, future).await });
        match ran {
            Ok(in_time) => in_time.unwrap_or_else(|_| panic!("{way:?}: it hangs")),
            Err(error) if error.allows_fallback() => skip(format_args!("{way:?}: {error}")),
            Err(error) => panic!("{way:?}: {error}"),
        }
        println!("{way:?}: done");
    }
}
