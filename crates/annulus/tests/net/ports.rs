//! The owners of an address: the cores of one runtime share it, and no other socket can use it.

use std::future::Future;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as Client};
use std::os::unix::net::UnixStream as UnixClient;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use annulus::Backend;
use annulus::net::{ListenOptions, TcpListener, UdpSocket, UnixListener};
use annulus::runtime::{CoreInfo, Runtime, spawn};
use annulus::time::{sleep, timeout};
use annulus_testing::skip::skip;

use crate::dropped::polled;
use crate::fixtures::for_each_way;

const ANY: &str = "127.0.0.1:0";
const BACKENDS: [Backend; 2] = [Backend::Uring, Backend::Fallback];

/// Runs `main` on each of `cores` cores. Returns `false` if the backend cannot run here.
fn run<F>(backend: Backend, cores: usize, main: impl Fn(CoreInfo) -> F + Send + Sync) -> bool
where
    F: Future<Output = io::Result<()>> + 'static,
{
    match Runtime::builder().backend(backend).cores(cores).run(main) {
        Ok(()) => true,
        Err(error)
            if backend == Backend::Uring
                && Runtime::builder()
                    .backend(backend)
                    .block_on(async {})
                    .is_err() =>
        {
            skip(format_args!("{backend:?}: {error}"));
            false
        }
        Err(error) => panic!("{backend:?}: {error}"),
    }
}

/// An address that the first core binds, and then the others.
#[derive(Clone)]
struct Meeting {
    at: Arc<Mutex<SocketAddr>>,
    /// Waits until all cores have started, and later until all are done.
    barrier: Arc<Barrier>,
}

impl Meeting {
    fn new(cores: usize) -> Meeting {
        Meeting {
            at: Arc::new(Mutex::new(ANY.parse().unwrap())),
            barrier: Arc::new(Barrier::new(cores)),
        }
    }

    /// Called on each core before other tasks run.
    fn listen(&self, options: &ListenOptions) -> io::Result<TcpListener> {
        let mut at = self.at.lock().unwrap();
        let listener = TcpListener::bind_with(*at, options)?;
        *at = listener.local_addr()?;
        Ok(listener)
    }

    fn address(&self) -> SocketAddr {
        *self.at.lock().unwrap()
    }
}

fn is_taken<T>(bound: io::Result<T>) -> bool {
    match bound {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            true
        }
    }
}

/// Runs `ask` on a core of another runtime with the same number of cores.
fn elsewhere<T: Send + 'static>(
    backend: Backend,
    cores: usize,
    ask: impl Fn() -> T + Send + Sync + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let other = thread::spawn(move || {
        run(backend, cores, |core| {
            if core.index() == 0 {
                sender.send(ask()).unwrap();
            }
            async { Ok(()) }
        })
    });
    other.join().unwrap();
    receiver.recv().unwrap()
}

#[test]
fn cores_of_one_runtime_share_an_address_and_its_connections() {
    const CORES: usize = 3;
    for backend in BACKENDS {
        let meeting = Meeting::new(CORES);
        let accepted: Arc<[AtomicUsize; CORES]> = Arc::default();
        run(backend, CORES, |core| {
            let listener = meeting.listen(&ListenOptions::new()).unwrap();
            meeting.barrier.wait();
            let (accepted, address) = (Arc::clone(&accepted), meeting.address());
            async move {
                assert_eq!(listener.local_addr()?, address);
                let mut incoming = listener.accept_multishot();
                let (counts, index) = (Arc::clone(&accepted), core.index());
                let accepting = spawn(async move {
                    while let Some(Ok(_)) = incoming.next().await {
                        counts[index].fetch_add(1, Relaxed);
                    }
                });
                let all = || accepted.iter().all(|count| count.load(Relaxed) > 0);
                while !all() {
                    if index == 0 {
                        drop(Client::connect(address)?);
                    }
                    sleep(Duration::from_micros(100)).await;
                }
                accepting.abort();
                Ok(())
            }
        });
    }
}

#[test]
fn other_sockets_are_refused_the_address_until_this_runtime_ends() {
    for backend in BACKENDS {
        for cores in [1, 2] {
            let meeting = Meeting::new(cores);
            let ran = run(backend, cores, |core| {
                let listener = meeting.listen(&ListenOptions::new()).unwrap();
                meeting.barrier.wait();
                let address = meeting.address();
                if core.index() == 0 {
                    for others in [1, 2] {
                        let ask = move || is_taken(TcpListener::bind(address));
                        assert!(elsewhere(backend, others, ask), "{cores}, {others} cores");
                    }
                    assert!(is_taken(StdListener::bind(address)));
                    // A core cannot have two listeners there either.
                    assert!(is_taken(TcpListener::bind(address)));
                }
                meeting.barrier.wait();
                async move {
                    drop(listener);
                    Ok(())
                }
            });
            let address = meeting.address();
            if ran {
                let ask = move || is_taken(TcpListener::bind(address));
                assert!(!elsewhere(backend, cores, ask), "it has ended");
            }
        }
    }
}

#[test]
fn port_0_is_a_new_port_for_each_core_and_each_call() {
    for backend in BACKENDS {
        let ports: Arc<Mutex<Vec<u16>>> = Arc::default();
        let barrier = Barrier::new(3);
        let ran = run(backend, 3, |_| {
            let listeners = [(); 4].map(|()| TcpListener::bind(ANY).unwrap());
            let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
            ports.lock().unwrap().extend(listeners.iter().map(port));
            barrier.wait();
            async move {
                drop(listeners);
                Ok(())
            }
        });
        let mut ports = ports.lock().unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert!(!ran || ports.len() == 12, "{ports:?}");
    }
}

#[test]
fn an_address_is_free_as_soon_as_its_listener_has_been_dropped() {
    for_each_way(|_| async {
        let first = TcpListener::bind(ANY).unwrap();
        let address = first.local_addr().unwrap();
        drop(first);
        let second = TcpListener::bind(address).unwrap();
        // With an accept in flight in the kernel.
        assert!(polled(second.accept(), 3).await.is_none());
        drop(second);
        let mut third = TcpListener::bind(address).unwrap().accept_multishot();
        assert!(polled(third.next(), 3).await.is_none());
        drop(third);
        let fourth = TcpListener::bind(address).unwrap();
        let client = Client::connect(address).unwrap();
        drop((fourth.accept().await.unwrap(), client));
    });
}

#[test]
fn a_core_that_has_dropped_its_listener_joins_the_others_again() {
    for backend in BACKENDS {
        let meeting = Meeting::new(2);
        run(backend, 2, |core| {
            let mut listener = Some(meeting.listen(&ListenOptions::new()).unwrap());
            for again in 0..4 {
                meeting.barrier.wait();
                if core.index() == again % 2 {
                    drop(listener.take());
                    listener = Some(TcpListener::bind(meeting.address()).unwrap());
                }
            }
            meeting.barrier.wait();
            async move {
                drop(listener);
                Ok(())
            }
        });
    }
}

/// Makes a connection that the server ends, so that the port lingers in TIME_WAIT.
async fn lingering(listener: &TcpListener) {
    let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener.accept().await.unwrap());
    // The core closes it in its next poll.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_address_with_lingering_connections_can_be_bound_again_unless_disabled() {
    for_each_way(|_| async {
        let listener = TcpListener::bind(ANY).unwrap();
        let address = listener.local_addr().unwrap();
        lingering(&listener).await;
        drop(listener);
        let again = TcpListener::bind(address).unwrap();
        assert!(again.options().reuse_address().unwrap());
        drop(again);
        let strict = ListenOptions::new().reuse_address(false);
        assert!(is_taken(TcpListener::bind_with(address, &strict)));
        let other = TcpListener::bind_with(ANY, &strict).unwrap();
        assert!(!other.options().reuse_address().unwrap());
    });
}

#[test]
fn a_port_is_shared_with_other_processes_only_if_both_request_it() {
    let shared = || ListenOptions::new().reuse_port(true);
    for backend in BACKENDS {
        run(backend, 1, |_| {
            let first = TcpListener::bind_with(ANY, &shared()).unwrap();
            assert!(first.options().reuse_port().unwrap());
            let address = first.local_addr().unwrap();
            let second = TcpListener::bind_with(address, &shared()).unwrap();
            let joins = move || is_taken(TcpListener::bind_with(address, &shared()));
            assert!(!elsewhere(backend, 2, joins));
            let bare = move || is_taken(TcpListener::bind(address));
            assert!(elsewhere(backend, 2, bare));
            async move {
                drop((first, second));
                Ok(())
            }
        });
    }
}

#[test]
fn cores_share_nothing_if_sharing_is_disabled() {
    let alone = ListenOptions::new().shared_by_cores(false);
    for backend in BACKENDS {
        let (meeting, taken) = (Meeting::new(2), AtomicUsize::new(0));
        let ran = run(backend, 2, |_| {
            let listener = meeting.listen(&alone);
            if let Ok(listener) = &listener {
                assert!(!listener.options().reuse_port().unwrap());
            }
            meeting.barrier.wait();
            taken.fetch_add(usize::from(is_taken(listener)), Relaxed);
            async { Ok(()) }
        });
        assert!(!ran || taken.load(Relaxed) == 1);
    }
}

#[test]
fn cores_of_one_runtime_share_an_address_for_datagrams() {
    const CORES: usize = 2;
    for backend in BACKENDS {
        let meeting = Meeting::new(CORES);
        let received: Arc<[AtomicUsize; CORES]> = Arc::default();
        run(backend, CORES, |core| {
            let mut at = meeting.at.lock().unwrap();
            let socket = UdpSocket::bind_shared(*at).unwrap();
            *at = socket.local_addr().unwrap();
            drop(at);
            meeting.barrier.wait();
            let address = meeting.address();
            if core.index() == 0 {
                let shared = move || is_taken(UdpSocket::bind_shared(address));
                assert!(elsewhere(backend, CORES, shared));
                assert!(is_taken(UdpSocket::bind(address)));
                assert!(is_taken(std::net::UdpSocket::bind(address)));
            }
            meeting.barrier.wait();
            let received = Arc::clone(&received);
            async move {
                let all = || received.iter().all(|count| count.load(Relaxed) > 0);
                while !all() {
                    if core.index() == 0 {
                        std::net::UdpSocket::bind(ANY)?.send_to(b"x", address)?;
                    }
                    if let Ok(one) =
                        timeout(Duration::from_millis(1), socket.recv(vec![0; 1])).await
                    {
                        one.unwrap();
                        received[core.index()].fetch_add(1, Relaxed);
                    }
                }
                Ok(())
            }
        });
    }
}

#[test]
fn a_path_has_one_listener_and_the_configured_backlog() {
    for_each_way(|_| async {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("socket");
        let options = ListenOptions::new().backlog(0);
        let listener = UnixListener::bind_with(&path, &options).unwrap();
        assert!(is_taken(UnixListener::bind(&path)));
        let client = UnixClient::connect(&path).unwrap();
        let second = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        );
        let second = second.unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        let refused = rustix::net::connect(&second, &address).unwrap_err();
        assert_eq!(
            refused,
            rustix::io::Errno::AGAIN,
            "one waits, and that is all"
        );
        let mut incoming = listener.accept_multishot();
        incoming.next().await.unwrap().unwrap();
        rustix::net::connect(&second, &address).unwrap();
        drop(client);
    });
}
