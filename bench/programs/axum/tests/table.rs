//! The compatibility table of docs/guide/axum.md: a test per line, over HTTP/1.1 and HTTP/2, on axum's own server and
//! on both backends of Annulus.

mod websockets;

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use annulus_axum_tests::{ALL, On, Site};
use annulus_hyper::Tls;
use annulus_hyper::rustls::ServerConfig;
use annulus_hyper::rustls::pki_types::PrivateKeyDer;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, StatusCode, Version};

/// The limit of each test.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs `test` on each server. All have to return the same as the first, axum's own.
fn on_each<T, F>(test: impl Fn(String, On) -> F)
where
    T: PartialEq + std::fmt::Debug,
    F: Future<Output = T>,
{
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("a.txt"), "0123456789").unwrap();
    let mut reference = None;
    for on in ALL {
        if !on.is_possible() {
            println!("skip: {on:?}: io_uring is refused here");
            continue;
        }
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let outcome = tokio.block_on(async {
            let site = Site::start(on, files.path()).await;
            let test = test(site.address.to_string(), on);
            let outcome = tokio::time::timeout(PATIENCE, test)
                .await
                .expect("it hangs");
            site.stop().await;
            outcome
        });
        match &reference {
            None => reference = Some(outcome),
            Some(reference) => assert_eq!(&outcome, reference, "{on:?} differs from {:?}", ALL[0]),
        }
    }
}

/// Returns a client for each version of HTTP.
fn clients() -> [Client; 2] {
    let http2 = Client::builder().http2_prior_knowledge();
    [Client::new(), http2.build().unwrap()]
}

/// Makes a request by both versions of HTTP. Checks its status, and returns its bodies.
async fn ask(
    url: String,
    status: StatusCode,
    request: impl Fn(Client, String) -> RequestBuilder,
) -> [String; 2] {
    let mut bodies = [const { String::new() }; 2];
    for (body, client) in bodies.iter_mut().zip(clients()) {
        let response = request(client, url.clone()).send().await.unwrap();
        assert_eq!(response.status(), status, "{url}");
        *body = response.text().await.unwrap();
    }
    bodies
}

fn post(path: &'static str, build: impl Fn(RequestBuilder) -> RequestBuilder, expected: &str) {
    on_each(async |host, _| {
        let url = format!("http://{host}{path}");
        let bodies = ask(url, StatusCode::OK, |client, url| build(client.post(url))).await;
        assert_eq!(bodies, [expected, expected]);
    });
}

fn get_with(path: &'static str, status: StatusCode, expected: &str) {
    on_each(async |host, _| {
        let url = format!("http://{host}{path}");
        let bodies = ask(url, status, |client, url| client.get(url)).await;
        assert_eq!(bodies, [expected, expected]);
    });
}

macro_rules! tests {
    ($($name:ident $test:expr;)*) => {
        $(#[test] fn $name() { $test; })*

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

fn ok(path: &'static str, expected: &str) {
    get_with(path, StatusCode::OK, expected);
}

const MEGABYTES: usize = 5_000_000;

tests! {
    time_sleep ok("/sleep", "");
    time_timeout ok("/timeout", "true");
    time_interval ok("/interval", "ticked");
    spawn ok("/spawn", "7");
    join_set ok("/join_set", "10");
    spawn_blocking ok("/spawn_blocking", "8");
    block_in_place ok("/block_in_place", "9");
    yield_now ok("/yield", "");
    runtime_handle ok("/handle", "3");
    select ok("/select", "4");
    tokio_fs ok("/fs", "written");
    tokio_process ok("/process", "hi\n");
    tokio_net ok("/net", "text");
    tokio_dns ok("/dns", "true");
    tokio_signal ok("/signal", "received");
    sync_mutex ok("/mutex", "10");
    sync_semaphore ok("/semaphore", "true");
    sync_mpsc ok("/mpsc", "10");
    sync_broadcast ok("/broadcast", "6");
    sync_watch ok("/watch", "2");
    sync_notify ok("/notify", "notified");
    annulus_sleep ok("/annulus_sleep", "slept");

    extract_path ok("/path/name", "name");
    extract_query ok("/query?a=1&b=2", r#"[("a", "1"), ("b", "2")]"#);
    extract_form post("/form", |post| post.header("content-type", "application/x-www-form-urlencoded").body("a=1"),
                      r#"[("a", "1")]"#);
    extract_json post("/json", |post| post.json(&[1, 2]), "[1,2]");
    extract_state ok("/state", "state");
    extract_bytes post("/bytes", |post| post.body("text"), "text");
    extract_connect_info ok("/peer", "127.0.0.1");
    multipart post("/multipart", parts, &format!("[{MEGABYTES}, 1]"));
    upload post("/upload", |post| post.body(vec![1; MEGABYTES]), &MEGABYTES.to_string());
    uploads_in_turn uploads();
    upload_to_tokio_file post("/upload_to_file", |post| post.body(vec![1; MEGABYTES]), &MEGABYTES.to_string());
    stream_body stream();
    trailers of_trailers();
    status_codes get_with("/status", StatusCode::IM_A_TEAPOT, "");
    no_route get_with("/none", StatusCode::NOT_FOUND, "");
    handler_panics panics();
    sse ok("/sse", "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    sse_interval ok("/sse_interval", "data: tick\n\ndata: tick\n\ndata: tick\n\n");
    sse_keep_alive kept_alive();

    layer_timeout get_with("/timeout_layer", StatusCode::REQUEST_TIMEOUT, "");
    layer_concurrency_limit ok("/concurrency_limit", "in");
    layer_buffer ok("/buffer", "buffered");
    layer_body_limit too_large();
    layer_compression compressed();
    layer_trace ok("/trace", "traced");
    serve_dir ok("/files/a.txt", "0123456789");
    serve_dir_range range();
    reqwest_in_a_handler fetched();
    sqlx_pool ok("/sqlx", "42");
    sqlx_connect ok("/sqlx_fresh", "42");

    websocket_echo websockets::echo();
    websocket_concurrent websockets::concurrent();
    websocket_16_mb websockets::of_16_megabytes();
    websocket_ping websockets::ping();
    websocket_fragments websockets::fragments();
    websocket_ping_between_fragments websockets::ping_between_fragments();
    websocket_invalid_utf8 websockets::invalid_utf8();
    websocket_close_codes websockets::close_codes();
    websocket_wrong_frames websockets::wrong_frames();
    websocket_without_close websockets::without_close();
    websocket_over_http2 websockets::over_http2();
    tls encrypted();
    tls_replaced_certificate replaced();
}

fn parts(post: RequestBuilder) -> RequestBuilder {
    let form = reqwest::multipart::Form::new().text("large", "x".repeat(MEGABYTES));
    post.multipart(form.text("small", "1"))
}

/// Uploads and short requests on one connection.
fn uploads() {
    on_each(async |host, _| {
        for client in clients() {
            for bytes in [65_536, 10, 65_536, 65_536, 4_096, 65_536, 0, 1_000_000].repeat(3) {
                let body: Vec<u8> = (0..bytes).map(|at: u32| (at % 251) as u8).collect();
                let post = client
                    .post(format!("http://{host}/bytes"))
                    .body(body.clone());
                let response = post.send().await.unwrap();
                assert!(response.bytes().await.unwrap() == body);
            }
        }
    });
}

fn stream() {
    on_each(async |host, _| {
        let url = format!("http://{host}/stream");
        let bodies = ask(url, StatusCode::OK, |client, url| client.get(url)).await;
        for body in bodies {
            let expected = (0..100).flat_map(|number: u8| std::iter::repeat_n(number, 10_000));
            assert!(body.bytes().eq(expected));
        }
    });
}

fn of_trailers() {
    on_each(async |host, _| {
        let raw = websockets::raw(
            &host,
            "GET /trailers HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: close\r\n\r\n",
        )
        .await;
        raw.split("\r\n\r\n").nth(1).map(str::to_owned)
    });
    ok("/trailers", "body");
}

fn panics() {
    on_each(async |host, on| {
        for client in clients() {
            let response = client.get(format!("http://{host}/panic")).send().await;
            match on {
                // axum's own server closes the connection.
                On::Tokio => assert!(response.is_err()),
                On::Annulus(_) => {
                    assert_eq!(
                        response.unwrap().status(),
                        StatusCode::INTERNAL_SERVER_ERROR
                    );
                }
            }
            let next = client.get(format!("http://{host}/")).send().await.unwrap();
            assert_eq!(next.text().await.unwrap(), "Hello");
        }
    });
}

fn kept_alive() {
    on_each(async |host, _| {
        let url = format!("http://{host}/sse_keep_alive");
        for body in ask(url, StatusCode::OK, |client, url| client.get(url)).await {
            assert!(body.starts_with(": here\n\n"), "{body}");
        }
    });
}

fn too_large() {
    on_each(async |host, _| {
        let url = format!("http://{host}/body_limit");
        ask(url.clone(), StatusCode::OK, |client, url| {
            client.post(url).body("short")
        })
        .await;
        ask(url, StatusCode::PAYLOAD_TOO_LARGE, |client, url| {
            client.post(url).body("x".repeat(11))
        })
        .await
    });
}

fn compressed() {
    on_each(async |host, _| {
        let response = Client::new().get(format!("http://{host}/compression"));
        let response = response
            .header("accept-encoding", "gzip")
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["content-encoding"], "gzip");
        let bytes = response.bytes().await.unwrap();
        assert!(bytes.len() < 1_000);
        bytes
    });
}

fn range() {
    on_each(async |host, _| {
        let url = format!("http://{host}/files/a.txt");
        let ranged = |client: Client, url| client.get(url).header("range", "bytes=2-4");
        assert_eq!(
            ask(url, StatusCode::PARTIAL_CONTENT, ranged).await,
            ["234", "234"]
        );
    });
}

fn fetched() {
    on_each(async |host, _| {
        let url = format!("http://{host}/reqwest");
        let to = format!("http://{host}/path/fetched");
        let bodies = ask(url, StatusCode::OK, |client, url| {
            client.get(url).query(&[("to", &to)])
        })
        .await;
        assert_eq!(bodies, ["fetched", "fetched"]);
    });
}

/// Runs `test` on each backend with a server that uses TLS, its configuration, and its certificate.
fn with_tls<F: Future<Output = ()>>(test: impl Fn(String, Tls, Certificate) -> F) {
    let files = tempfile::tempdir().unwrap();
    for on in ALL {
        if on == On::Tokio || !on.is_possible() {
            continue;
        }
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let tested = tokio.block_on(async {
            let (certificate, config) = certified();
            let tls = Tls::new(config);
            let site = Site::start_with(on, files.path(), Some(tls.clone())).await;
            let url = format!("https://localhost:{}/path/a", site.address.port());
            let tested = tokio::time::timeout(PATIENCE, test(url, tls, certificate)).await;
            site.stop().await;
            tested
        });
        tested.expect("it hangs");
    }
}

/// Returns a new certificate, and the configuration of a server with it.
fn certified() -> (Certificate, ServerConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (Certificate::from_der(made.cert.der()).unwrap(), config)
}

fn trusting(certificate: &Certificate) -> ClientBuilder {
    Client::builder().tls_certs_only([certificate.clone()])
}

fn encrypted() {
    with_tls(async |url, _, certificate| {
        let http1 = trusting(&certificate).http1_only();
        for (client, version) in [
            (http1, Version::HTTP_11),
            (trusting(&certificate), Version::HTTP_2),
        ] {
            let response = client.build().unwrap().get(&url).send().await.unwrap();
            assert_eq!(response.version(), version);
            assert_eq!(response.text().await.unwrap(), "a");
        }
    });
}

fn replaced() {
    with_tls(async |url, tls, first| {
        let client = trusting(&first).build().unwrap();
        client.get(&url).send().await.unwrap();
        let (second, config) = certified();
        tls.replace(config);
        // The open connection goes on.
        client.get(&url).send().await.unwrap();
        trusting(&first)
            .build()
            .unwrap()
            .get(&url)
            .send()
            .await
            .unwrap_err();
        trusting(&second)
            .build()
            .unwrap()
            .get(&url)
            .send()
            .await
            .unwrap();
    });
}

#[test]
fn the_guide_lists_every_test_and_no_other() {
    let guide = include_str!("../../../../docs/guide/axum.md");
    let (_, table) = guide.split_once("## What works").unwrap();
    let listed = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| {
            let cell = line.rsplit('|').nth(1)?.trim();
            cell.strip_prefix('`')?.strip_suffix('`')
        });
    let listed: BTreeSet<&str> = listed.collect();
    assert_eq!(listed, BTreeSet::from_iter(NAMES.iter().copied()));
}
