//! Visitors: each has a random token in a cookie. With a session in the database, the visitor is a user.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{COOKIE, HeaderValue, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use crate::database::SESSION;
use crate::pages::{Failure, Page, View};
use crate::{PAGE_TIMEOUT, Site};

/// The bytes of a token, which is written in hexadecimal.
const TOKEN_BYTES: usize = 32;

const NO_DATABASE: Failure = Failure(
    StatusCode::SERVICE_UNAVAILABLE,
    "The site cannot reach its database. Try again later.",
);

/// The visitor of a request.
#[derive(Clone)]
pub(crate) struct Visitor {
    token: String,
    /// The name of the user; empty if none is logged in.
    pub(crate) user: String,
}

impl Visitor {
    fn new() -> Result<Visitor, Failure> {
        let (token, user) = (random_hex::<TOKEN_BYTES>()?, String::new());
        Ok(Visitor { token, user })
    }

    pub(crate) fn page(&self, view: View) -> Page {
        Page::new(view, self.user.clone(), self.csrf())
    }

    /// Returns the token for forms. Other sites cannot compute it, because they cannot read the cookie.
    fn csrf(&self) -> String {
        hash("csrf", &self.token)
    }

    /// Fails if a form has the wrong token.
    pub(crate) fn check(&self, csrf: &str) -> Result<(), Failure> {
        const MESSAGE: &str = "This form is of another site, or old. Go back, and reload the page.";
        match csrf.as_bytes().ct_eq(self.csrf().as_bytes()).into() {
            true => Ok(()),
            false => Err(Failure(StatusCode::FORBIDDEN, MESSAGE)),
        }
    }

    /// Returns the key of the session. A copy of the database is no use for a login.
    fn session(&self) -> String {
        hash("session", &self.token)
    }

    /// Begins a session of `user`, with a new token.
    pub(crate) async fn log_in(site: &Site, user: &str) -> Result<Response, Failure> {
        let visitor = Visitor::new()?;
        let session = visitor.session();
        site.database.add_session(&session, user).await?;
        visitor.with_cookie(site, Redirect::to("/gallery").into_response())
    }

    /// Ends the session.
    pub(crate) async fn log_out(&self, site: &Site) -> Result<Response, Failure> {
        site.database.remove_session(&self.session()).await?;
        Visitor::new()?.with_cookie(site, Redirect::to("/").into_response())
    }

    fn with_cookie(&self, site: &Site, mut response: Response) -> Result<Response, Failure> {
        let (name, token, age) = (cookie_name(site), &self.token, SESSION.as_secs());
        let secure = if site.config.uses_tls() {
            "; Secure"
        } else {
            ""
        };
        let cookie =
            format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{secure}");
        let cookie = HeaderValue::try_from(cookie)?;
        response.headers_mut().insert(SET_COOKIE, cookie);
        Ok(response)
    }
}

fn cookie_name(site: &Site) -> &'static str {
    // With the prefix, a browser accepts the cookie only over TLS and from this host.
    match site.config.uses_tls() {
        true => "__Host-visit",
        false => "visit",
    }
}

fn hash(purpose: &str, token: &str) -> String {
    hex(&Sha256::digest(format!("{purpose} {token}")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns `N` random bytes in hexadecimal.
pub(crate) fn random_hex<const N: usize>() -> Result<String, Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

fn token(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split("; "))
        .filter_map(|pair| pair.split_once('='));
    let (_, token) = pairs.find(|(key, _)| *key == name)?;
    let is_token = token.len() == 2 * TOKEN_BYTES && token.is_ascii();
    is_token.then(|| token.to_owned())
}

/// Adds the [`Visitor`] to a request. A new visitor gets a cookie.
pub(crate) async fn identify(
    State(site): State<Arc<Site>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let token = token(request.headers(), cookie_name(&site));
    let is_new = token.is_none();
    let mut visitor = Visitor::new()?;
    if let Some(token) = token {
        visitor.token = token;
        let session = visitor.session();
        let user = timeout(PAGE_TIMEOUT, site.database.user_of(&session)).await;
        visitor.user = user.map_err(|_| NO_DATABASE)??.unwrap_or_default();
    }
    request.extensions_mut().insert(visitor.clone());
    let mut response = next.run(request).await;
    if let Some(failure) = response.extensions().get::<Failure>() {
        response = failure.page(visitor.page(View::Failure));
    }
    match is_new && !response.headers().contains_key(SET_COOKIE) {
        true => visitor.with_cookie(&site, response),
        false => Ok(response),
    }
}

/// Sends visitors who are not logged in to the login.
pub(crate) async fn require_user(request: Request, next: Next) -> Response {
    let visitor = request.extensions().get::<Visitor>();
    match visitor.is_some_and(|visitor| !visitor.user.is_empty()) {
        true => next.run(request).await,
        false => Redirect::to("/login").into_response(),
    }
}
