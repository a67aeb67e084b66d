//! Limits and failures of the site, with SQLite and, if `SITE_TEST_POSTGRES` names a server, with PostgreSQL.

mod server;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use server::{HOME, Response, Site, Visitor, sites};

const PNG: [u8; 8] = [0x89, b'P', b'N', b'G', 13, 10, 26, 10];

fn form(csrf: &str, file: &[u8]) -> Vec<u8> {
    let start = format!(
        "--line\r\nContent-Disposition: form-data; name=\"csrf\"\r\n\r\n{csrf}\r\n--line\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n"
    );
    [start.as_bytes(), file, b"\r\n--line--\r\n"].concat()
}

/// Large parts of requests that are no file take little memory. Each of these was kept in memory as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_file_may_be_large() {
    const MIB_MAX: u64 = 24;
    let large = "a".repeat(48 << 20);
    for site in sites().await {
        let user = site.user("user").await;
        let file = [&PNG[..], large.as_bytes()].concat();
        let stored = site.upload(&user, &form(&user.csrf, &file)).await;
        assert_eq!(stored.status, 303, "{}", stored.body);
        let before = site.memory_mib("VmHWM:");
        let preamble = [large.as_bytes(), b"\r\n", &form(&user.csrf, &PNG)].concat();
        let header =
            format!("--line\r\nContent-Disposition: form-data; name=\"csrf\"; x=\"{large}");
        let second =
            String::from_utf8_lossy(&form(&user.csrf, b"")).replace("Content-Type: image", &large);
        for (name, form, status) in [
            ("csrf", form(&large, &PNG), 413),
            ("preamble", preamble, 400),
            ("header", header.into_bytes(), 400),
            ("second header", second.into_bytes(), 400),
        ] {
            let refused = site.upload(&user, &form).await;
            assert_eq!(refused.status, status, "{name}: {}", refused.body);
        }
        for path in ["/logout", "/login", "/register"] {
            let refused = site.post(&user, path, &format!("csrf={large}")).await;
            assert_eq!(refused.status, 413, "{path}: {}", refused.body);
        }
        let more = site.memory_mib("VmHWM:") - before;
        assert!(more < MIB_MAX, "{more} MiB more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_use_the_same_memory() {
    for site in sites().await {
        site.user("user").await;
        let before = site.memory_mib("VmRSS:");
        let login = async |number: u8| {
            let visitor = site.visitor([127, 0, 1, number].into()).await;
            site.right(&visitor, "user").await.status
        };
        for group in 0..6 {
            let mut logins: Vec<_> = (1..=5)
                .map(|one| Box::pin(login(5 * group + one)))
                .collect();
            assert_eq!(join_all(&mut logins).await, [303; 5]);
        }
        // One block was there already, for the registration.
        let more = site.memory_mib("VmRSS:").saturating_sub(before);
        assert!(more < 60, "{more} MiB more");
    }
}

/// Runs futures concurrently on this task.
async fn join_all<F: Future + Unpin>(futures: &mut [F]) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = std::pin::Pin::new(future).poll(cx)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Forwards connections to `target` until it is stopped. Later and open connections then hang.
async fn proxy(target: String, stopped: watch::Receiver<bool>) -> u16 {
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut kept = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let (target, mut stopped) = (target.clone(), stopped.clone());
            kept.spawn(async move {
                let mut server = TcpStream::connect(target).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    _ = stops(&mut stopped) => std::future::pending().await,
                }
            });
        }
    });
    port
}

async fn stops(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_a_database_fails_in_its_time() {
    let Some(postgres) = server::postgres() else {
        return;
    };
    let url = server::new_database(&postgres).await;
    let (user, rest) = url.split_once('@').unwrap();
    let (target, name) = rest.split_once('/').unwrap();
    let (stop, stopped) = watch::channel(false);
    let port = proxy(target.to_owned(), stopped).await;
    let dir = tempfile::tempdir().unwrap();
    let site = Site::with(dir, format!("{user}@127.0.0.1:{port}/{name}"));
    let user = site.user("user").await;
    stop.send_replace(true);
    for path in ["/", "/media/none"] {
        let start = Instant::now();
        let page = site.get(&user, path).await;
        let taken = start.elapsed();
        assert!(
            [408, 500, 503].contains(&page.status),
            "{path}: {}",
            page.status
        );
        // 15 s, and it took 30.
        assert!(taken < Duration::from_secs(25), "{path}: {taken:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_a_row_is_removed() {
    for site in sites().await {
        let user = site.user("user").await;
        let count = || std::fs::read_dir(site.media()).unwrap().count();
        let stored = site.upload(&user, &form(&user.csrf, &PNG)).await;
        assert_eq!((stored.status, count()), (303, 1), "{}", stored.body);
        site.execute("DROP TABLE uploads").await;
        let failed = site.upload(&user, &form(&user.csrf, &PNG)).await;
        assert_eq!((failed.status, count()), (500, 1), "{}", failed.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_no_database_takes_are_refused() {
    for site in sites().await {
        let visitor = site.visitor(HOME).await;
        for name in ["a%00b", "%00%00", "A+b", ""] {
            let refused = site.right(&visitor, name).await;
            assert_eq!(refused.status, 400, "{name}: {}", refused.body);
            assert!(
                refused.body.contains("A name has 2 to 32"),
                "{}",
                refused.body
            );
        }
        let unknown = site.right(&visitor, "nobody").await;
        assert_eq!(unknown.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guessers_do_not_keep_users_from_the_login() {
    const GUESSES: usize = 100;
    for site in sites().await {
        site.user("user").await;
        site.user("victim").await;
        let guess = async |from: Ipv4Addr| {
            let visitor = site.visitor(from).await;
            let response = site.log_in(&visitor, "victim", "a+wrong+guess").await;
            assert_eq!(
                response.headers.contains_key("retry-after"),
                response.status == 429
            );
            response.status
        };
        let mut one: Vec<_> = (0..GUESSES)
            .map(|_| Box::pin(guess([127, 0, 2, 1].into())))
            .collect();
        let one = join_all(&mut one).await;
        let count =
            |statuses: &[u16], status| statuses.iter().filter(|one| **one == status).count();
        // On a slow machine the minute of the limit may end within these.
        assert!(count(&one, 429) >= GUESSES / 2, "{one:?}");
        let mut many: Vec<_> = (0..GUESSES)
            .map(|number| Box::pin(guess([127, 0, 3, number as u8 + 1].into())))
            .collect();
        let many = join_all(&mut many).await;
        assert!(count(&many, 429) >= GUESSES / 4, "{many:?}");
        let visitor = site.visitor(HOME).await;
        assert_eq!(site.right(&visitor, "user").await.status, 303);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_error_shows_the_user() {
    for site in sites().await {
        let user = site.user("user").await;
        for (response, status) in [
            (site.get(&user, "/nothing").await, 404),
            (site.upload(&user, b"no form").await, 400),
            (site.upload(&user, &form("wrong", &PNG)).await, 403),
            (site.post(&user, "/logout", "csrf=wrong").await, 403),
        ] {
            assert_eq!(response.status, status, "{}", response.body);
            assert!(response.body.contains("Log out user"), "{}", response.body);
        }
        let guest = site.get(&site.visitor(HOME).await, "/nothing").await;
        assert_eq!(guest.status, 404);
        assert!(guest.body.contains("Log in"), "{}", guest.body);
    }
}

/// Opens a WebSocket, and returns the status with the open connection.
async fn watch_metrics(site: &Site, user: &Visitor) -> (u16, TcpStream) {
    let mut stream = site.connect(user.from).await;
    let (address, cookie) = (site.address, &user.cookie);
    let head = format!(
        "GET /metrics/live HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookie}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = [0; 4096];
    let length = stream.read(&mut text).await.unwrap();
    let response = Response::parse(&String::from_utf8_lossy(&text[..length]));
    (response.status, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_cannot_take_all_websockets() {
    for site in sites().await {
        let (user, other) = (site.user("user").await, site.user("other").await);
        let mut open = Vec::new();
        for _ in 0..10 {
            open.push(watch_metrics(&site, &user).await);
        }
        assert!(open.iter().all(|(status, _)| *status == 101));
        assert_eq!(watch_metrics(&site, &user).await.0, 429);
        let (status, _kept) = watch_metrics(&site, &other).await;
        assert_eq!(status, 101);
        drop(open);
        let until = Instant::now() + server::TIMEOUT;
        while watch_metrics(&site, &user).await.0 != 101 {
            assert!(Instant::now() < until, "closed WebSockets count");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
