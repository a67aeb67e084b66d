//! The HTML pages, and errors as pages.

use std::error::Error;

use askama::Template;
use axum::http::StatusCode;
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
pub(crate) struct Failure(pub(crate) StatusCode, pub(crate) &'static str);

impl<E: Error> From<E> for Failure {
    /// Logs an error that is not the visitor's.
    fn from(error: E) -> Failure {
        tracing::error!("{error}");
        let message = "The site has failed. Try again later.";
        Failure(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let page = Page::new(View::Failure, String::new(), String::new());
        page.with_message(self.0, self.1)
    }
}
