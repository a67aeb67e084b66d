//! TLS over Annulus's streams and runtime: tokio-rustls at both ends, on both backends.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use annulus::Backend;
use annulus::net::{AsyncStream, TcpListener, TcpStream};
use annulus::runtime::{self, JoinHandle, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

type Client = client::TlsStream<AsyncStream<TcpStream>>;

/// Returns both ends, with a self-signed certificate.
fn certified() -> (TlsAcceptor, TlsConnector) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(certificate.signing_key.serialize_der().into());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (
        TlsAcceptor::from(Arc::new(server)),
        TlsConnector::from(Arc::new(client)),
    )
}

/// An echo server, and the results of its connections.
struct Server {
    address: SocketAddr,
    ends: Rc<RefCell<Vec<Option<ErrorKind>>>>,
    connector: TlsConnector,
    task: JoinHandle<()>,
}

impl Server {
    fn start() -> io::Result<Server> {
        let (acceptor, connector) = certified();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        let ends = Rc::new(RefCell::new(Vec::new()));
        let results = Rc::clone(&ends);
        let task = runtime::spawn(async move {
            let mut incoming = listener.accept_multishot();
            while let Some(Ok(stream)) = incoming.next().await {
                let (acceptor, results) = (acceptor.clone(), Rc::clone(&results));
                drop(runtime::spawn(async move {
                    let end = echo(stream, acceptor).await;
                    results
                        .borrow_mut()
                        .push(end.err().map(|error| error.kind()));
                }));
            }
        });
        Ok(Server {
            address,
            ends,
            connector,
            task,
        })
    }

    async fn connect(&self) -> io::Result<Client> {
        let stream = AsyncStream::new(TcpStream::connect(self.address).await?);
        let name = ServerName::try_from("localhost").unwrap();
        self.connector.connect(name, stream).await
    }

    /// Waits until `connections` connections have ended, and returns their errors.
    async fn ended(&self, connections: usize) -> Vec<Option<ErrorKind>> {
        while self.ends.borrow().len() < connections {
            annulus::time::sleep(Duration::from_millis(1)).await;
        }
        self.ends.borrow().clone()
    }
}

/// Serves a connection: echoes everything.
async fn echo(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut stream = acceptor.accept(AsyncStream::new(stream)).await?;
    let mut buf = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buf).await? {
            0 => return stream.shutdown().await,
            bytes => {
                stream.write_all(&buf[..bytes]).await?;
                stream.flush().await?;
            }
        }
    }
}

/// Runs `test` with a server on each backend.
fn on_each<F>(test: impl Fn(Rc<Server>) -> F + Copy + 'static)
where
    F: Future<Output = io::Result<()>>,
{
    for backend in [Backend::Fallback, Backend::Uring] {
        let run = Runtime::builder().backend(backend).block_on(async move {
            let server = Rc::new(Server::start()?);
            let outcome = annulus::time::timeout(
                Duration::from_secs(300),
                Box::pin(test(Rc::clone(&server))),
            );
            let outcome = outcome.await;
            server.task.abort();
            outcome?
        });
        match run {
            Ok(outcome) => outcome.unwrap_or_else(|error| panic!("{backend:?}: {error}")),
            Err(error) if error.allows_fallback() => annulus_testing::skip::skip(error),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

fn bytes_of(count: usize) -> Vec<u8> {
    fastrand::Rng::with_seed(count as u64).fill_vec(count)
}

trait FillVec {
    fn fill_vec(self, count: usize) -> Vec<u8>;
}

impl FillVec for fastrand::Rng {
    fn fill_vec(mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

#[test]
fn messages_from_one_byte_to_five_megabytes_are_echoed_unchanged() {
    on_each(|server| async move {
        for count in [1, 100, 16_383, 16_384, 16_385, 65_537, 1_000_000, 5_000_000] {
            let (sent, mut received) = (bytes_of(count), vec![0; count]);
            // In both directions concurrently, because five megabytes would fill both sockets.
            let (mut read, mut write) = tokio::io::split(server.connect().await?);
            let expected = sent.clone();
            let writes = runtime::spawn(async move {
                write.write_all(&sent).await?;
                write.flush().await?;
                io::Result::Ok(write)
            });
            read.read_exact(&mut received).await?;
            assert!(received == expected, "{count} bytes were changed");
            drop(writes.await??);
        }
        Ok(())
    });
}

#[test]
fn a_client_that_shuts_down_sending_receives_the_rest_and_then_the_end() {
    on_each(|server| async move {
        let stream = server.connect().await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let sent = bytes_of(300_000);
        let expected = sent.clone();
        let writes = runtime::spawn(async move {
            write.write_all(&sent).await?;
            write.shutdown().await
        });
        let mut received = Vec::new();
        read.read_to_end(&mut received).await?;
        assert!(received == expected);
        writes.await??;
        assert_eq!(server.ended(1).await, [None]);
        Ok(())
    });
}

#[test]
fn a_client_that_disconnects_ends_only_its_own_connection() {
    on_each(|server| async move {
        let mut other = server.connect().await?;
        for count in [0, 1, 200_000] {
            let mut client = server.connect().await?;
            client.write_all(&bytes_of(count)).await?;
            client.flush().await?;
            // Without `close_notify`, and with unread data.
            let (stream, _) = client.into_inner();
            let stream = stream.into_inner();
            stream.set_linger(Some(Duration::ZERO))?;
            drop(stream);
        }
        let ends = server.ended(3).await;
        assert!(ends.iter().all(Option::is_some), "{ends:?}");
        other.write_all(b"alive").await?;
        other.flush().await?;
        let mut back = [0; 5];
        other.read_exact(&mut back).await?;
        assert_eq!(&back, b"alive");
        Ok(())
    });
}

#[test]
fn many_connections_are_served_concurrently() {
    on_each(|server| async move {
        let clients: Vec<_> = (1..=30_usize)
            .map(|number| {
                let server = Rc::clone(&server);
                runtime::spawn(async move {
                    let mut stream = server.connect().await?;
                    for round in 0..10 {
                        let sent = bytes_of(number * 37 + round * 501);
                        stream.write_all(&sent).await?;
                        stream.flush().await?;
                        let mut back = vec![0; sent.len()];
                        stream.read_exact(&mut back).await?;
                        assert!(back == sent, "client {number}, round {round}");
                    }
                    stream.shutdown().await
                })
            })
            .collect();
        for client in clients {
            client.await??;
        }
        assert!(server.ended(30).await.iter().all(Option::is_none));
        Ok(())
    });
}
