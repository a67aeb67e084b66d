//! A running site, and requests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sqlx::AnyPool;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// The limit after which a test has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// The server of PostgreSQL databases, without a path. Without it, the tests use SQLite only.
const POSTGRES: &str = "SITE_TEST_POSTGRES";
const PASSWORD: &str = "a+long+password";
pub(crate) const HOME: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A running site with a database of its own. It is killed when it is dropped.
pub(crate) struct Site {
    child: Child,
    pub(crate) address: SocketAddr,
    url: String,
    dir: TempDir,
}

/// A response with its header fields in lower case.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

/// A visitor with a cookie, at an address.
#[derive(Clone)]
pub(crate) struct Visitor {
    pub(crate) from: Ipv4Addr,
    pub(crate) cookie: String,
    pub(crate) csrf: String,
}

/// Returns the URL of PostgreSQL, if the tests have one.
pub(crate) fn postgres() -> Option<String> {
    let url = std::env::var(POSTGRES).ok();
    if url.is_none() {
        println!("only SQLite is tested: {POSTGRES} is not set");
    }
    url
}

/// Starts a site for each database.
pub(crate) async fn sites() -> Vec<Site> {
    let mut sites = vec![Site::start(None).await];
    if let Some(url) = postgres() {
        sites.push(Site::start(Some(&url)).await);
    }
    sites
}

/// Creates a database, and returns its URL.
pub(crate) async fn new_database(server: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("site_{}", name.to_lowercase());
    sqlx::any::install_default_drivers();
    let pool = AnyPool::connect(&format!("{server}/postgres"))
        .await
        .unwrap();
    sqlx::query(&format!("CREATE DATABASE {name}"))
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
    format!("{server}/{name}")
}

impl Site {
    async fn start(server: Option<&str>) -> Site {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let url = match server {
            Some(server) => new_database(server).await,
            None => format!("sqlite://{}/site.db?mode=rwc", dir.path().display()),
        };
        Site::with(dir, url)
    }

    /// Starts a site on an existing database.
    pub(crate) fn with(dir: TempDir, url: String) -> Site {
        let mut child = Command::new(env!("CARGO_BIN_EXE_annulus-site"))
            .env("SITE_ADDR", "127.0.0.1:0")
            .env("SITE_DATA", dir.path())
            .env("DATABASE_URL", &url)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = log.next().expect("the site has ended").unwrap();
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.parse().unwrap();
            }
        };
        // The log must not fill the pipe.
        std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        Site {
            child,
            address,
            url,
            dir,
        }
    }

    pub(crate) fn media(&self) -> PathBuf {
        self.dir.path().join("media")
    }

    /// Returns a line of `/proc/PID/status` in MiB.
    pub(crate) fn memory_mib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap() >> 10
    }

    pub(crate) async fn execute(&self, statement: &str) {
        sqlx::any::install_default_drivers();
        let pool = AnyPool::connect(&self.url).await.unwrap();
        sqlx::query(statement).execute(&pool).await.unwrap();
        pool.close().await;
    }

    pub(crate) async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        timeout(TIMEOUT, socket.connect(self.address))
            .await
            .unwrap()
            .unwrap()
    }

    /// Sends a request, and returns the response, even if the site does not read the whole body.
    pub(crate) async fn send(
        &self,
        visitor: &Visitor,
        line: &str,
        fields: &str,
        body: &[u8],
    ) -> Response {
        let mut stream = self.connect(visitor.from).await;
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\nConnection: close\r\nContent-Length: {}\r\n{fields}\r\n",
            self.address,
            visitor.cookie,
            body.len()
        );
        let mut text = Vec::new();
        let exchange = async {
            let (mut reader, mut writer) = stream.split();
            let write = async {
                let _ = writer.write_all(head.as_bytes()).await;
                let _ = writer.write_all(body).await;
            };
            // The connection may end with a reset behind the response.
            let (_, _) = tokio::join!(write, reader.read_to_end(&mut text));
        };
        timeout(TIMEOUT, exchange).await.unwrap();
        Response::parse(&String::from_utf8_lossy(&text))
    }

    pub(crate) async fn get(&self, visitor: &Visitor, path: &str) -> Response {
        self.send(visitor, &format!("GET {path}"), "", b"").await
    }

    pub(crate) async fn post(&self, visitor: &Visitor, path: &str, form: &str) -> Response {
        let fields = "Content-Type: application/x-www-form-urlencoded\r\n";
        self.send(visitor, &format!("POST {path}"), fields, form.as_bytes())
            .await
    }

    /// Returns a visitor who has seen a form.
    pub(crate) async fn visitor(&self, from: Ipv4Addr) -> Visitor {
        let mut visitor = Visitor {
            from,
            cookie: String::new(),
            csrf: String::new(),
        };
        let page = self.get(&visitor, "/login").await;
        visitor.take(&page);
        visitor
    }

    pub(crate) async fn log_in(&self, visitor: &Visitor, name: &str, password: &str) -> Response {
        let csrf = &visitor.csrf;
        self.post(
            visitor,
            "/login",
            &format!("name={name}&password={password}&csrf={csrf}"),
        )
        .await
    }

    /// Registers a user, who is then logged in.
    pub(crate) async fn user(&self, name: &str) -> Visitor {
        let mut visitor = self.visitor(HOME).await;
        let form = format!("name={name}&password={PASSWORD}&csrf={}", visitor.csrf);
        let registered = self.post(&visitor, "/register", &form).await;
        assert_eq!(registered.status, 303, "{}", registered.body);
        visitor.take(&registered);
        let page = self.get(&visitor, "/gallery").await;
        visitor.take(&page);
        visitor
    }

    pub(crate) async fn right(&self, visitor: &Visitor, name: &str) -> Response {
        self.log_in(visitor, name, PASSWORD).await
    }

    /// Uploads the parts of a form.
    pub(crate) async fn upload(&self, user: &Visitor, form: &[u8]) -> Response {
        let fields = "Content-Type: multipart/form-data; boundary=line\r\n";
        self.send(user, "POST /upload", fields, form).await
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Visitor {
    /// Takes the cookie and the form's token of a page.
    fn take(&mut self, page: &Response) {
        if let Some(cookie) = page.headers.get("set-cookie") {
            self.cookie = cookie.split(';').next().unwrap().to_owned();
        }
        if let Some((_, rest)) = page.body.split_once("name=\"csrf\" value=\"") {
            self.csrf = rest.split('"').next().unwrap().to_owned();
        }
    }
}

impl Response {
    pub(crate) fn parse(text: &str) -> Response {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let fields = head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "));
        Response {
            status: status.unwrap_or_else(|| panic!("no response: {text:?}")),
            headers: fields
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        }
    }
}
