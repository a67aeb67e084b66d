//! Connections whose time the test counts: it makes the looks, so no clock says how long a client has taken.

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

#[test]
fn connections_leave_descriptors_for_files_and_for_each_core() {
    assert_eq!(connections_that_fit(256, 1), 172);
    assert_eq!(connections_that_fit(1_048_576, 4), 196_597);
    for (descriptors, cores) in [(0, 1), (17, 4), (64, 64)] {
        assert_eq!(connections_that_fit(descriptors, cores), 1);
    }
}

/// Of the sockets between server and client: a client that takes so much makes room for more.
const SOCKET_BYTES: usize = 64 << 10;
/// A body of which these sockets hold little.
const BODY_BYTES: usize = 32 << 20;
/// Send timeouts that pass while a client takes something within each of them.
const TIMEOUTS: u64 = 4;
/// As long as a client may take to see an end, which is not to be chosen.
const SHORTEST: Duration = Duration::from_secs(2);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// The server of one core, without the task that looks at the time.
struct Ground {
    core: Rc<PerCore>,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
}

impl Ground {
    fn new(body_bytes: usize, tls: Option<Arc<ServerConfig>>) -> Ground {
        let site = SiteOptions {
            respond: Some((http::StatusCode::OK, vec![b'x'; body_bytes].into())),
            ..SiteOptions::default()
        };
        let mut options = Options::new(site);
        // No time is shorter, so that few looks make a timeout.
        options.limits.send_timeout = SHORTEST;
        options.limits.head_timeout = SHORTEST;
        // A response that has been begun is first watched when no other request has come for so long.
        options.limits.idle_timeout = SHORTEST;
        Ground {
            core: PerCore::new(&options).unwrap(),
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            tls,
        }
    }

    /// A connection that is served, and what the server sees of its client.
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

    /// Takes a little between two looks, for several send timeouts, and then the rest, until there are as many bytes of
    /// a body as there should be.
    async fn take_slowly(
        &self,
        client: &mut (impl AsyncRead + Unpin),
        progress: SendProgress,
        body_bytes: fn(&[u8]) -> usize,
    ) {
        let mut got = Vec::new();
        for look in 0..TIMEOUTS * self.core.ticks.send {
            let before = acknowledged(&progress);
            while acknowledged(&progress) == before {
                take(client, &mut got).await;
            }
            assert!(got.len() < BODY_BYTES, "all of it by look {look}");
            self.core.look();
            poll_rounds().await;
        }
        while body_bytes(&got) < BODY_BYTES {
            take(client, &mut got).await;
        }
        assert_eq!(body_bytes(&got), BODY_BYTES);
    }

    /// How many looks it takes until the server ends its connection, whose client takes nothing.
    async fn looks_until_ended(&self) -> u64 {
        for looks in 0..TIMEOUTS * self.core.ticks.send {
            if self.core.watches.connections() == 0 {
                return looks;
            }
            self.core.look();
            poll_rounds().await;
        }
        panic!("a client that takes nothing is not ended");
    }
}

/// What a look has woken runs, and what that wakes: several poll rounds of the core, of at most 256 polls each.
async fn poll_rounds() {
    for _ in 0..4 * 256 {
        yield_now().await;
    }
}

/// What the client has acknowledged; fails if the server has ended the connection.
fn acknowledged(progress: &SendProgress) -> u64 {
    let state = progress.look().unwrap();
    state.expect("the connection was ended").bytes
}

/// What there is to be read.
async fn take(client: &mut (impl AsyncRead + Unpin), got: &mut Vec<u8>) {
    let mut piece = [0; 16 << 10];
    let mut buf = ReadBuf::new(&mut piece);
    let read = |context: &mut Context<'_>| Pin::new(&mut *client).poll_read(context, &mut buf);
    poll_fn(read).await.unwrap();
    assert!(!buf.filled().is_empty(), "an end after {} bytes", got.len());
    got.extend_from_slice(buf.filled());
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

/// Bytes of the body in a response by HTTP/1.1.
fn body_bytes(got: &[u8]) -> usize {
    let end = got.windows(4).position(|four| four == b"\r\n\r\n");
    end.map_or(0, |end| got.len() - end - 4)
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

/// A request by HTTP/2 whose response may be sent at once: both windows have room for it.
fn http2_request() -> Vec<u8> {
    let window = u32::try_from(BODY_BYTES).unwrap().to_be_bytes();
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        // INITIAL_WINDOW_SIZE
        frame(SETTINGS, 0, 0, &[&[0, 4], &window[..]].concat()),
        frame(WINDOW_UPDATE, 0, 0, &window),
        // `GET /` of `http` at `a`, by the static table and a literal.
        frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            1,
            b"\x82\x86\x84\x41\x01a",
        ),
    ]
    .concat()
}

/// Bytes of the body in whole frames of HTTP/2, the last of which says that it is.
fn http2_body_bytes(got: &[u8]) -> usize {
    let (mut left, mut body) = (got, 0);
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

/// A server's certificate, and what its clients trust.
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
fn a_client_that_takes_a_little_at_a_time_gets_all_of_it_however_long_a_send_takes() {
    for_each_backend(|| async {
        let ground = Ground::new(BODY_BYTES, None);
        let (mut client, progress) = ground.connect().await;
        write(&mut client, REQUEST).await;
        (ground.take_slowly(&mut client, progress, body_bytes)).await;

        let (mut client, progress) = ground.connect().await;
        write(&mut client, &http2_request()).await;
        (ground.take_slowly(&mut client, progress, http2_body_bytes)).await;

        let (server, trusted) = certified();
        let ground = Ground::new(BODY_BYTES, Some(server));
        let (client, progress) = ground.connect().await;
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = TlsConnector::from(trusted)
            .connect(name, client)
            .await
            .unwrap();
        write(&mut client, REQUEST).await;
        (ground.take_slowly(&mut client, progress, body_bytes)).await;
    });
}

#[test]
fn a_client_that_takes_nothing_of_a_send_is_ended_after_the_send_timeout_and_not_before() {
    for_each_backend(|| async {
        let ground = Ground::new(BODY_BYTES, None);
        for request in [REQUEST.to_vec(), http2_request()] {
            let (mut client, progress) = ground.connect().await;
            write(&mut client, &request).await;
            // It is being sent.
            while acknowledged(&progress) == 0 {
                yield_now().await;
            }
            let looks = ground.looks_until_ended().await;
            assert!(looks >= ground.core.ticks.send, "{looks} looks");
        }
    });
}

#[test]
fn requests_that_follow_each_other_have_their_time_each() {
    for_each_backend(|| async {
        let ground = Ground::new(1, None);
        let (mut client, _) = ground.connect().await;
        // The end of one and the start of the next come together, for longer than one may take.
        let (start, end) = REQUEST.split_at(10);
        write(&mut client, start).await;
        for _ in 0..TIMEOUTS * ground.core.ticks.head {
            write(&mut client, &[end, start].concat()).await;
            let mut got = Vec::new();
            while body_bytes(&got) == 0 {
                take(&mut client, &mut got).await;
            }
            assert!(got.starts_with(b"HTTP/1.1 200 "));
            ground.core.look();
            poll_rounds().await;
        }
        // The one that has begun has its time, too, and no more.
        let taking = runtime::spawn(async move {
            let mut got = Vec::new();
            take(&mut client, &mut got).await;
            got
        });
        let mut looks = 0;
        while !taking.is_finished() {
            ground.core.look();
            looks += 1;
            poll_rounds().await;
        }
        assert!(looks >= ground.core.ticks.head - 1, "{looks} looks");
        assert!(taking.await.unwrap().starts_with(b"HTTP/1.1 408 "));
    });
}
