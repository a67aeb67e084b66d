//! Registration, login and logout.

use std::sync::{Arc, LazyLock};

use argon2::password_hash::{Error, SaltString};
use argon2::{Argon2, PasswordHash, PasswordHasher, PasswordVerifier};
use axum::Extension;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::Site;
use crate::pages::{Failure, View};
use crate::visitor::{Visitor, random_hex};

/// The length of a password in bytes. Longer ones would only cost time.
const PASSWORD_MIN: usize = 10;
const PASSWORD_MAX: usize = 200;

#[derive(Deserialize)]
pub(crate) struct Credentials {
    name: String,
    password: String,
    csrf: String,
}

#[derive(Deserialize)]
pub(crate) struct Csrf {
    csrf: String,
}

pub(crate) async fn register(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Credentials>,
) -> Result<Response, Failure> {
    visitor.check(&form.csrf)?;
    let refused = |message| {
        let page = visitor.page(View::Register);
        Ok(page.with_message(StatusCode::UNPROCESSABLE_ENTITY, message))
    };
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(2..=32).contains(&form.name.len()) || !form.name.bytes().all(is_good) {
        return refused("A name has 2 to 32 letters a–z, digits and hyphens.");
    }
    if !(PASSWORD_MIN..=PASSWORD_MAX).contains(&form.password.len()) {
        return refused("A password has 10 to 200 bytes.");
    }
    let salt = random_hex::<16>()?;
    let hash = hashing(&site, move || hash(&form.password, &salt)).await??;
    match site.database.add_user(&form.name, &hash).await? {
        true => Visitor::log_in(&site, &form.name).await,
        false => refused("This name is taken."),
    }
}

pub(crate) async fn log_in(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Credentials>,
) -> Result<Response, Failure> {
    visitor.check(&form.csrf)?;
    let expected = site.database.password(&form.name).await?;
    if hashing(&site, move || is_right(&form.password, expected)).await? {
        return Visitor::log_in(&site, &form.name).await;
    }
    let page = visitor.page(View::Login);
    Ok(page.with_message(
        StatusCode::UNAUTHORIZED,
        "The name or the password is wrong.",
    ))
}

pub(crate) async fn log_out(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Csrf>,
) -> Result<Response, Failure> {
    visitor.check(&form.csrf)?;
    visitor.log_out(&site).await
}

/// Runs `work` on a blocking thread. It takes too long for a core.
async fn hashing<T: Send + 'static>(
    site: &Site,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    // Held by the work, which goes on if the client leaves.
    let permit = Arc::clone(&site.hashing).acquire_owned().await?;
    let working = tokio::task::spawn_blocking(move || (work(), drop(permit)).0);
    Ok(working.await?)
}

fn hash(password: &str, salt: &str) -> Result<String, Error> {
    let salt = SaltString::from_b64(salt)?;
    let hash = Argon2::default().hash_password(password.as_bytes(), &salt)?;
    Ok(hash.to_string())
}

/// Checks a password. It takes as long if the user does not exist.
fn is_right(password: &str, expected: Option<String>) -> bool {
    static NOBODY: LazyLock<String> =
        LazyLock::new(|| hash("a password", &"0".repeat(32)).unwrap_or_default());
    if password.len() > PASSWORD_MAX {
        return false;
    }
    let hash = PasswordHash::new(expected.as_deref().unwrap_or(&NOBODY));
    let verified =
        hash.and_then(|hash| Argon2::default().verify_password(password.as_bytes(), &hash));
    verified.is_ok() && expected.is_some()
}
