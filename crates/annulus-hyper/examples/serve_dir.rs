//! Serves a folder with `ServeDir` of tower-http, whose backend is `annulus::tokio::fs`:
//! `cargo run --release -p annulus-hyper --features axum --example serve_dir -- FOLDER 127.0.0.1:8080`

use std::error::Error;
use std::fs::Metadata;
use std::io::{self, SeekFrom};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use annulus::tokio::fs; // `use tokio::fs;` instead takes the files of Tokio
use axum::Router;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tokio::net::TcpListener;
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, File};

type Returned<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

#[derive(Clone)]
struct Files;

impl Backend for Files {
    type File = Open;
    type Metadata = Metadata;
    type OpenFuture = Returned<'static, Open>;
    type MetadataFuture = Returned<'static, Metadata>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        Box::pin(async { fs::File::open(path).await.map(Open) })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        Box::pin(fs::metadata(path))
    }
}

struct Open(fs::File);

impl File for Open {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Returned<'a, Metadata>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(self.0.metadata())
    }
}

impl AsyncRead for Open {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl AsyncSeek for Open {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(to)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(context)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_dir FOLDER ADDRESS:PORT".into());
    };
    let listener = TcpListener::bind(address).await?;
    let router = Router::new().fallback_service(ServeDir::with_backend(folder, Files));
    Ok(axum::serve(listener, router).await?)
}
