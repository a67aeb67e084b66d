//! The options, from environment variables.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use annulus_hyper::rustls::ServerConfig;
use annulus_hyper::rustls::pki_types::pem::PemObject;
use annulus_hyper::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;

const UPLOAD_BYTES: usize = 64 << 20;

pub(crate) struct Config {
    pub(crate) address: String,
    pub(crate) database_url: String,
    pub(crate) upload_bytes: usize,
    /// The folder of the database and of unfinished uploads.
    pub(crate) data: PathBuf,
    /// PEM files: the certificate with its chain, and the key.
    tls: Option<(PathBuf, PathBuf)>,
}

impl Config {
    pub(crate) fn from_environment() -> Result<Config, Error> {
        let path = |name| env::var_os(name).map(PathBuf::from);
        let data = path("SITE_DATA").unwrap_or_else(|| "data".into());
        let sqlite = || format!("sqlite://{}/site.db?mode=rwc", data.display());
        let tls = path("SITE_CERT").zip(path("SITE_KEY"));
        if tls.is_none() && (path("SITE_CERT").is_some() || path("SITE_KEY").is_some()) {
            return Err("SITE_CERT and SITE_KEY belong together; set both or neither".into());
        }
        let upload_bytes = env::var("SITE_UPLOAD_BYTES").ok();
        let upload_bytes = upload_bytes.map_or(Ok(UPLOAD_BYTES), |text| {
            text.parse()
                .map_err(|error| format!("SITE_UPLOAD_BYTES={text}: {error}; write a number"))
        });
        Ok(Config {
            address: env::var("SITE_ADDR").unwrap_or_else(|_| "127.0.0.1:8080".into()),
            database_url: env::var("DATABASE_URL").unwrap_or_else(|_| sqlite()),
            upload_bytes: upload_bytes?,
            tls,
            data,
        })
    }

    /// Returns the folder of the uploaded files.
    pub(crate) fn media(&self) -> PathBuf {
        self.data.join("media")
    }

    pub(crate) fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the certificate and its key. Returns `None` without TLS.
    pub(crate) fn load_tls(&self) -> Result<Option<ServerConfig>, Error> {
        let Some((chain, key)) = &self.tls else {
            return Ok(None);
        };
        let wrong = |path: &Path, error: &dyn Display| {
            let path = path.display();
            format!("cannot use {path}: {error}; it must be a PEM file")
        };
        let read = |path: &Path| {
            let text = std::fs::read(path).map_err(|error| wrong(path, &error))?;
            // Editors on Windows write a byte order mark.
            Ok::<_, String>(text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&text).to_vec())
        };
        let certificates = CertificateDer::pem_slice_iter(&read(chain)?)
            .collect::<Result<_, _>>()
            .map_err(|error| wrong(chain, &error))?;
        let private = PrivateKeyDer::from_pem_slice(&read(key)?);
        let key = private.map_err(|error| wrong(key, &error))?;
        let config = ServerConfig::builder().with_no_client_auth();
        Ok(Some(config.with_single_cert(certificates, key)?))
    }
}
