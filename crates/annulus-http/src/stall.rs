//! The send timeout: detects a client that acknowledges nothing of a response.
//!
//! The check runs several times within the timeout and compares what the client has acknowledged. The completion of a
//! send is no measure: a slow client may need minutes for one. A send that completes before the first check costs no
//! call.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use annulus::net::SendProgress;

use crate::per_core::Ticks;
use crate::watch::{Phase, Registration};

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
    /// The tick of the last progress.
    since: u64,
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
            since: registration.now(),
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
        if std::mem::replace(&mut self.written, written) != written {
            self.is_response = true;
            self.since = now;
        }
        if let Ok(Some(state)) = self.progress.look() {
            let before = self.acknowledged.replace(state.bytes);
            if self.is_response && before != Some(state.bytes) {
                self.since = now;
            }
            self.is_response = self.all_responses || (self.is_response && !state.all);
        }
        let left = (self.since + ticks.send).saturating_sub(now);
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
    use annulus::net::{TcpListener, TcpStream};
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

        fn acknowledged(&self) -> u64 {
            self.near.send_progress().look().unwrap().unwrap().bytes
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
                let before = fixture.acknowledged();
                while fixture.acknowledged() == before {
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
                while !fixture.near.send_progress().look().unwrap().unwrap().all {
                    yield_now().await;
                }
                fixture.watches.advance();
                let stalled = stall.has_stalled(&fixture.registration, &ticks(), 0);
                assert_eq!(stalled, look == TICKS);
            }
            // A written response restarts the timeout.
            assert_eq!(fixture.ticks_until_stalled(&mut stall, 1).await, TICKS);
        });
    }
}
