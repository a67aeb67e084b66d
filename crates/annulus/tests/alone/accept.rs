//! Accepts without free descriptors: the listener reports the error, waits, and continues when descriptors are free.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::net::TcpStream as Client;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{JoinHandle, Runtime, spawn};
use annulus::time::sleep;
use annulus_testing::child_process::in_child;
use annulus_testing::skip;

/// A lowered limit on descriptors; dropping it restores the old one.
struct Limited(libc::rlimit);

impl Limited {
    /// Leaves no free descriptor.
    fn to_what_is_open() -> Limited {
        let mut old = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: writes the given struct.
        let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old) };
        assert_eq!(done, 0);
        // The lowest free number.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let new = libc::rlimit {
            rlim_cur: next as u64,
            rlim_max: old.rlim_max,
        };
        // SAFETY: reads the given struct.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new) };
        assert_eq!(done, 0);
        Limited(old)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // SAFETY: reads the given struct.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
        assert_eq!(done, 0);
    }
}

/// The results of the accepts so far.
#[derive(Debug, Default)]
struct Counts {
    /// Accepted streams, which stay open.
    accepted: RefCell<Vec<TcpStream>>,
    errors: Cell<usize>,
}

impl Counts {
    fn note(&self, accepted: std::io::Result<TcpStream>) {
        match accepted {
            Ok(stream) => self.accepted.borrow_mut().push(stream),
            Err(error) => self.note_error(&error),
        }
    }

    fn note_error(&self, error: &std::io::Error) {
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        self.errors.set(self.errors.get() + 1);
    }

    fn count(&self) -> usize {
        self.accepted.borrow().len()
    }
}

/// The way in which connections are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Multishot,
    Singly,
    /// Two tasks accept, of which the one with this index ends during the shortage.
    Together(usize),
}

fn accept(listener: TcpListener, way: Way, counts: &Rc<Counts>) -> Vec<JoinHandle<()>> {
    let noted = Rc::clone(counts);
    if way == Way::Multishot {
        let mut incoming = listener.accept_multishot();
        let failed = Rc::clone(counts);
        incoming.on_failure(move |error| failed.note_error(error));
        return vec![spawn(async move {
            // The loop of the documentation: any other error ends the task.
            while let Some(accepted) = incoming.next().await {
                noted.note(Ok(accepted.unwrap()));
            }
        })];
    }
    let listener = Rc::new(listener);
    let tasks = if way == Way::Singly { 1 } else { 2 };
    let task = |_| {
        let (listener, noted) = (Rc::clone(&listener), Rc::clone(&noted));
        spawn(async move {
            loop {
                noted.note(listener.accept().await);
            }
        })
    };
    (0..tasks).map(task).collect()
}

/// Clients wait without a free descriptor; then descriptors become free.
async fn shortage(way: Way) {
    const CLIENTS: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Rc::new(Counts::default());
    // An accept in flight has already checked the limit (trap 32), so this one starts below it.
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| Client::connect(address).unwrap())
        .collect();
    let limited = Limited::to_what_is_open();
    let accepting = accept(listener, way, &counts);
    let begun = Instant::now();
    while counts.errors.get() < 5 * accepting.len() {
        sleep(Duration::from_millis(1)).await;
    }
    // Each task has had five errors, with a pause of 10 ms between two of them.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(40), "{took:?}: it spins");
    assert_eq!(counts.count(), 0);
    if let Way::Together(goes) = way {
        accepting[goes].abort();
    }
    drop(limited);
    while counts.count() < CLIENTS {
        sleep(Duration::from_millis(1)).await;
    }
    // Later connections are accepted as well.
    let late = Client::connect(address).unwrap();
    while counts.count() < CLIENTS + 1 {
        sleep(Duration::from_millis(1)).await;
    }
    accepting.iter().for_each(JoinHandle::abort);
    drop((clients, late));
}

#[test]
fn a_listener_without_descriptors_resumes_when_some_are_free() {
    in_child(
        "accept::a_listener_without_descriptors_resumes_when_some_are_free",
        || {
            for backend in [Backend::Uring, Backend::Fallback] {
                for way in [
                    Way::Multishot,
                    Way::Singly,
                    Way::Together(0),
                    Way::Together(1),
                ] {
                    let builder = Runtime::builder().backend(backend);
                    match builder.block_on(shortage(way)) {
                        Ok(()) => {}
                        Err(error) if error.allows_fallback() => skip::skip(error),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        },
    );
}
