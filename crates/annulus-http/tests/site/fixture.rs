//! A directory with files, its site, and requests without a connection.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use annulus::Backend;
use annulus::runtime::Runtime;
use annulus_http::site::{
    Body, CONDITIONAL, FieldLines, Method, OpenFile, Piece, Prompt, Ready, Site, SiteOptions,
    SiteRequest, SiteResponse,
};
use annulus_testing::child_process::own_user;
use annulus_testing::skip::{log, skip};
use tempfile::TempDir;

/// The environment variable with the test that a child process runs.
const ROLE: &str = "ANNULUS_TEST_CHILD";

/// The time after which a changed file counts as settled.
pub(crate) const SETTLED: Duration = Duration::from_millis(2_100);

/// A root directory with a site. Files beside the root must not be served.
pub(crate) struct Fixture {
    around: TempDir,
    pub(crate) site: Site,
    recheck: Duration,
}

/// Returns options with which the site checks its files at every request.
pub(crate) fn always_recheck() -> SiteOptions {
    {
        let mut options = SiteOptions::default();
        options.recheck = Duration::ZERO;
        options
    }
}

/// Runs `test` with a new fixture on each backend.
pub(crate) fn for_each_backend(
    options: SiteOptions,
    test: impl AsyncFn(Fixture) + Clone + 'static,
) {
    for backend in [Backend::Uring, Backend::Fallback] {
        let (options, test) = (options.clone(), test.clone());
        let run = Runtime::builder()
            .backend(backend)
            .block_on(async move { test(Fixture::new(options)).await });
        match run {
            Ok(()) => {}
            Err(error) if error.allows_fallback() => skip(format_args!("{backend:?}: {error}")),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

impl Fixture {
    fn new(mut options: SiteOptions) -> Fixture {
        let around = tempfile::tempdir().unwrap();
        std::fs::create_dir(around.path().join("root")).unwrap();
        if options.root.as_os_str().is_empty() {
            options.root = around.path().join("root");
        }
        Fixture {
            around,
            site: Site::open(&options).unwrap(),
            recheck: options.recheck,
        }
    }

    /// Returns a path below the root; `../x` is beside it.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.around.path().join("root").join(name)
    }

    /// Writes a file, and creates its directories.
    pub(crate) fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) async fn get(&self, target: &str) -> Received {
        self.get_with(target, &[]).await
    }

    pub(crate) async fn get_with(&self, target: &str, fields: &[(&str, &str)]) -> Received {
        self.request(Method::Get, target.as_bytes(), fields).await
    }

    pub(crate) async fn status(&self, target: &str) -> u16 {
        self.get(target).await.status
    }

    /// Returns the response with its body, and checks that the fast path returns the same, if it returns anything.
    pub(crate) async fn request(
        &self,
        method: Method,
        target: &[u8],
        fields: &[(&str, &str)],
    ) -> Received {
        let response = self.response(method, target, fields).await;
        let status = response.status;
        let received = Received::of(response).await;
        let plain = !fields.iter().any(|(name, _)| CONDITIONAL.contains(name));
        let mut encodings = fields.iter().filter(|(name, _)| *name == "accept-encoding");
        let encoding = encodings.next().map(|(_, value)| value.as_bytes());
        let plain = plain && encodings.next().is_none();
        if method == Method::Get
            && plain
            && self.recheck > Duration::ZERO
            && let Some(prompt) = self.site.ready(Instant::now(), target, encoding)
        {
            let (ready, body) = match prompt {
                Prompt::Whole(ready) => (Rc::clone(&ready), ready.body().to_vec()),
                Prompt::Opened { ready, file, bytes } => {
                    assert!(ready.body().is_empty());
                    (ready, read(&file, 0, bytes).await.unwrap())
                }
            };
            let head = str::from_utf8(ready.head()).unwrap();
            let lines = head.strip_suffix("\r\n\r\n").unwrap().split("\r\n");
            let pairs = lines.map(|line| line.split_once(": ").unwrap());
            let fields: Vec<(String, String)> = pairs
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            assert_eq!((ready.status(), &fields), (status, &received.fields));
            assert!(body == received.body);
        }
        received
    }

    /// Returns a response that the fast path has in memory.
    pub(crate) fn cached(&self, target: &str, encoding: Option<&[u8]>) -> Option<Rc<Ready>> {
        match self.site.ready(Instant::now(), target.as_bytes(), encoding) {
            Some(Prompt::Whole(ready)) => Some(ready),
            Some(Prompt::Opened { .. }) | None => None,
        }
    }

    /// Returns the length of a file that the fast path has open.
    pub(crate) fn open_bytes(&self, target: &str) -> Option<u64> {
        match self.site.ready(Instant::now(), target.as_bytes(), None) {
            Some(Prompt::Opened { bytes, .. }) => Some(bytes),
            Some(Prompt::Whole(_)) | None => None,
        }
    }

    pub(crate) async fn response(
        &self,
        method: Method,
        target: &[u8],
        fields: &[(&str, &str)],
    ) -> SiteResponse {
        let request = SiteRequest {
            method,
            target,
            fields: &Lines(fields),
        };
        self.site.response(&request).await
    }
}

struct Lines<'a>(&'a [(&'a str, &'a str)]);

impl FieldLines for Lines<'_> {
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        for (_, value) in self.0.iter().filter(|(named, _)| *named == name) {
            each(value.as_bytes());
        }
    }
}

/// A response with its body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) async fn of(response: SiteResponse) -> Received {
        Received::read(response).await.unwrap()
    }

    /// Panics if the body does not have the announced length. Fails if it cannot be read to its end.
    pub(crate) async fn read(response: SiteResponse) -> io::Result<Received> {
        let pieces = match response.body {
            Body::Empty => Vec::new(),
            Body::Bytes(ref bytes) => vec![Piece::Bytes(bytes.clone())],
            Body::File {
                ref file,
                offset,
                bytes,
            } => {
                vec![Piece::File {
                    file: Rc::clone(file),
                    offset,
                    bytes,
                }]
            }
            Body::Parts { ref pieces, .. } => pieces.clone(),
        };
        let mut body = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => body.extend_from_slice(&bytes),
                Piece::File {
                    file,
                    offset,
                    bytes,
                } => {
                    body.extend(read(&file, offset, bytes).await?);
                }
            }
        }
        assert_eq!(body.len() as u64, response.body.bytes());
        let text = |value: &str| value.to_owned();
        let fields: Vec<_> = response
            .fields
            .iter()
            .map(|(name, value)| (text(name.as_str()), text(value.to_str().unwrap())))
            .collect();
        let received = Received {
            status: response.status.as_u16(),
            fields,
            body,
        };
        match received.field("content-length") {
            Some(bytes) => assert_eq!(bytes, received.body.len().to_string()),
            None => assert!(matches!(received.status, 204 | 304), "{received:?}"),
        }
        Ok(received)
    }

    /// Returns the only field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut matching = self.fields.iter().filter(|(named, _)| named == name);
        let first = matching.next();
        assert!(
            matching.next().is_none(),
            "{name} twice in {:?}",
            self.fields
        );
        first.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) async fn read(file: &OpenFile, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let buf = vec![0; bytes as usize];
    Ok(file.file().read_exact_at(buf, offset).await?)
}

/// Runs `body` in a separate process, as a user without rights if `as_other` and possible.
#[track_caller]
pub(crate) fn in_child(test: &str, as_other: bool, body: impl FnOnce()) {
    if std::env::var(ROLE).as_deref() == Ok(test) {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, test)
        .env_remove("ANNULUS_SKIP_LOG")
        .stdin(Stdio::null());
    if as_other && is_root() {
        command.uid(own_user()).gid(own_user()).current_dir("/");
    }
    let output = match command.output() {
        Err(error) if as_other => return skip(format_args!("as another user: {error}")),
        output => output.unwrap(),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(
        passed,
        "the child of {test}: {}\n{text}\n{errors}",
        output.status
    );
    for line in text.lines() {
        println!("{line}");
        if let Some(at) = line.find("skip: ") {
            log(&line[at..]);
        }
    }
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}
