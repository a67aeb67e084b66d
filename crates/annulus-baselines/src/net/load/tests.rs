//! Tests of the generator against small threaded servers that are correct, or make one mistake.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{Kind, Moment, Outcome, Pace, Plan, Target, Workload, os, run};
use crate::Failure;

mod stores;

/// The limit after which a test counts as hanging. It decides nothing else.
const PATIENCE: Duration = Duration::from_secs(60);
/// A run without progress on a busy machine is repeated, longer by this factor.
const STRETCHED: u32 = 4;
const STRETCHED_MAX: Duration = PATIENCE;

/// Starts a server with a thread per connection, which gets the connection's number.
fn serve(each: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let each = Arc::new(each);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (each, stream) = (Arc::clone(&each), stream.unwrap());
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || each(stream, number));
        }
    });
    Target::Tcp(address)
}

fn echo(mut stream: impl Read + Write) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

fn plan(target: Target, workload: Workload) -> Plan {
    Plan {
        target,
        workload,
        connections: 4,
        pipeline: 1,
        pace: Pace::Closed,
        reconnect: false,
        disconnect: false,
        threads: 1,
        cpus: Vec::new(),
        warmup: Duration::from_millis(20),
        runtime: Duration::from_millis(150),
        timeout: PATIENCE,
        seed: 42,
    }
}

/// Runs the plan, unless the kernel refuses a ring.
fn outcome(plan: &Plan) -> Option<Outcome> {
    outcome_with(plan, |outcome| {
        outcome.responses > 0 || outcome.errors.total() > 0
    })
}

/// Repeats the run until `has_happened` is true for its outcome.
fn outcome_with(plan: &Plan, has_happened: impl Fn(&Outcome) -> bool) -> Option<Outcome> {
    let mut stretched = plan.clone();
    loop {
        match run(&stretched, &mut |_, _| {}) {
            Ok(outcome) if has_happened(&outcome) => return Some(outcome),
            Ok(outcome) if stretched.runtime * STRETCHED > STRETCHED_MAX => return Some(outcome),
            Ok(_) => stretched.runtime *= STRETCHED,
            Err(Failure::Unavailable(why)) => {
                println!("skip: {why}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn assert_good(plan: &Plan) {
    let Some(outcome) = outcome(plan) else {
        return;
    };
    assert_eq!(outcome.faults, Vec::<String>::new());
    assert!(outcome.responses > 0);
    assert_eq!(outcome.all_responses, outcome.requests);
    assert_eq!(outcome.latency.len(), outcome.responses);
}

#[test]
fn every_message_comes_back_whatever_its_size_and_pipeline() {
    let target = serve(|stream, _| echo(stream));
    for (bytes, pipeline) in [(1, 1), (128, 1), (128, 16), (5000, 3), (200_000, 2)] {
        assert_good(&Plan {
            pipeline,
            ..plan(target.clone(), Workload::Echo { bytes })
        });
    }
}

#[test]
fn connections_are_shared_among_threads_and_all_are_held() {
    let target = serve(|stream, _| echo(stream));
    let plan = Plan {
        connections: 101,
        threads: 2,
        ..plan(target, Workload::Echo { bytes: 64 })
    };
    let Some(outcome) = outcome(&plan) else {
        return;
    };
    assert_eq!(outcome.faults, Vec::<String>::new());
    assert_eq!(outcome.open_at_end, 101);
    assert_eq!(outcome.client_cpu.len(), 2);
}

/// Responds on all connections together, when each has sent a request or no more arrive. Returns when the client
/// closes one.
fn respond_together(streams: &[TcpStream]) {
    let mut pending = vec![None; streams.len()];
    let (mut count, mut silent) = (0, 0);
    loop {
        let before = count;
        for (mut stream, pending) in streams.iter().zip(&mut pending) {
            let mut message = [0; 64];
            if pending.is_none() {
                match stream.read(&mut message) {
                    Ok(1..) => (*pending, count) = (Some(message), count + 1),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(0) | Err(_) => return,
                }
            }
        }
        silent = if count == before { silent + 1 } else { 0 };
        // A client that ends its measurement does not send on all of them.
        if count < streams.len() && silent < 10 {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        for (mut stream, pending) in streams.iter().zip(&mut pending) {
            if let Some(message) = pending.take() {
                let _ = stream.write_all(&message);
            }
        }
        (count, silent) = (0, 0);
    }
}

#[test]
fn responses_that_come_all_at_once_are_each_requested_twice_at_most() {
    const CONNECTIONS: usize = 1000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    thread::spawn(move || {
        // On the client's processor, so that the responses arrive as a burst.
        os::pin(0).unwrap();
        loop {
            // The first connection of a run only checks that the server is running.
            let connections = listener.incoming().skip(1).take(CONNECTIONS);
            let streams: Vec<TcpStream> = connections.map(|stream| stream.unwrap()).collect();
            for stream in &streams {
                stream.set_nonblocking(true).unwrap();
            }
            respond_together(&streams);
        }
    });
    let plan = Plan {
        connections: CONNECTIONS,
        cpus: vec![0],
        ..plan(target, Workload::Echo { bytes: 64 })
    };
    let Some(outcome) = outcome(&plan) else {
        return;
    };
    assert_eq!(outcome.faults, Vec::<String>::new());
    assert!(
        outcome.out_of_buffers <= outcome.all_responses,
        "{} times no buffer, {} responses",
        outcome.out_of_buffers,
        outcome.all_responses
    );
}

#[test]
fn a_unix_socket_is_queried_like_any_other() {
    let path = std::env::temp_dir().join(format!("annulus-load-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo(stream.unwrap()));
        }
    });
    let target = Target::parse(&format!("unix:{}", path.display())).unwrap();
    assert_good(&plan(target, Workload::Echo { bytes: 100 }));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_connection_for_each_request_is_a_connection_for_each_request() {
    let accepted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&accepted);
    let target = serve(move |stream, _| {
        count.fetch_add(1, Ordering::SeqCst);
        echo(stream);
    });
    let plan = Plan {
        reconnect: true,
        ..plan(target, Workload::Echo { bytes: 32 })
    };
    let Some(outcome) = outcome(&plan) else {
        return;
    };
    assert_eq!(outcome.faults, Vec::<String>::new());
    // One more for the connection that checks the server.
    assert_eq!(accepted.load(Ordering::SeqCst), outcome.requests + 1);
}

#[test]
fn at_a_fixed_rate_the_clock_decides_the_number_of_requests() {
    let target = serve(|stream, _| echo(stream));
    for reconnect in [false, true] {
        let plan = Plan {
            pace: Pace::Rate(1000.0),
            reconnect,
            runtime: Duration::from_millis(500),
            ..plan(target.clone(), Workload::Echo { bytes: 32 })
        };
        let Some(outcome) = outcome(&plan) else {
            return;
        };
        assert_eq!(outcome.errors.total(), 0, "{:?}", outcome.faults);
        // Each due request is recorded, however slow the machine is.
        let due = outcome.due_latency.unwrap().len() as f64;
        let pending = outcome.measured.as_secs_f64() * 1000.0;
        assert!((due - pending).abs() <= 2.0, "{due} of {pending}");
    }
}

#[test]
fn a_pause_is_seen_by_all_requests_that_were_due_in_it() {
    let measures = Arc::new(AtomicBool::new(false));
    let (observed, begun) = (AtomicUsize::new(0), Arc::clone(&measures));
    let target = serve(move |mut stream, _| {
        let mut buffer = [0; 32];
        while stream.read_exact(&mut buffer).is_ok() {
            // Once, in the middle of the measured time.
            if begun.load(Ordering::SeqCst) && observed.fetch_add(1, Ordering::SeqCst) == 400 {
                thread::sleep(Duration::from_millis(300));
            }
            if stream.write_all(&buffer).is_err() {
                return;
            }
        }
    });
    let plan = Plan {
        connections: 1,
        pace: Pace::Rate(1000.0),
        runtime: Duration::from_millis(1500),
        ..plan(target, Workload::Echo { bytes: 32 })
    };
    let ran = run(&plan, &mut |moment, _| {
        measures.fetch_or(moment == Moment::Begin, Ordering::SeqCst);
    });
    let outcome = match ran {
        Ok(outcome) => outcome,
        Err(Failure::Unavailable(why)) => return println!("skip: {why}"),
        Err(error) => panic!("{error}"),
    };
    let due = outcome.due_latency.unwrap();
    // About 300 of 1,500 were due in the pause. The uncorrected times show one response.
    assert!(due.max() >= 250_000_000, "{}", due.max());
    assert!(due.value_at_quantile(0.95) >= 100_000_000);
    assert!(outcome.latency.value_at_quantile(0.95) < due.value_at_quantile(0.95));
}

/// The server responds to a fiftieth of the rate, so most requests are never sent. All that were sent get a response.
#[test]
fn a_server_that_is_too_slow_for_the_rate_leaves_no_request_without_a_response() {
    let target = serve(|mut stream, _| {
        let mut buffer = [0; 32];
        while stream.read_exact(&mut buffer).is_ok() {
            thread::sleep(Duration::from_millis(20));
            if stream.write_all(&buffer).is_err() {
                return;
            }
        }
    });
    for reconnect in [false, true] {
        let plan = Plan {
            pace: Pace::Rate(10_000.0),
            reconnect,
            timeout: Duration::from_secs(4),
            runtime: Duration::from_secs(2),
            ..plan(target.clone(), Workload::Echo { bytes: 32 })
        };
        let Some(outcome) = outcome(&plan) else {
            return;
        };
        assert!(outcome.never_sent > 0);
        assert_eq!(outcome.faults.len(), 1, "{:?}", outcome.faults);
        assert!(outcome.faults[0].starts_with("the rate was not reached"));
    }
}

/// Asserts that a run counts errors of this kind only.
fn assert_counted(kind: Kind, plan: &Plan) {
    let Some(outcome) = outcome_with(plan, |outcome| outcome.errors.total() > 0) else {
        return;
    };
    assert!(outcome.errors.count(kind) > 0, "{:?}", outcome.faults);
    assert_eq!(
        outcome.errors.count(kind),
        outcome.errors.total(),
        "{:?}",
        outcome.faults
    );
    assert!(
        outcome.faults[0].contains(kind.name()),
        "{:?}",
        outcome.faults
    );
    assert_eq!(
        outcome.requests,
        outcome.all_responses + outcome.dropped + outcome.unanswered
    );
}

/// Starts an echo server that passes the tenth message of each connection to `wrong`.
fn wrong_once(wrong: impl Fn(&mut TcpStream, &mut [u8]) -> bool + Send + Sync + 'static) -> Target {
    serve(move |mut stream, _| {
        let mut buffer = [0; 64];
        for number in 1.. {
            if stream.read_exact(&mut buffer).is_err() {
                return;
            }
            if number == 10 && !wrong(&mut stream, &mut buffer) {
                return;
            }
            if stream.write_all(&buffer).is_err() {
                return;
            }
        }
    })
}

#[test]
fn wrong_bytes_are_counted() {
    let target = wrong_once(|_, bytes| {
        bytes[40] ^= 1;
        true
    });
    assert_counted(
        Kind::WrongResponse,
        &plan(target, Workload::Echo { bytes: 64 }),
    );
}

#[test]
fn bytes_that_were_not_requested_are_counted() {
    let target = wrong_once(|stream, bytes| stream.write_all(bytes).is_ok());
    assert_counted(
        Kind::WrongResponse,
        &plan(target, Workload::Echo { bytes: 64 }),
    );
}

#[test]
fn a_connection_closed_early_is_counted() {
    let target = wrong_once(|_, _| false);
    assert_counted(
        Kind::ClosedEarly,
        &plan(target, Workload::Echo { bytes: 64 }),
    );
}

#[test]
fn a_reset_is_counted() {
    // Closing with unread bytes sends a reset.
    let target = serve(|mut stream, _| {
        let _ = stream.read_exact(&mut [0; 10]);
    });
    assert_counted(Kind::Reset, &plan(target, Workload::Echo { bytes: 4096 }));
}

#[test]
fn a_server_that_stalls_is_counted() {
    let target = wrong_once(|_, _| {
        thread::sleep(Duration::from_secs(20));
        true
    });
    let plan = Plan {
        timeout: Duration::from_millis(100),
        runtime: Duration::from_millis(500),
        ..plan(target, Workload::Echo { bytes: 64 })
    };
    assert_counted(Kind::Timeout, &plan);
}

#[test]
fn a_server_that_is_not_there_is_reported() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    match run(
        &plan(Target::Tcp(port), Workload::Echo { bytes: 64 }),
        &mut |_, _| {},
    ) {
        Err(Failure::Unavailable(why)) => println!("skip: {why}"),
        Err(Failure::Failed(why)) => assert!(why.contains("is the server running"), "{why}"),
        Ok(_) => panic!("connected without a server"),
    }
}

/// Starts a server that sends `response` after each request, which ends with an empty line.
fn http(response: &'static [u8]) -> Target {
    serve(move |mut stream, _| {
        let (mut buffer, mut observed) = ([0; 4096], Vec::new());
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            observed.extend_from_slice(&buffer[..len]);
            while let Some(end) = observed.windows(4).position(|four| four == b"\r\n\r\n") {
                observed.drain(..end + 4);
                if stream.write_all(response).is_err() {
                    return;
                }
            }
        }
    })
}

fn get() -> Workload {
    http_workload(None, None)
}

fn http_workload(post_bytes: Option<usize>, body: Option<&[u8]>) -> Workload {
    Workload::Http {
        path: "/x".into(),
        post_bytes,
        host: "localhost".into(),
        body: body.map(Arc::from),
        compared: 1,
    }
}

#[test]
fn http_responses_are_read_with_a_length_and_in_chunks() {
    for response in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        let target = http(response);
        for (pipeline, reconnect) in [(1, false), (8, false), (1, true)] {
            assert_good(&Plan {
                pipeline,
                reconnect,
                ..plan(target.clone(), get())
            });
        }
    }
}

#[test]
fn posts_have_a_body_of_the_given_length() {
    const REQUEST: &str = "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n\
        Content-Length: ";
    for (post_bytes, pipeline) in [(0, 1), (1, 8), (100_000, 1), (3000, 3)] {
        let request = format!("{REQUEST}{post_bytes}\r\n\r\n{}", "x".repeat(post_bytes));
        let target = serve(move |mut stream, _| {
            let mut received = vec![0; request.len()];
            while stream.read_exact(&mut received).is_ok() && received == request.as_bytes() {
                if stream
                    .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                    .is_err()
                {
                    return;
                }
            }
        });
        assert_good(&Plan {
            pipeline,
            ..plan(target, http_workload(Some(post_bytes), None))
        });
    }
}

#[test]
fn a_client_that_disconnects_sends_whole_requests_and_awaits_no_response() {
    const REQUEST: &[u8] = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (whole, others) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (Arc::clone(&whole), Arc::clone(&others));
    let target = serve(move |mut stream, _| {
        let mut received = Vec::new();
        let read = stream.read_to_end(&mut received);
        let count = match (read, &received[..]) {
            (Ok(_), REQUEST) => &counts.0,
            // `outcome` looks whether a server is there.
            (Ok(0), _) => return,
            _ => &counts.1,
        };
        count.fetch_add(1, Ordering::Relaxed);
    });
    for pace in [Pace::Closed, Pace::Rate(200.0)] {
        let plan = Plan {
            reconnect: true,
            disconnect: true,
            pace,
            ..plan(target.clone(), get())
        };
        let before = whole.load(Ordering::Relaxed);
        // One run: the server counts all requests.
        let outcome = match run(&plan, &mut |_, _| {}) {
            Ok(outcome) => outcome,
            Err(Failure::Unavailable(why)) => return println!("skip: {why}"),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(outcome.errors.total(), 0, "{:?}", outcome.faults);
        assert_eq!(outcome.all_responses, outcome.requests);
        assert_eq!(outcome.all_received_bytes, 0);
        while whole.load(Ordering::Relaxed) - before < outcome.requests {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(others.load(Ordering::Relaxed), 0);
        assert_eq!(whole.load(Ordering::Relaxed) - before, outcome.requests);
    }
}

#[test]
fn an_http_response_with_another_body_is_counted() {
    let with = |body: &[u8]| http_workload(None, Some(body));
    let target = http(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
    assert_good(&plan(target.clone(), with(b"abc")));
    assert_counted(Kind::WrongResponse, &plan(target, with(b"abd")));
}

#[test]
fn http_errors_are_counted() {
    let target = http(b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\noh");
    assert_counted(Kind::HttpStatus, &plan(target, get()));
    let target = http(b"220 mail.example ESMTP\r\n");
    assert_counted(Kind::WrongResponse, &plan(target, get()));
}

#[test]
fn the_caller_is_notified_when_the_measured_time_begins_and_ends() {
    let target = serve(|stream, _| echo(stream));
    let mut moments = Vec::new();
    let plan = plan(target, Workload::Echo { bytes: 8 });
    match run(&plan, &mut |moment, _| moments.push(moment)) {
        Err(Failure::Unavailable(why)) => println!("skip: {why}"),
        Err(error) => panic!("{error}"),
        Ok(_) => assert_eq!(moments, [Moment::Begin, Moment::End, Moment::After]),
    }
}
