//! Registration, login and logout.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Form, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::Site;
use crate::pages::{Failure, View};
use crate::visitor::{Visitor, random_hex};

/// The length of a password in bytes. Longer ones would only cost time.
const PASSWORD_MIN: usize = 10;
const PASSWORD_MAX: usize = 200;

const NAMES: &str = "A name has 2 to 32 letters a–z, digits and hyphens.";

fn is_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (2..=32).contains(&name.len()) && name.bytes().all(is_good)
}

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
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Credentials>,
) -> Result<Response, Failure> {
    visitor.check(&form.csrf)?;
    let refused = |message| {
        let page = visitor.page(View::Register);
        Ok(page.with_message(StatusCode::UNPROCESSABLE_ENTITY, message))
    };
    if !is_name(&form.name) {
        return refused(NAMES);
    }
    if !(PASSWORD_MIN..=PASSWORD_MAX).contains(&form.password.len()) {
        return refused("A password has 10 to 200 bytes.");
    }
    site.attempts.begin(peer.ip(), None)?;
    let hash = site.hashing.hash(form.password, random_hex::<16>()?);
    match site.database.add_user(&form.name, &hash.await?).await? {
        true => {
            site.attempts.succeeded(peer.ip(), None);
            Visitor::log_in(&site, &form.name).await
        }
        false => refused("This name is taken."),
    }
}

pub(crate) async fn log_in(
    State(site): State<Arc<Site>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<Credentials>,
) -> Result<Response, Failure> {
    visitor.check(&form.csrf)?;
    let page = visitor.page(View::Login);
    if !is_name(&form.name) {
        return Ok(page.with_message(StatusCode::BAD_REQUEST, NAMES));
    }
    site.attempts.begin(peer.ip(), Some(&form.name))?;
    let is_short = form.password.len() <= PASSWORD_MAX;
    let expected = site.database.password(&form.name).await?;
    if is_short && site.hashing.is_right(form.password, expected).await? {
        site.attempts.succeeded(peer.ip(), Some(&form.name));
        return Visitor::log_in(&site, &form.name).await;
    }
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
