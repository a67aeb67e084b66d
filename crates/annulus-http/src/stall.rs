//! The send timeout: detects a client that acknowledges nothing of a response.
//!
//! The check runs several times within the timeout and compares what the client has acknowledged. The completion of a
//! send is no measure: a slow client may need minutes for one. A send that completes before the first check costs no
//! call.
//!
//! Acknowledged bytes are in the client's receive buffer. The client's kernel opens a full one again only when the
//! client has read much of it: for segments of 64 KiB, at least one. Until then it acknowledges nothing, however
//! steadily the client reads. Acknowledged bytes therefore extend the timeout by the time to read them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use annulus::net::SendProgress;

use crate::per_core::Ticks;
use crate::watch::{Phase, Registration};

/// The rate in bytes per second at which a client reads, at least.
pub(crate) const READ_RATE: u64 = 2000;
/// The longest extended timeout, as a multiple of the timeout.
pub(crate) const EXTENDED_MAX: u64 = 4;

/// The number of ticks to the first check. Progress is measured from then on.
pub(crate) const FIRST_CHECK: u64 = 1;

/// The progress of one client since the start of a send.
pub(crate) struct Stall {
    progress: SendProgress,
    /// The bytes acknowledged at the last check.
    acknowledged: Option<u64>,
    /// The bytes of responses written to the stream at the last check, if they are counted (HTTP/2).
    written: u64,
    /// `true` if acknowledged bytes belong to a response. Replies to pings do not count as progress.
    is_response: bool,
    /// `true` if all sent bytes belong to responses.
    all_responses: bool,
    /// The tick at which the client counts as stalled, without more progress. `None` before the first check.
    until: Option<u64>,
    /// The tick of the start.
    start: u64,
}

impl Stall {
    /// Returns the state for a connection that sends nothing but responses, at the start of a send.
    pub(crate) fn of_send(progress: SendProgress, registration: &Registration) -> Stall {
        Stall {
            progress,
            acknowledged: None,
            written: 0,
            is_response: true,
            all_responses: true,
            until: None,
            start: registration.now(),
        }
    }

    /// Returns the state for a connection that also sends other data than responses.
    pub(crate) fn of_responses(progress: SendProgress, registration: &Registration) -> Stall {
        Stall {
            is_response: false,
            all_responses: false,
            ..Stall::of_send(progress, registration)
        }
    }

    /// Counts every acknowledged byte as progress from now on: no more responses are written, and the last are being
    /// sent.
    pub(crate) fn count_all(&mut self) {
        (self.is_response, self.all_responses) = (true, true);
    }

    /// Returns whether the client has made no progress for the send timeout. Otherwise sets the time of the next check.
    /// `written` is the number of response bytes written so far.
    pub(crate) fn has_stalled(
        &mut self,
        registration: &Registration,
        ticks: &Ticks,
        written: u64,
    ) -> bool {
        let now = registration.now();
        let mut until = self.until.unwrap_or(self.start + ticks.send);
        if std::mem::replace(&mut self.written, written) != written {
            self.is_response = true;
            until = until.max(now + ticks.send);
        }
        if let Ok(Some(state)) = self.progress.acknowledged() {
            let before = self.acknowledged.replace(state.bytes);
            if self.is_response && before != Some(state.bytes) {
                let bytes = state.bytes.saturating_sub(before.unwrap_or(0));
                let reading = bytes / ticks.read_bytes;
                until = (until.max(now + ticks.send).saturating_add(reading))
                    .min(now + EXTENDED_MAX * ticks.send);
            }
            self.is_response = self.all_responses || (self.is_response && !state.all);
        }
        self.until = Some(until);
        let left = until.saturating_sub(now);
        if left > 0 {
            registration.set(Phase::Busy, left.min(ticks.send_check));
        }
        left == 0
    }
}

/// Awaits the completion of a send. Returns `None` if the client acknowledges nothing for the send timeout.
pub(crate) async fn with_send_timeout<F: Future>(
    registration: &Registration,
    ticks: &Ticks,
    progress: SendProgress,
    send: F,
) -> Option<F::Output> {
    registration.set(Phase::Busy, FIRST_CHECK);
    let mut stall = Stall::of_send(progress, registration);
    let mut send = pin!(send);
    poll_fn(|context| {
        if let Poll::Ready(value) = send.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        if registration.take_expired() && stall.has_stalled(registration, ticks, 0) {
            return Poll::Ready(None);
        }
        registration.wait(context);
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use annulus::Backend;
    use annulus::net::{Acknowledged, TcpListener, TcpStream};
    use annulus::runtime::{Runtime, spawn, yield_now};

    use super::*;
    use crate::watch::Watches;
    use annulus_testing::skip::skip;

    /// The send timeout in ticks.
    const TICKS: u64 = 8;
    const PIECE_BYTES: usize = 64 << 10;

    fn ticks() -> Ticks {
        Ticks {
            head: 0,
            body: 0,
            idle: 0,
            send: TICKS,
            send_check: 1,
            read_bytes: u64::MAX,
            handshake: 0,
            linger: 0,
        }
    }

    /// A client, the server's end with small buffers, and the server's entry for the client. The test advances the
    /// ticks.
    struct Fixture {
        watches: Rc<Watches>,
        registration: Registration,
        near: Rc<TcpStream>,
        far: TcpStream,
    }

    impl Fixture {
        async fn new() -> Fixture {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let connecting = spawn(TcpStream::connect(listener.local_addr().unwrap()));
            let near = listener.accept().await.unwrap();
            let far = connecting.await.unwrap().unwrap();
            near.options().set_send_buffer_bytes(PIECE_BYTES).unwrap();
            far.options().set_receive_buffer_bytes(PIECE_BYTES).unwrap();
            let watches = Watches::new(Duration::from_secs(1));
            Fixture {
                registration: watches.enter(),
                watches,
                near: Rc::new(near),
                far,
            }
        }

        fn acknowledged(&self) -> Acknowledged {
            let acknowledged = self.near.send_progress().acknowledged();
            acknowledged.unwrap().unwrap()
        }

        /// Waits until all sent bytes are acknowledged.
        async fn wait_for_all(&self) {
            while !self.acknowledged().all {
                yield_now().await;
            }
        }

        /// Returns the number of ticks until the client counts as stalled.
        async fn ticks_until_stalled(&self, stall: &mut Stall, written: u64) -> u64 {
            for count in 0.. {
                self.watches.advance();
                if stall.has_stalled(&self.registration, &ticks(), written) {
                    return count;
                }
                yield_now().await;
            }
            unreachable!("forever")
        }
    }

    fn for_each_backend<F: Future<Output = ()> + 'static>(test: impl Fn(Fixture) -> F + 'static) {
        let test = Rc::new(test);
        for backend in [Backend::Uring, Backend::Fallback] {
            let test = Rc::clone(&test);
            let ran = Runtime::builder()
                .backend(backend)
                .block_on(async move { test(Fixture::new().await).await });
            match ran {
                Ok(()) => {}
                Err(error) if error.allows_fallback() => skip(format_args!("{backend:?}: {error}")),
                Err(error) => panic!("{backend:?}: {error}"),
            }
        }
    }

    #[test]
    fn a_client_that_acknowledges_a_little_of_a_long_send_between_checks_is_not_stalled() {
        for_each_backend(|fixture| async move {
            let near = Rc::clone(&fixture.near);
            let sending = spawn(async move { near.send_all(vec![0; 64 << 20]).await.map(drop) });
            let mut stall = Stall::of_send(fixture.near.send_progress(), &fixture.registration);
            for _ in 0..10 * TICKS {
                let before = fixture.acknowledged().bytes;
                while fixture.acknowledged().bytes == before {
                    let (bytes, _) = fixture.far.recv(vec![0; PIECE_BYTES]).await.unwrap();
                    assert!(bytes > 0);
                }
                fixture.watches.advance();
                assert!(!stall.has_stalled(&fixture.registration, &ticks(), 0));
            }
            assert!(!sending.is_finished(), "it is one send");
            // The client now takes only what fits into its socket buffer.
            assert!(fixture.ticks_until_stalled(&mut stall, 0).await >= TICKS - 1);
        });
    }

    #[test]
    fn acknowledged_bytes_extend_the_timeout_by_the_time_to_read_them_up_to_a_limit() {
        for_each_backend(|fixture| async move {
            for (read_bytes, expected) in [(100, TICKS + 10), (1, EXTENDED_MAX * TICKS)] {
                let ticks = Ticks {
                    read_bytes,
                    ..ticks()
                };
                let mut stall = Stall::of_send(fixture.near.send_progress(), &fixture.registration);
                fixture.near.send_all(vec![0; 1000]).await.unwrap();
                fixture.wait_for_all().await;
                let mut count = 0;
                while !stall.has_stalled(&fixture.registration, &ticks, 0) {
                    fixture.watches.advance();
                    count += 1;
                }
                assert_eq!(count, expected);
            }
            // The client's end was open until here.
            drop(fixture);
        });
    }

    #[test]
    fn only_acknowledged_responses_count_as_progress_if_other_data_is_sent() {
        for_each_backend(|fixture| async move {
            let mut stall =
                Stall::of_responses(fixture.near.send_progress(), &fixture.registration);
            assert_eq!(fixture.ticks_until_stalled(&mut stall, 0).await, TICKS - 1);
            // Data that belongs to no response is sent and acknowledged.
            let mut stall =
                Stall::of_responses(fixture.near.send_progress(), &fixture.registration);
            for look in 1..=TICKS {
                fixture.near.send_all(b"pong".as_slice()).await.unwrap();
                fixture.wait_for_all().await;
                fixture.watches.advance();
                let stalled = stall.has_stalled(&fixture.registration, &ticks(), 0);
                assert_eq!(stalled, look == TICKS);
            }
            // A written response restarts the timeout.
            assert_eq!(fixture.ticks_until_stalled(&mut stall, 1).await, TICKS);
        });
    }
}
