//! TLS by rustls, with a certificate that can be replaced while the server runs. Feature `tls`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};

use annulus::net::ConnectedStream;
use hyper_util::rt::TokioIo;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, server};

use super::io::{HyperStream, PollEnd};

/// A stream after the handshake. It is `Send`, so upgraded connections may be used on any thread.
pub(crate) type TlsStream<S> = TokioIo<server::TlsStream<TokioIo<HyperStream<S>>>>;

/// A TLS configuration for [`Server::with_tls`](super::Server::with_tls). Clones share it, so that
/// [`replace`](Tls::replace) on one of them changes the certificate of a running server.
///
/// ```no_run
/// use annulus_hyper::Tls;
/// use annulus_hyper::rustls::ServerConfig;
/// use annulus_hyper::rustls::pki_types::pem::PemObject;
/// use annulus_hyper::rustls::pki_types::{CertificateDer, PrivateKeyDer};
///
/// fn load() -> Result<ServerConfig, Box<dyn std::error::Error>> {
///     let chain = CertificateDer::pem_file_iter("chain.pem")?.collect::<Result<_, _>>()?;
///     let key = PrivateKeyDer::from_pem_file("key.pem")?;
///     Ok(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?)
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new(load()?);
/// // Later, for example on SIGHUP:
/// tls.replace(load()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    /// Wraps a configuration. If it names no protocols for ALPN, HTTP/2 and HTTP/1.1 are offered.
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> Tls {
        Tls(Arc::new(RwLock::new(offering_protocols(config.into()))))
    }

    /// Replaces the configuration, and with it the certificate. Handshakes that begin later use the new one, and open
    /// connections go on. The protocols for ALPN are set as by [`new`](Tls::new).
    pub fn replace(&self, config: impl Into<Arc<ServerConfig>>) {
        let config = offering_protocols(config.into());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Performs a handshake. Returns the stream, and whether the client uses HTTP/2.
    pub(crate) async fn accept<S: ConnectedStream>(
        &self,
        stream: HyperStream<S>,
        poll_end: &PollEnd<S>,
    ) -> io::Result<(TlsStream<S>, bool)> {
        let config = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        let mut handshake = pin!(TlsAcceptor::from(config).accept(TokioIo::new(stream)));
        let stream = poll_fn(|context| {
            let polled = handshake.as_mut().poll(context);
            poll_end.submit();
            polled
        })
        .await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((TokioIo::new(stream), is_http2))
    }
}

fn offering_protocols(mut config: Arc<ServerConfig>) -> Arc<ServerConfig> {
    if config.alpn_protocols.is_empty() {
        Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    }
    config
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
