//! Serves a folder with axum, as tower-http's `ServeDir` does, without ranges and conditions, which the servers of
//! `annulus-http` have:
//! `cargo run --release -p annulus-hyper --features axum --example serve_dir -- FOLDER 127.0.0.1:8080`

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use annulus::tokio::fs; // `use tokio::fs;` instead takes the files of Tokio
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// The size of a part of a response, bytes.
const PART_BYTES: usize = 64 << 10;

/// Returns the path below `root` that a request asks for; `None` if it leaves the folder, or is none.
fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let hex = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&hex).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let path = PathBuf::from(String::from_utf8(bytes).ok()?.trim_start_matches('/'));
    let stays = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    stays.then(|| root.join(path))
}

fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("json") => "application/json",
        Some("png") => "image/png",
        Some("svg") => "image/svg+xml",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Returns the file, or `index.html` of a folder.
async fn respond(mut path: PathBuf) -> io::Result<Response> {
    if fs::metadata(&path).await?.is_dir() {
        path.push("index.html");
    }
    let file = fs::File::open(&path).await?;
    let bytes = file.metadata().await?.len();
    // Not more than the length, if the file grows meanwhile.
    let parts = stream::try_unfold(file.take(bytes), |mut file| async move {
        let mut part = Vec::with_capacity(PART_BYTES);
        let read = file.read_buf(&mut part).await?;
        Ok::<_, io::Error>((read > 0).then(|| (Bytes::from(part), file)))
    });
    let headers = [
        (CONTENT_TYPE, kind(&path).to_owned()),
        (CONTENT_LENGTH, bytes.to_string()),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

async fn serve(State(root): State<Arc<Path>>, request: Request) -> Response {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let Some(path) = below(&root, request.uri().path()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let status = match respond(path).await.map_err(|error| error.kind()) {
        Ok(response) => return response,
        Err(ErrorKind::NotFound | ErrorKind::NotADirectory) => StatusCode::NOT_FOUND,
        Err(ErrorKind::PermissionDenied) => StatusCode::FORBIDDEN,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    status.into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_dir FOLDER ADDRESS:PORT".into());
    };
    let root: Arc<Path> = fs::canonicalize(folder).await?.into();
    let listener = TcpListener::bind(address).await?;
    let router = Router::new().fallback(serve).with_state(root);
    Ok(axum::serve(listener, router).await?)
}
