//! The TLS configuration: a certificate and its key, TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use memchr::memmem;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The object identifier of P-521 in a key: secp521r1, 1.3.132.0.35.
const P521: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// Returns a TLS configuration from a certificate chain and its private key, both PEM files. A UTF-8 byte order mark is
/// ignored. Keys are RSA, Ed25519, or ECDSA with P-256 or P-384.
///
/// # Errors
///
/// Fails if a file cannot be read, or does not contain what it must. The message names the file and
/// what it must contain.
pub fn config(certificates: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let chain = read(certificates).and_then(|text| {
        let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| error.to_string())?;
        match chain.is_empty() {
            true => Err("it contains no certificate".to_owned()),
            false => Ok(chain),
        }
    });
    let chain =
        chain.map_err(|error| wrong(certificates, &error, "the certificate and its chain"))?;
    let private = read(key).and_then(|text| {
        let private = PrivateKeyDer::from_pem_slice(&text);
        private.map_err(|error| match memmem::find(&text, b"ENCRYPTED") {
            Some(_) => "the key is encrypted, and the server cannot ask for its passphrase; decrypt it with `openssl \
                        pkey -in FILE -out NEW`, in a file that only the server's user can read"
                .to_owned(),
            None => error.to_string(),
        })
    });
    let private = private.map_err(|error| wrong(key, &error, "the certificate's private key"))?;
    let is_p521 = memmem::find(private.secret_der(), P521).is_some();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            let error = match is_p521 {
                true => "the curve P-521 of the key is not supported; make a key and a certificate with P-256: `openssl \
                         ecparam -name prime256v1 -genkey -noout`"
                    .to_owned(),
                false => error.to_string(),
            };
            wrong(key, &error, "the private key of that certificate")
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reads a PEM file. Editors on Windows write a byte order mark before the text.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = fs::read(path).map_err(|error| error.to_string())?;
    if text.starts_with(b"\xEF\xBB\xBF") {
        text.drain(..3);
    }
    match text.starts_with(b"\xFF\xFE") || text.starts_with(b"\xFE\xFF") {
        true => Err("its text is UTF-16; save it as ASCII or UTF-8".to_owned()),
        false => Ok(text),
    }
}

fn wrong(path: &Path, error: &str, content: &str) -> io::Error {
    let path = path.display();
    let message = format!("cannot use {path}: {error}; it must be a PEM file with {content}");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use annulus_testing::skip::skip;

    use super::*;

    /// Writes a certificate and its key, and returns their paths.
    fn pair(dir: &Path) -> [PathBuf; 2] {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let paths = ["cert.pem", "key.pem"].map(|name| dir.join(name));
        fs::write(&paths[0], made.cert.pem()).unwrap();
        fs::write(&paths[1], made.signing_key.serialize_pem()).unwrap();
        paths
    }

    fn error(certificates: &Path, key: &Path) -> String {
        let error = config(certificates, key).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        error.to_string()
    }

    #[test]
    fn a_byte_order_mark_is_ignored_and_utf_16_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = pair(dir.path());
        config(&cert, &key).unwrap();
        for path in [&cert, &key] {
            let marked = [b"\xEF\xBB\xBF".to_vec(), fs::read(path).unwrap()].concat();
            fs::write(path, marked).unwrap();
            config(&cert, &key).unwrap();
        }
        for path in [&key, &cert] {
            let text = fs::read_to_string(path).unwrap();
            let wide = text.encode_utf16().flat_map(u16::to_le_bytes);
            fs::write(path, wide.collect::<Vec<u8>>()).unwrap();
            let error = error(&cert, &key);
            assert!(error.contains("UTF-16; save it"), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn unusable_keys_are_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = pair(dir.path());
        let openssl = |line: &str| {
            let line = line.replace("KEY", key.to_str().unwrap());
            let line = line.replace("CERT", cert.to_str().unwrap());
            let output = Command::new("openssl").args(line.split(' ')).output();
            let output = output.inspect_err(|error| skip(format_args!("no openssl: {error}")));
            output.is_ok_and(|output| {
                assert!(output.status.success(), "{line}: {output:?}");
                true
            })
        };
        for (made, expected) in [
            (
                "pkcs8 -topk8 -in KEY -passout pass:word -out KEY.pk8",
                "cannot ask for its passphrase",
            ),
            (
                "ec -in KEY -aes128 -passout pass:word -out KEY.pk8",
                "cannot ask for its passphrase",
            ),
            (
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp521r1 -nodes -subj /CN=a -keyout KEY.pk8 -out CERT",
                "P-521 of the key is not supported",
            ),
        ] {
            if !openssl(made) {
                return;
            }
            let error = error(&cert, &PathBuf::from(format!("{}.pk8", key.display())));
            assert!(
                error.contains(expected) && error.contains("openssl"),
                "{error}"
            );
        }
        fs::write(&key, "nothing").unwrap();
        assert!(error(&cert, &key).contains("the certificate's private key"));
        assert!(error(&key, &key).contains("it contains no certificate"));
        assert!(error(&dir.path().join("none"), &key).contains("No such file"));
    }
}
