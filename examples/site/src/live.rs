//! The server's own metrics, live over a WebSocket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{OriginalUri, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::Site;
use crate::pages::Failure;
use crate::visitor::Visitor;

/// The number of open WebSockets.
pub(crate) const WATCHERS_MAX: usize = 1000;
/// The number of open WebSockets of one user.
pub(crate) const WATCHERS_PER_USER: usize = 10;
/// The time between two messages.
const INTERVAL: Duration = Duration::from_millis(500);
/// The time for a client to take a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients send nothing but control frames.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

pub(crate) async fn connect(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failure> {
    // The scripts of other sites may open WebSockets here, too.
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(ORIGIN).and_then(|origin| origin.parse::<Uri>().ok());
    let origin = origin.as_ref().and_then(Uri::authority);
    // HTTP/2 has the host in the URI.
    let host = uri.authority().map(|host| host.as_str()).or(text(HOST));
    if origin.is_none() || origin.map(|origin| origin.as_str()) != host {
        return Err(Failure(
            StatusCode::FORBIDDEN,
            "This page is of another site.",
        ));
    }
    let open = site.watchers.open(&visitor.user)?;
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(async move |socket| {
        push(socket, &site).await;
        drop(open);
    }))
}

/// Sends the metrics until the client leaves or the site stops.
async fn push(mut socket: WebSocket, site: &Site) {
    let mut stopping = site.stopping.clone();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (message, is_last) = tokio::select! {
            _ = ticks.tick() => (Message::text(metrics(site)), false),
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => continue,
            },
            _ = stopping.wait_for(|stops| *stops) => {
                let frame = CloseFrame { code: close_code::AWAY, reason: "the site stops".into() };
                (Message::Close(Some(frame)), true)
            }
        };
        let sent = timeout(SEND_TIMEOUT, socket.send(message)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

fn metrics(site: &Site) -> String {
    let total = annulus::metrics::snapshot().total().counters;
    json!({
        "uptime (s)": site.started.elapsed().as_secs(),
        "requests": site.requests.load(Ordering::Relaxed),
        "WebSockets": site.watchers.count(),
        "operations completed": total.completed,
        "operations in flight": total.in_flight,
        "operations failed": total.failed,
        "SQEs": total.entries,
        "system calls of the rings": total.enters,
    })
    .to_string()
}
