//! The backends a test runs on.

use std::future::Future;
use std::time::Duration;

use annulus::Backend;
use annulus::runtime::{ReceiveMode, Runtime, RuntimeBuilder};
use annulus::time::timeout;
use annulus_testing::skip::skip;

/// A test that takes longer hangs. It decides nothing else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// One backend, and how much room it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Uring,
    Epoll,
    /// Two entries, one buffer of 64 bytes.
    TinyUring,
    TinyEpoll,
    /// Receive buffers that are filled bit by bit, so few that they are full often.
    Incremental,
}

/// The two backends, with room and without.
pub(crate) const BACKENDS: [Way; 4] = [Way::Uring, Way::Epoll, Way::TinyUring, Way::TinyEpoll];

const WAYS: [Way; 5] = [
    Way::Uring,
    Way::Epoll,
    Way::TinyUring,
    Way::TinyEpoll,
    Way::Incremental,
];

impl Way {
    /// Whether it is one of the two that programs use most.
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
        let builder = Runtime::builder().threads(1).backend(backend);
        match self {
            Way::Uring | Way::Epoll => builder,
            Way::TinyUring | Way::TinyEpoll => builder.ring_entries(2).receive_buffers(1, 64),
            Way::Incremental => {
                (builder.receive_buffers(4, 4096)).receive_mode(ReceiveMode::Incremental)
            }
        }
    }
}

/// Runs the test on a core of each kind; a backend that can't run here is skipped, and said so.
pub(crate) fn for_each_way<F>(test: impl Fn(Way) -> F)
where
    F: Future<Output = ()> + 'static,
{
    for_each_builder(|builder| builder, test);
}

/// The same, changed.
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
