//! Uploads of pictures and video, and the page that shows them. `ServeDir` serves the files, with ranges.

use std::sync::Arc;

use axum::Extension;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::http::StatusCode;
use axum::response::Redirect;
use tempfile::NamedTempFile;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::Site;
use crate::database::Upload;
use crate::form::{Progress, bounded};
use crate::pages::{Failure, Page, View};
use crate::visitor::{Visitor, random_hex};

/// The bytes of a file in which its format is recognised.
const BEGINNING_BYTES: usize = 12;
const TITLE_MAX: usize = 80;
/// The length of a form's token, with room for a mistake.
const TOKEN_BYTES_MAX: usize = 256;

pub(crate) async fn gallery(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Page, Failure> {
    let mut page = visitor.page(View::Gallery);
    page.uploads = site.database.uploads(&visitor.user).await?;
    page.mib_max = site.config.upload_bytes >> 20;
    Ok(page)
}

impl Upload {
    pub(crate) fn is_video(&self) -> bool {
        self.file.ends_with(".mp4") || self.file.ends_with(".webm")
    }
}

fn bad(message: &'static str) -> Failure {
    Failure(StatusCode::BAD_REQUEST, message)
}

fn broken(error: MultipartError) -> Failure {
    match error.status() {
        status @ StatusCode::PAYLOAD_TOO_LARGE => Failure(status, "The file is too large."),
        _ => bad("The upload is not complete, or not a form."),
    }
}

/// Stores a file. The form's token comes first, so that nothing is stored for other sites.
pub(crate) async fn upload(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Redirect, Failure> {
    let (request, progress) = bounded(request);
    let mut form = Multipart::from_request(request, &()).await?;
    let field = form.next_field().await.map_err(broken)?;
    let token = field.filter(|field| field.name() == Some("csrf"));
    let mut token = token.ok_or(bad("The form does not begin with its token."))?;
    let mut text = Vec::new();
    while let Some(piece) = token.chunk().await.map_err(broken)? {
        text.extend_from_slice(&piece);
        progress.made();
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Failure(
                StatusCode::PAYLOAD_TOO_LARGE,
                "The form's token is too long.",
            ));
        }
    }
    drop(token);
    visitor.check(&String::from_utf8_lossy(&text))?;
    let field = form.next_field().await.map_err(broken)?;
    let field = field.ok_or(bad("The form has no file."))?;
    let title = field.file_name().unwrap_or("a file");
    // PostgreSQL stores no NUL.
    let title = title.chars().filter(|c| !c.is_control());
    let title = title.take(TITLE_MAX).collect();
    // Removed if the client leaves.
    let file = NamedTempFile::new_in(&site.config.data)?;
    let (bytes, extension) = receive(field, File::from_std(file.reopen()?), &progress).await?;
    let name = format!("{}.{extension}", random_hex::<16>()?);
    let path = site.config.media().join(&name);
    let upload = Upload {
        file: name,
        title,
        bytes,
    };
    // A separate task, which ends even if the client leaves, so that each file has a row.
    let stored = tokio::spawn(async move {
        file.persist(&path)?;
        let added = site.database.add_upload(&visitor.user, &upload).await;
        if added.is_err() {
            tokio::fs::remove_file(&path).await?;
        }
        Ok::<_, Failure>(added?)
    });
    stored.await??;
    Ok(Redirect::to("/gallery"))
}

/// Writes a field to `file`. Returns the number of bytes, and the extension of the format.
async fn receive(
    mut field: Field<'_>,
    mut file: File,
    progress: &Progress,
) -> Result<(i64, &'static str), Failure> {
    let (mut bytes, mut beginning) = (0, Vec::new());
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        progress.made();
        let missing = BEGINNING_BYTES - beginning.len();
        beginning.extend_from_slice(&piece[..missing.min(piece.len())]);
        bytes += piece.len() as i64;
        file.write_all(&piece).await?;
    }
    file.sync_all().await?;
    let known = extension(&beginning);
    let formats = "Pictures are PNG, JPEG, GIF or WebP; video is MP4 or WebM.";
    Ok((bytes, known.ok_or(bad(formats))?))
}

/// Recognises a format by its first bytes. The browser then shows it as nothing else.
fn extension(beginning: &[u8]) -> Option<&'static str> {
    match beginning {
        [0x89, b'P', b'N', b'G', ..] => Some("png"),
        [0xff, 0xd8, 0xff, ..] => Some("jpg"),
        [b'G', b'I', b'F', b'8', ..] => Some("gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => Some("webp"),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some("mp4"),
        [0x1a, 0x45, 0xdf, 0xa3, ..] => Some("webm"),
        _ => None,
    }
}
