//! Timeouts of connections. The test advances the ticks itself, so that no clock is involved.

use std::pin::Pin;
use std::task::Context;

use annulus::Backend;
use annulus::net::SendProgress;
use annulus::runtime::{Runtime, yield_now};
use annulus_testing::skip::skip;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::site::SiteOptions;
use crate::stall::EXTENDED_MAX;

#[test]
fn the_connection_limit_leaves_descriptors_for_files_and_for_each_core() {
    assert_eq!(connections_that_fit(256, 1), 172);
    assert_eq!(connections_that_fit(1_048_576, 4), 196_597);
    for (descriptors, cores) in [(0, 1), (17, 4), (64, 64)] {
        assert_eq!(connections_that_fit(descriptors, cores), 1);
    }
}

/// The buffer size of the sockets: reading this much lets the server send more.
const SOCKET_BYTES: usize = 64 << 10;
/// The size of the body, of which these buffers hold little.
const BODY_BYTES: usize = 32 << 20;
/// The number of send timeouts that pass while the client reads something within each.
const TIMEOUTS: u64 = 4;
/// The length of `LINGER`, which has no option.
const SHORTEST: Duration = Duration::from_secs(2);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// The server of one core without the task that runs the ticks.
struct Fixture {
    core: Rc<PerCore>,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
}

impl Fixture {
    fn new(body_bytes: usize, tls: Option<Arc<ServerConfig>>) -> Fixture {
        let site = SiteOptions {
            respond: Some((http::StatusCode::OK, vec![b'x'; body_bytes].into())),
            ..SiteOptions::default()
        };
        let mut options = Options::new(site);
        // The shortest timeouts, so that few ticks are one.
        options.limits.send_timeout = SHORTEST;
        options.limits.head_timeout = SHORTEST;
        // A response in flight is first checked after the idle timeout without another request.
        options.limits.idle_timeout = SHORTEST;
        Fixture {
            core: PerCore::new(&options).unwrap(),
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            tls,
        }
    }

    /// Returns a client of a served connection, and the server's view of the client.
    async fn connect(&self) -> (AsyncStream<TcpStream>, SendProgress) {
        let address = self.listener.local_addr().unwrap();
        let connecting = runtime::spawn(TcpStream::connect(address));
        let near = self.listener.accept().await.unwrap();
        let far = connecting.await.unwrap().unwrap();
        near.options().set_send_buffer_bytes(SOCKET_BYTES).unwrap();
        far.options()
            .set_receive_buffer_bytes(SOCKET_BYTES)
            .unwrap();
        let progress = near.send_progress();
        start(near, &self.core, self.tls.as_ref());
        (AsyncStream::new(far), progress)
    }

    /// Reads a little between two ticks for several send timeouts, and then the rest, until `body_bytes` reports the
    /// whole body.
    async fn take_slowly(
        &self,
        client: &mut (impl AsyncRead + Unpin),
        progress: SendProgress,
        body_bytes: fn(&[u8]) -> usize,
    ) {
        let mut received = Vec::new();
        for tick in 0..TIMEOUTS * self.core.ticks.send {
            let before = acknowledged(&progress);
            while acknowledged(&progress) == before {
                take(client, &mut received).await;
            }
            assert!(received.len() < BODY_BYTES, "the whole body by tick {tick}");
            self.core.tick();
            poll_rounds().await;
        }
        while body_bytes(&received) < BODY_BYTES {
            take(client, &mut received).await;
        }
        assert_eq!(body_bytes(&received), BODY_BYTES);
    }

    /// Returns the number of ticks until the server ends the connection of a client that reads nothing. On a busy
    /// machine the kernel acknowledges what the socket holds late and in pieces, and each piece extends the timeout.
    async fn ticks_until_ended(&self, progress: &SendProgress) -> u64 {
        let bytes = || {
            progress
                .acknowledged()
                .ok()
                .flatten()
                .map(|state| state.bytes)
        };
        let (mut ticks, mut since, mut before) = (0, 0, bytes());
        while self.core.watches.connections() != 0 {
            assert!(
                since < 2 * EXTENDED_MAX * self.core.ticks.send,
                "the connection of a client that reads nothing is not ended"
            );
            self.core.tick();
            poll_rounds().await;
            let now = bytes();
            since = if now == before { since + 1 } else { 0 };
            (before, ticks) = (now, ticks + 1);
        }
        ticks
    }
}

/// Runs the tasks that a tick has woken, and those that they wake: several poll rounds of at most 256 polls each.
async fn poll_rounds() {
    for _ in 0..4 * 256 {
        yield_now().await;
    }
}

/// Returns the bytes that the client has acknowledged. Panics if the server has ended the connection.
fn acknowledged(progress: &SendProgress) -> u64 {
    let state = progress.acknowledged().unwrap();
    state.expect("the connection was ended").bytes
}

/// Reads once.
async fn take(client: &mut (impl AsyncRead + Unpin), received: &mut Vec<u8>) {
    let mut piece = [0; 16 << 10];
    let mut buf = ReadBuf::new(&mut piece);
    let read = |context: &mut Context<'_>| Pin::new(&mut *client).poll_read(context, &mut buf);
    poll_fn(read).await.unwrap();
    assert!(
        !buf.filled().is_empty(),
        "an end after {} bytes",
        received.len()
    );
    received.extend_from_slice(buf.filled());
}

async fn write(client: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    let mut left = bytes;
    while !left.is_empty() {
        let written = poll_fn(|context| Pin::new(&mut *client).poll_write(context, left));
        left = &left[written.await.unwrap()..];
    }
    poll_fn(|context| Pin::new(&mut *client).poll_flush(context))
        .await
        .unwrap();
}

/// Returns the number of body bytes in an HTTP/1.1 response.
fn body_bytes(received: &[u8]) -> usize {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n");
    end.map_or(0, |end| received.len() - end - 4)
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let bytes = u8::try_from(payload.len()).unwrap();
    [&[0, 0, bytes, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns an HTTP/2 request with windows that let the whole response through.
fn http2_request() -> Vec<u8> {
    let window = u32::try_from(BODY_BYTES).unwrap().to_be_bytes();
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        // INITIAL_WINDOW_SIZE
        frame(SETTINGS, 0, 0, &[&[0, 4], &window[..]].concat()),
        frame(WINDOW_UPDATE, 0, 0, &window),
        // `GET /` with scheme `http` and authority `a`: entries of the static table, and a literal.
        frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            1,
            b"\x82\x86\x84\x41\x01a",
        ),
    ]
    .concat()
}

/// Returns the number of body bytes in complete HTTP/2 frames, and checks that only the last one ends the stream.
fn http2_body_bytes(received: &[u8]) -> usize {
    let (mut left, mut body) = (received, 0);
    while let Some((head, rest)) = left.split_first_chunk::<9>() {
        let bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((_, rest)) = rest.split_at_checked(bytes) else {
            break;
        };
        if head[3] == DATA {
            body += bytes;
            assert_eq!(head[4] & END_STREAM != 0, body == BODY_BYTES);
        }
        left = rest;
    }
    body
}

fn for_each_backend<F: Future<Output = ()> + 'static>(test: impl Fn() -> F + 'static) {
    let test = Rc::new(test);
    for backend in [Backend::Uring, Backend::Fallback] {
        let test = Rc::clone(&test);
        let ran = Runtime::builder()
            .backend(backend)
            .block_on(async move { test().await });
        match ran {
            Ok(()) => {}
            Err(error) if error.allows_fallback() => skip(format_args!("{backend:?}: {error}")),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

/// Returns the server's TLS configuration, and that of clients that trust it.
fn certified() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

#[test]
fn a_slow_client_gets_the_whole_body_however_long_a_send_takes() {
    for_each_backend(|| async {
        let fixture = Fixture::new(BODY_BYTES, None);
        let (mut client, progress) = fixture.connect().await;
        write(&mut client, REQUEST).await;
        (fixture.take_slowly(&mut client, progress, body_bytes)).await;

        let (mut client, progress) = fixture.connect().await;
        write(&mut client, &http2_request()).await;
        (fixture.take_slowly(&mut client, progress, http2_body_bytes)).await;

        let (server, trusted) = certified();
        let fixture = Fixture::new(BODY_BYTES, Some(server));
        let (client, progress) = fixture.connect().await;
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = TlsConnector::from(trusted)
            .connect(name, client)
            .await
            .unwrap();
        write(&mut client, REQUEST).await;
        (fixture.take_slowly(&mut client, progress, body_bytes)).await;
    });
}

#[test]
fn a_client_that_reads_nothing_is_closed_after_the_send_timeout_and_not_before() {
    for_each_backend(|| async {
        let fixture = Fixture::new(BODY_BYTES, None);
        for request in [REQUEST.to_vec(), http2_request()] {
            let (mut client, progress) = fixture.connect().await;
            write(&mut client, &request).await;
            // The response is being sent.
            while acknowledged(&progress) == 0 {
                yield_now().await;
            }
            let ticks = fixture.ticks_until_ended(&progress).await;
            assert!(ticks >= fixture.core.ticks.send, "{ticks} ticks");
        }
    });
}

#[test]
fn each_request_of_a_connection_has_its_own_head_timeout() {
    for_each_backend(|| async {
        let fixture = Fixture::new(1, None);
        let (mut client, _) = fixture.connect().await;
        // Each write has the end of one request and the start of the next, for longer than a head may take.
        let (start, end) = REQUEST.split_at(10);
        write(&mut client, start).await;
        for _ in 0..TIMEOUTS * fixture.core.ticks.head {
            write(&mut client, &[end, start].concat()).await;
            let mut received = Vec::new();
            while body_bytes(&received) == 0 {
                take(&mut client, &mut received).await;
            }
            assert!(received.starts_with(b"HTTP/1.1 200 "));
            fixture.core.tick();
            poll_rounds().await;
        }
        // The last request, which has begun, also has its time and no more.
        let taking = runtime::spawn(async move {
            let mut received = Vec::new();
            take(&mut client, &mut received).await;
            received
        });
        let mut ticks = 0;
        while !taking.is_finished() {
            fixture.core.tick();
            ticks += 1;
            poll_rounds().await;
        }
        assert!(ticks >= fixture.core.ticks.head - 1, "{ticks} ticks");
        assert!(taking.await.unwrap().starts_with(b"HTTP/1.1 408 "));
    });
}
