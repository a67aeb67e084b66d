//! TLS, and the replacement of a running server's certificate.

use annulus_hyper::Tls;
use annulus_hyper::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use annulus_hyper::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

/// Returns a new certificate, and a server's configuration with it.
fn certified() -> (CertificateDer<'static>, ServerConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    (certificate, config)
}

/// Connects as a client that trusts one certificate only.
async fn connect(
    site: &Site,
    trusted: &CertificateDer<'static>,
    protocol: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, site.connect().await).await
}

/// Makes a request on an HTTP/1.1 connection that stays open.
async fn assert_served(stream: &mut TlsStream<TcpStream>) {
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nHello, World!") {
        let bytes = stream.read_buf(&mut text).await.unwrap();
        assert_ne!(bytes, 0, "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn both_versions_of_http_and_websockets_are_served_over_tls() {
    const BYTES: usize = 5_000_000;
    let (certificate, config) = certified();
    let tls = Tls::new(config);
    let upload = async |body: Bytes| body.len().to_string();
    let app = || {
        let app = handlers().route("/upload", post(upload));
        app.layer(axum::extract::DefaultBodyLimit::disable())
            .nest("/ws", websockets())
    };
    let with_tls = |server: Serve<Router>| server.tls(tls.clone());
    each_way_with(app, with_tls, |site| async {
        let mut stream = connect(&site, &certificate, "http/1.1").await.unwrap();
        for _ in 0..10 {
            assert_served(&mut stream).await;
        }
        let last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(last).await.unwrap();
        let mut text = String::new();
        // Without `close_notify`, this is an error.
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("\r\n\r\nHello, World!"), "{text}");

        let stream = connect(&site, &certificate, "h2").await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let io = TokioIo::new(stream);
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (mut requests, connection) = shaken.await.unwrap();
        tokio::spawn(connection);
        let upload = Request::post("https://x/upload").body("x".repeat(BYTES));
        let response = requests.send_request(upload.unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), BYTES.to_string());

        let stream = connect(&site, &certificate, "http/1.1").await.unwrap();
        let shaken = tokio_tungstenite::client_async("ws://localhost/ws", stream);
        let (mut socket, _) = shaken.await.unwrap();
        for bytes in [0, 125, 65_536, BYTES] {
            let message = tungstenite::Message::binary(vec![7; bytes]);
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        let close = socket.next().await.unwrap().unwrap();
        assert_eq!(close, tungstenite::Message::Close(None));
        site
    });
}

#[test]
fn a_replaced_certificate_is_used_from_the_next_handshake_on() {
    let (first, config) = certified();
    let config = Arc::new(config);
    let tls = Tls::new(Arc::clone(&config));
    let with_tls = |server: Serve<Router>| server.tls(tls.clone());
    each_way_with(handlers, with_tls, |site| async {
        tls.replace(Arc::clone(&config));
        let mut open = connect(&site, &first, "http/1.1").await.unwrap();
        assert_served(&mut open).await;
        let (second, config) = certified();
        tls.replace(config);
        let error = connect(&site, &first, "http/1.1").await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        let mut next = connect(&site, &second, "http/1.1").await.unwrap();
        assert_served(&mut next).await;
        // The open connection goes on.
        assert_served(&mut open).await;
        site
    });
}

#[test]
fn a_client_that_speaks_no_tls_affects_no_other() {
    let (certificate, config) = certified();
    let tls = Tls::new(config);
    let with_tls = |server: Serve<Router>| server.tls(tls.clone());
    each_way_with(handlers, with_tls, |site| async {
        let mut stream = site.connect().await;
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut received = Vec::new();
        // An alert, which a reset may overtake.
        drop(stream.read_to_end(&mut received).await);
        assert!(received.len() < 100, "{received:?}");
        let mut silent = site.connect().await;
        let mut next = connect(&site, &certificate, "http/1.1").await.unwrap();
        assert_served(&mut next).await;
        silent.shutdown().await.unwrap();
        site
    });
}
