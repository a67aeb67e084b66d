//! The TLS configuration: a certificate and its key, TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Returns a TLS configuration from a certificate chain and its private key, both PEM files.
///
/// # Errors
///
/// Fails if a file cannot be read, or does not contain what it must. The message names the file and
/// what it must contain.
pub fn config(certificates: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let bad = |path: &Path, content: &str, error: &dyn std::fmt::Display| {
        let message = format!(
            "cannot use {}: {error}; it must be a PEM file with {content}",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(certificates, "the certificate and its chain", &error))?;
    if chain.is_empty() {
        let error = "it contains no certificate";
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
