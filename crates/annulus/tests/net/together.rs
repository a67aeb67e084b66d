//! Several tasks that wait for the same socket, and futures that are dropped beside them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::TcpStream as Client;
use std::os::unix::net::UnixStream as UnixClient;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use annulus::net::{TcpListener, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use annulus::runtime::{JoinHandle, spawn, yield_now};

use crate::dropped::polled;
use crate::echo::{connection, listen};
use crate::fixtures::for_each_way;

/// Lets spawned tasks run until they wait, and the core process events.
async fn run_others() {
    for _ in 0..4 {
        yield_now().await;
    }
}

/// Starts tasks that each accept one connection and keep it.
fn acceptors(listener: TcpListener, count: usize) -> Vec<JoinHandle<annulus::net::TcpStream>> {
    let listener = Rc::new(listener);
    let accept = |_| {
        let listener = Rc::clone(&listener);
        spawn(async move { listener.accept().await.unwrap() })
    };
    (0..count).map(accept).collect()
}

#[test]
fn each_waiting_task_accepts_one_client() {
    for count in [2, 40] {
        for_each_way(move |_| async move {
            let (listener, address) = listen();
            let accepting = acceptors(listener, count);
            run_others().await;
            let clients: Vec<_> = (0..count)
                .map(|_| Client::connect(address).unwrap())
                .collect();
            let mut accepted = Vec::new();
            for one in accepting {
                accepted.push(one.await.unwrap());
            }
            drop((accepted, clients));
        });
    }
}

#[test]
fn an_accept_that_is_dropped_takes_no_connection_from_the_task_that_waits() {
    for polls in 1..4 {
        for_each_way(move |_| async move {
            let (listener, address) = listen();
            let listener = Rc::new(listener);
            let waits = Rc::clone(&listener);
            let waits = spawn(async move { waits.accept().await.unwrap() });
            run_others().await;
            assert!(polled(listener.accept(), polls).await.is_none());
            let client = Client::connect(address).unwrap();
            drop((waits.await.unwrap(), client));
        });
    }
}

#[test]
fn an_accept_that_is_kept_and_not_polled_keeps_no_connection_from_another_task() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let listener = Rc::new(listener);
        let kept = Rc::clone(&listener);
        let mut kept = pin!(kept.accept());
        poll_fn(|context| {
            assert!(kept.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        let waits = Rc::clone(&listener);
        let waits = spawn(async move { waits.accept().await.unwrap() });
        run_others().await;
        let client = Client::connect(address).unwrap();
        drop((waits.await.unwrap(), client));
    });
}

#[test]
fn clients_of_a_path_are_accepted_by_all_tasks_that_wait() {
    for_each_way(|_| async {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("socket");
        let mut incoming = UnixListener::bind(&path).unwrap().accept_multishot();
        // Polled by one task, then by another.
        assert!(polled(incoming.next(), 1).await.is_none());
        let accepting = spawn(async move {
            for _ in 0..2 {
                incoming.next().await.unwrap().unwrap();
            }
        });
        run_others().await;
        let clients: Vec<_> = (0..2)
            .map(|_| UnixClient::connect(&path).unwrap())
            .collect();
        accepting.await.unwrap();
        drop(clients);
    });
}

/// Returns a stream that has received bulk data, so that its later receives use separate memory.
async fn bulky() -> (annulus::net::TcpStream, annulus::net::TcpStream) {
    let (client, server) = connection().await;
    const BYTES: usize = 2 << 20;
    let (client, sent) = (Rc::new(client), vec![7; BYTES]);
    let sends = Rc::clone(&client);
    let sends = spawn(async move { sends.send_all(sent).await.unwrap() });
    let mut left = BYTES;
    while left > 0 {
        left -= server.recv_multishot().next().await.unwrap().unwrap().len();
    }
    sends.await.unwrap();
    (Rc::into_inner(client).unwrap(), server)
}

#[test]
fn a_receive_in_bulk_that_is_dropped_takes_no_data_from_the_task_that_waits() {
    for first_goes in [true, false] {
        for_each_way(move |_| async move {
            let (client, server) = bulky().await;
            let server = Rc::new(server);
            let receive = || {
                let server = Rc::clone(&server);
                spawn(async move {
                    let next = server.recv_multishot().next().await;
                    next.unwrap().unwrap().to_vec()
                })
            };
            let (one, other) = (receive(), receive());
            run_others().await;
            let (goes, stays) = if first_goes {
                (one, other)
            } else {
                (other, one)
            };
            goes.abort();
            run_others().await;
            client.send_all(&b"here"[..]).await.unwrap();
            assert_eq!(stays.await.unwrap(), b"here");
        });
    }
}

/// Starts tasks that all do the same with one stream.
fn forty<T: 'static>(
    stream: UnixStream,
    act: impl AsyncFn(&UnixStream) -> T + Copy + 'static,
) -> Vec<JoinHandle<T>> {
    let stream = Rc::new(stream);
    let task = |_| {
        let stream = Rc::clone(&stream);
        spawn(async move { act(&stream).await })
    };
    (0..40).map(task).collect()
}

#[test]
fn each_of_many_tasks_that_receive_on_one_stream_is_woken() {
    for_each_way(|_| async {
        let (near, far) = UnixStream::pair().unwrap();
        let tasks = forty(far, async |far| far.recv(vec![0; 1]).await.unwrap().1);
        run_others().await;
        let bytes: Vec<u8> = (0..40).collect();
        near.send_all(bytes.clone()).await.unwrap();
        let mut got = Vec::new();
        for task in tasks {
            got.extend(task.await.unwrap());
        }
        got.sort_unstable();
        assert_eq!(got, bytes);
    });
}

#[test]
fn many_tasks_that_wait_until_a_stream_is_readable_are_all_woken() {
    for_each_way(|_| async {
        let (near, far) = UnixStream::pair().unwrap();
        let tasks = forty(far, async |far| far.readable().await.unwrap());
        run_others().await;
        near.send_all(&b"x"[..]).await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Bytes that a task gives back are for the tasks that wait meanwhile; no others arrive.
#[test]
fn bytes_that_are_put_back_wake_the_tasks_that_wait() {
    for bulk in [false, true] {
        for_each_way(move |_| async move {
            let (client, server) = if bulk {
                bulky().await
            } else {
                connection().await
            };
            let server = Rc::new(server);
            let same = Rc::clone(&server);
            let exact = spawn(async move { same.recv_exact(vec![0; 5]).await.map(drop) });
            run_others().await;
            client.send_all("here").await.unwrap();
            while rustix::io::ioctl_fionread(server.options()).unwrap() > 0 {
                run_others().await;
            }
            run_others().await;
            let waits: Vec<_> = (0..2)
                .map(|_| {
                    let server = Rc::clone(&server);
                    spawn(async move { server.recv(vec![0; 2]).await.unwrap().1 })
                })
                .collect();
            run_others().await;
            exact.abort();
            let mut got = Vec::new();
            for task in waits {
                got.extend(task.await.unwrap());
            }
            got.sort_unstable();
            assert_eq!(got, b"eehr");

            let held = spawn(async move {
                client.send_all("here").await.unwrap();
                client
            });
            let chunk = server.recv_multishot().next().await.unwrap().unwrap();
            let _client = held.await.unwrap();
            let same = Rc::clone(&server);
            let waits = spawn(async move { same.recv_exact(vec![0; 4]).await.unwrap() });
            run_others().await;
            server.recv_multishot().unread(chunk);
            assert_eq!(waits.await.unwrap(), b"here");
        });
    }
}

#[test]
fn a_datagram_of_a_receive_that_was_dropped_comes_before_the_next() {
    for polls in 1..4 {
        for_each_way(move |_| async move {
            let (sender, receiver) = UnixDatagram::pair().unwrap();
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = udp.local_addr().unwrap();
            let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            for text in ["first", "second", "third"] {
                sender.send(text).await.unwrap();
                client.send_to(text.as_bytes(), address).unwrap();
            }
            let (mut unix, mut internet) = (Vec::new(), Vec::new());
            let note = |texts: &mut Vec<String>, received: Option<Vec<u8>>| {
                texts.extend(received.map(|bytes| String::from_utf8(bytes).unwrap()));
            };
            let room = || Vec::with_capacity(10);
            let first = polled(receiver.recv(room()), polls).await;
            note(&mut unix, first.map(|first| first.unwrap().1));
            let first = polled(udp.recv_from(room()), polls).await;
            note(&mut internet, first.map(|first| first.unwrap().1));
            while unix.len() < 3 {
                note(&mut unix, Some(receiver.recv(room()).await.unwrap().1));
            }
            while internet.len() < 3 {
                note(&mut internet, Some(udp.recv(room()).await.unwrap().1));
            }
            assert_eq!(unix, ["first", "second", "third"]);
            assert_eq!(internet, unix);
        });
    }
}

#[test]
fn tasks_that_receive_datagrams_in_a_loop_take_turns() {
    const TASKS: usize = 5;
    const EACH: usize = 20;
    for_each_way(|_| async {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let receiver = Rc::new(receiver);
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (receiver, order) = (Rc::clone(&receiver), Rc::clone(&order));
                spawn(async move {
                    for _ in 0..EACH {
                        receiver.recv(vec![0; 4]).await.unwrap();
                        order.borrow_mut().push(task);
                    }
                })
            })
            .collect();
        run_others().await;
        for _ in 0..TASKS * EACH {
            sender.send("next").await.unwrap();
        }
        for task in tasks {
            task.await.unwrap();
        }
        let order = order.borrow();
        for round in order.chunks(TASKS) {
            assert_eq!(round, (0..TASKS).collect::<Vec<_>>(), "{order:?}");
        }
    });
}

#[test]
fn datagrams_by_receives_of_both_kinds_reach_all_tasks_that_wait() {
    for_each_way(|_| async {
        let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = socket.local_addr().unwrap();
        let tasks: Vec<_> = (0..12)
            .map(|task| {
                let socket = Rc::clone(&socket);
                spawn(async move {
                    match task % 3 {
                        0 => drop(socket.recv(vec![0; 4]).await.unwrap()),
                        1 => drop(socket.recv_multishot().next().await.unwrap().unwrap()),
                        _ => {
                            let mut datagrams = socket.recv_multishot();
                            let next = poll_fn(|context| datagrams.poll_next(context)).await;
                            drop(next.unwrap().unwrap());
                        }
                    }
                })
            })
            .collect();
        run_others().await;
        // Some tasks are aborted at any stage.
        tasks.iter().step_by(5).for_each(JoinHandle::abort);
        run_others().await;
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in &tasks {
            client.send_to(b"next", address).unwrap();
        }
        for (number, task) in tasks.into_iter().enumerate() {
            match task.await {
                Ok(()) => {}
                Err(error) => assert!(number % 5 == 0 && error.is_aborted(), "{error}"),
            }
        }
    });
}

/// A socket under test, and its sender.
enum Subject {
    Unix(UnixDatagram, std::os::unix::net::UnixDatagram),
    Udp(UdpSocket, std::net::UdpSocket),
}

impl Subject {
    fn new(is_unix: bool, dir: &std::path::Path) -> Subject {
        if is_unix {
            let path = dir.join(format!("{}", fastrand::u64(..)));
            let receiver = UnixDatagram::bind(&path).unwrap();
            let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
            sender.connect(&path).unwrap();
            return Subject::Unix(receiver, sender);
        }
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        Subject::Udp(receiver, sender)
    }

    fn send(&self, number: u32) {
        let bytes = number.to_le_bytes();
        let sent = match self {
            Subject::Unix(_, sender) => sender.send(&bytes),
            Subject::Udp(_, sender) => sender.send(&bytes),
        };
        assert_eq!(sent.unwrap(), 4);
    }

    /// Receives once, in a way that `way` selects.
    async fn receive(&self, way: u8) -> u32 {
        let room = Vec::with_capacity(4 + usize::from(way));
        let bytes = match (self, way % 4) {
            (Subject::Unix(socket, _), 0 | 1) => socket.recv(room).await.unwrap().1,
            (Subject::Unix(socket, _), _) => socket.recv_from(room).await.unwrap().1,
            (Subject::Udp(socket, _), 0) => socket.recv(room).await.unwrap().1,
            (Subject::Udp(socket, _), 1) => socket.recv_from(room).await.unwrap().1,
            (Subject::Udp(socket, _), 2) => {
                let next = socket.recv_multishot().next().await;
                next.unwrap().unwrap().chunk.to_vec()
            }
            (Subject::Udp(socket, _), _) => {
                let mut datagrams = socket.recv_multishot();
                let next = poll_fn(|context| datagrams.poll_next(context)).await;
                next.unwrap().unwrap().chunk.to_vec()
            }
        };
        u32::from_le_bytes(bytes.try_into().unwrap())
    }
}

/// The maximum number of queued datagrams: every kernel queues that many for a Unix socket.
const WAITING_MAX: u32 = 8;

/// The numbers of datagrams that were sent and received.
#[derive(Default)]
struct Model {
    sent: Cell<u32>,
    got: RefCell<Vec<u32>>,
}

/// Receives in all ways, with some receives dropped, while datagrams are outstanding.
async fn receives(subject: Rc<Subject>, model: Rc<Model>, seed: u64, count: u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut last = None;
    while (model.got.borrow().len() as u32) < count {
        let came = model.got.borrow().len() as u32;
        // Datagrams are sent while no receive is pending, and while one is.
        if model.sent.get() < count && model.sent.get() - came < WAITING_MAX && random.bool() {
            subject.send(model.sent.get());
            model.sent.set(model.sent.get() + 1);
        }
        if random.u8(..) < 60 {
            yield_now().await;
        }
        // Bounded, because another task may get the last datagram.
        let polls = random.u32(1..5);
        if let Some(number) = polled(subject.receive(random.u8(..)), polls).await {
            assert!(last < Some(number), "{number} after {last:?}");
            last = Some(number);
            model.got.borrow_mut().push(number);
        }
    }
}

#[test]
fn datagrams_under_random_cancels_are_neither_lost_nor_reordered() {
    const COUNT: u32 = 600;
    let seed = std::env::var("SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1717u64);
    println!("SEED={seed}");
    for (is_unix, tasks) in [(true, 1), (false, 1), (true, 4), (false, 4)] {
        for_each_way(move |_| async move {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let subject = Rc::new(Subject::new(is_unix, dir.path()));
            let model = Rc::new(Model::default());
            let tasks: Vec<_> = (0..tasks)
                .map(|task| {
                    let (subject, model) = (Rc::clone(&subject), Rc::clone(&model));
                    spawn(receives(subject, model, seed + (task << 32), COUNT))
                })
                .collect();
            let alone = tasks.len() == 1;
            for task in tasks {
                if let Err(error) = task.await {
                    std::panic::resume_unwind(error.into_panic().unwrap());
                }
            }
            let mut got = model.got.take();
            if !alone {
                // Each task has received its datagrams in order.
                got.sort_unstable();
            }
            assert_eq!(got, (0..COUNT).collect::<Vec<_>>());
        });
    }
}
