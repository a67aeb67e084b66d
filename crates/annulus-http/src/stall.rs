//! Whether a client goes on taking what it is sent: looked at several times within the send timeout, by what it has
//! acknowledged. A send ends when all of it has left, which may take a slow client minutes, so its end says nothing.
//! The kernel is asked nothing about a send that ends before the first look.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use annulus::net::SendProgress;

use crate::per_core::Ticks;
use crate::watch::{Phase, Registration};

/// Looks until a client is looked at for the first time: what it takes from then on is seen.
pub(crate) const FIRST_LOOK: u64 = 1;

/// One client, from the beginning of a send on.
pub(crate) struct Stall {
    progress: SendProgress,
    /// What it had acknowledged at the last look.
    acknowledged: Option<u64>,
    /// Bytes of responses that had been written to the stream by then, where they are counted (HTTP/2).
    written: u64,
    /// Whether what it acknowledges belongs to a response. The responses to a client's pings say nothing.
    is_response: bool,
    /// All of it does.
    all_responses: bool,
    /// The last look at which it had taken something.
    since: u64,
}

impl Stall {
    /// Of a connection that sends nothing but answers, and waits for one of them to be sent.
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

    /// Of a connection that also sends what belongs to no response.
    pub(crate) fn of_responses(progress: SendProgress, registration: &Registration) -> Stall {
        Stall {
            is_response: false,
            all_responses: false,
            ..Stall::of_send(progress, registration)
        }
    }

    /// From now on everything counts that the client acknowledges: no more answers are written, and the last of them
    /// are on their way.
    pub(crate) fn count_all(&mut self) {
        (self.is_response, self.all_responses) = (true, true);
    }

    /// Looks whether the client has taken nothing for as long as the send timeout; `written` grows with the bytes of
    /// answers that were written. If it has taken something, the time until the next look is set.
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
            registration.set(Phase::Busy, left.min(ticks.send_look));
        }
        left == 0
    }
}

/// Awaits the end of a send; `None` if the client takes nothing of it for as long as the send timeout.
pub(crate) async fn taken<F: Future>(
    registration: &Registration,
    ticks: &Ticks,
    progress: SendProgress,
    send: F,
) -> Option<F::Output> {
    registration.set(Phase::Busy, FIRST_LOOK);
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

    /// Looks that make a send timeout.
    const LOOKS: u64 = 8;
    const PIECE_BYTES: usize = 64 << 10;

    fn ticks() -> Ticks {
        Ticks {
            head: 0,
            body: 0,
            idle: 0,
            send: LOOKS,
            send_look: 1,
            handshake: 0,
            linger: 0,
        }
    }

    /// A client, a server's end with small buffers, and the server's view of the client. Looks are made by the test.
    struct Ground {
        watches: Rc<Watches>,
        registration: Registration,
        near: Rc<TcpStream>,
        far: TcpStream,
    }

    impl Ground {
        async fn new() -> Ground {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let connecting = spawn(TcpStream::connect(listener.local_addr().unwrap()));
            let near = listener.accept().await.unwrap();
            let far = connecting.await.unwrap().unwrap();
            near.options().set_send_buffer_bytes(PIECE_BYTES).unwrap();
            far.options().set_receive_buffer_bytes(PIECE_BYTES).unwrap();
            let watches = Watches::new(Duration::from_secs(1));
            Ground {
                registration: watches.enter(),
                watches,
                near: Rc::new(near),
                far,
            }
        }

        fn acknowledged(&self) -> u64 {
            self.near.send_progress().look().unwrap().unwrap().bytes
        }

        /// How many looks find it in order.
        async fn looks(&self, stall: &mut Stall, written: u64) -> u64 {
            for looks in 0.. {
                self.watches.look();
                if stall.has_stalled(&self.registration, &ticks(), written) {
                    return looks;
                }
                yield_now().await;
            }
            unreachable!("forever")
        }
    }

    fn for_each_backend<F: Future<Output = ()> + 'static>(test: impl Fn(Ground) -> F + 'static) {
        let test = Rc::new(test);
        for backend in [Backend::Uring, Backend::Fallback] {
            let test = Rc::clone(&test);
            let ran = Runtime::builder()
                .backend(backend)
                .block_on(async move { test(Ground::new().await).await });
            match ran {
                Ok(()) => {}
                Err(error) if error.allows_fallback() => skip(format_args!("{backend:?}: {error}")),
                Err(error) => panic!("{backend:?}: {error}"),
            }
        }
    }

    #[test]
    fn a_client_that_takes_a_little_of_a_long_send_between_looks_is_waited_for() {
        for_each_backend(|ground| async move {
            let near = Rc::clone(&ground.near);
            let sending = spawn(async move { near.send_all(vec![0; 64 << 20]).await.map(drop) });
            let mut stall = Stall::of_send(ground.near.send_progress(), &ground.registration);
            for _ in 0..10 * LOOKS {
                let before = ground.acknowledged();
                while ground.acknowledged() == before {
                    let (bytes, _) = ground.far.recv(vec![0; PIECE_BYTES]).await.unwrap();
                    assert!(bytes > 0);
                }
                ground.watches.look();
                assert!(!stall.has_stalled(&ground.registration, &ticks(), 0));
            }
            assert!(!sending.is_finished(), "it is one send");
            // It takes nothing more, but what its socket has room for.
            assert!(ground.looks(&mut stall, 0).await >= LOOKS - 1);
        });
    }

    #[test]
    fn only_responses_count_where_there_is_more_than_responses() {
        for_each_backend(|ground| async move {
            let mut stall = Stall::of_responses(ground.near.send_progress(), &ground.registration);
            assert_eq!(ground.looks(&mut stall, 0).await, LOOKS - 1);
            // What is no response is sent and acknowledged.
            let mut stall = Stall::of_responses(ground.near.send_progress(), &ground.registration);
            for look in 1..=LOOKS {
                ground.near.send_all(b"pong".as_slice()).await.unwrap();
                while !ground.near.send_progress().look().unwrap().unwrap().all {
                    yield_now().await;
                }
                ground.watches.look();
                let stalled = stall.has_stalled(&ground.registration, &ticks(), 0);
                assert_eq!(stalled, look == LOOKS);
            }
            // A response is written: it begins anew.
            assert_eq!(ground.looks(&mut stall, 1).await, LOOKS);
        });
    }
}
