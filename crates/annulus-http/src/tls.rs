//! TLS: who the server is, from two files. Versions 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The configuration with a chain of certificates and its key, both PEM.
///
/// # Errors
///
/// A file can't be read, or is not what it should be; the text says which, and what to do.
pub fn config(certificates: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let bad = |path: &Path, what: &str, error: &dyn std::fmt::Display| {
        let says = format!(
            "{}: {error}; it must be a PEM file with {what}",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidInput, says)
    };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(certificates, "the certificate and its chain", &error))?;
    if chain.is_empty() {
        let error = "there is no certificate in it";
        return Err(bad(certificates, "the certificate and its chain", &error));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| bad(key, "the certificate's private key", &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| bad(key, "the private key of that certificate", &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
