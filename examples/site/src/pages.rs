//! The HTML pages, and errors as pages.

use std::error::Error;

use askama::Template;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER};
use axum::response::{Html, IntoResponse, Response};

use crate::database::Upload;

/// The content of a page.
#[derive(Clone, Copy)]
pub(crate) enum View {
    Home,
    Register,
    Login,
    Gallery,
    Metrics,
    Failure,
}

/// A page. The template escapes all values.
#[derive(Template)]
#[template(path = "page.html")]
pub(crate) struct Page {
    status: StatusCode,
    message: &'static str,
    pub(crate) uploads: Vec<Upload>,
    pub(crate) mib_max: usize,
    view: View,
    user: String,
    csrf: String,
}

impl Page {
    pub(crate) fn new(view: View, user: String, csrf: String) -> Page {
        Page {
            status: StatusCode::OK,
            message: "",
            uploads: Vec::new(),
            mib_max: 0,
            view,
            user,
            csrf,
        }
    }

    pub(crate) fn with_message(self, status: StatusCode, message: &'static str) -> Response {
        let page = Page {
            status,
            message,
            ..self
        };
        page.into_response()
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        match self.render() {
            Ok(html) => (self.status, Html(html)).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// A request that failed, and the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure(pub(crate) StatusCode, pub(crate) &'static str);

impl<E: Error> From<E> for Failure {
    /// Logs an error that is not the visitor's.
    fn from(error: E) -> Failure {
        tracing::error!("{error}");
        let message = "The site has failed. Try again later.";
        Failure(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

/// The time after which a refused visitor may try again, in seconds.
const RETRY_AFTER_S: &str = "60";

impl Failure {
    /// Returns the page of this failure for a visitor.
    pub(crate) fn page(self, page: Page) -> Response {
        let mut response = page.with_message(self.0, self.1);
        if [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ]
        .contains(&self.0)
        {
            let time = HeaderValue::from_static(RETRY_AFTER_S);
            response.headers_mut().insert(RETRY_AFTER, time);
        }
        response
    }
}

impl IntoResponse for Failure {
    /// The page shows no user. `visitor::identify` replaces it by that of the visitor.
    fn into_response(self) -> Response {
        let mut response = self.page(Page::new(View::Failure, String::new(), String::new()));
        response.extensions_mut().insert(self);
        response
    }
}
