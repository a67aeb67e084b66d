//! Random operations on many connections, some of them dropped, cut short or reset, with each result compared with a
//! model. A seed determines the operations, but not the kernel's behaviour.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{spawn, yield_now};

/// The head of each message: its number and its length.
const HEAD_BYTES: usize = 8;
const MESSAGE_BYTES_MAX: usize = 200_000;
/// The maximum number of operations on one connection.
const STEPS_MAX: u32 = 60;

/// The parameters of a storm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) seed: u64,
    pub(crate) operations: u64,
    /// The number of connections at a time.
    pub(crate) abreast: usize,
}

/// Counts of events, to be printed.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) operations: Cell<u64>,
    pub(crate) dropped: Cell<u64>,
    pub(crate) resets: Cell<u64>,
    pub(crate) connections: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get() + count);
}

/// The messages of one direction of a connection.
#[derive(Debug, Default)]
struct Sent {
    /// The numbers of the messages; `true` if the send was awaited to the end.
    messages: BTreeMap<u32, bool>,
    /// True if the last message and the end have been sent.
    complete: bool,
    /// True if either side has reset the connection, so that data in transit may be lost.
    reset: bool,
}

type Model = Rc<RefCell<Sent>>;

fn message(seed: u64, number: u32, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed ^ u64::from(number) << 32);
    let mut message = vec![0; count];
    random.fill(&mut message);
    message[..4].copy_from_slice(&number.to_le_bytes());
    message[4..8].copy_from_slice(&(count as u32).to_le_bytes());
    message
}

async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Returns the number of polls after which a future is dropped; most futures are awaited.
fn patience(random: &mut fastrand::Rng) -> u32 {
    if random.u8(..) < 70 {
        random.u32(0..4)
    } else {
        u32::MAX
    }
}

/// One direction: sends messages, records them, and ends the direction.
async fn talk(stream: &TcpStream, seed: u64, model: Model, tally: &Tally) {
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..random.u32(1..STEPS_MAX) {
        let most = if random.u8(..) < 20 {
            MESSAGE_BYTES_MAX
        } else {
            2000
        };
        let message = message(seed, number, random.usize(HEAD_BYTES..most));
        // It may arrive from its first poll on.
        model.borrow_mut().messages.insert(number, false);
        let sent = polled(stream.send_all(message), patience(&mut random)).await;
        add(&tally.operations, 1);
        match sent {
            Some(Ok(_)) => drop(model.borrow_mut().messages.insert(number, true)),
            Some(Err(error)) => {
                assert!(model.borrow().reset, "{error:?}");
                return;
            }
            None => add(&tally.dropped, 1),
        }
        if random.u8(..) < 30 {
            yield_now().await;
        }
    }
    // An empty send would not wait for earlier ones.
    let last = message(seed, u32::MAX, HEAD_BYTES);
    model.borrow_mut().messages.insert(u32::MAX, false);
    let Ok(_) = stream.send_all(last).await else {
        assert!(model.borrow().reset);
        return;
    };
    let mut model = model.borrow_mut();
    model.messages.insert(u32::MAX, true);
    model.complete = stream.shutdown(Shutdown::Write).is_ok();
}

/// The other end of a direction: receives in all ways, and compares.
struct Listening {
    seed: u64,
    model: Model,
    /// The start of an incomplete message.
    part: Vec<u8>,
    last: Option<u32>,
}

impl Listening {
    fn hear(&mut self, bytes: &[u8]) {
        self.part.extend_from_slice(bytes);
        loop {
            let Some(head) = self.part.first_chunk::<HEAD_BYTES>() else {
                return;
            };
            let word = |at: usize| {
                u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            let (number, count) = (word(0), word(4) as usize);
            assert!(
                (HEAD_BYTES..=MESSAGE_BYTES_MAX).contains(&count),
                "{count} bytes"
            );
            if self.part.len() < count {
                return;
            }
            let rest = self.part.split_off(count);
            let whole = std::mem::replace(&mut self.part, rest);
            assert!(
                whole == message(self.seed, number, count),
                "message {number}"
            );
            self.hears(number);
        }
    }

    /// Checks a complete message. No awaited message between the last one and this one may be missing.
    fn hears(&mut self, number: u32) {
        let model = self.model.borrow();
        assert!(
            model.messages.contains_key(&number),
            "{number} was never sent"
        );
        let from = self.last.map_or(0, |last| last + 1);
        assert!(from <= number, "{number} after {from}");
        let missing = model.messages.range(from..number).find(|(_, sure)| **sure);
        assert_eq!(missing, None, "before {number}");
        drop(model);
        self.last = Some(number);
    }

    fn ends(&self) {
        let model = self.model.borrow();
        if !model.reset {
            assert!(model.complete, "an end that nobody has made");
            assert_eq!(self.last, Some(u32::MAX));
            assert!(self.part.is_empty());
        }
    }
}

async fn hear(stream: &TcpStream, seed: u64, model: Model, tally: &Tally) {
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut hoard = Vec::new();
    let mut listening = Listening {
        seed,
        model,
        part: Vec::new(),
        last: None,
    };
    loop {
        let polls = patience(&mut random);
        add(&tally.operations, 1);
        let heard = if random.bool() {
            let capacity = random.usize(1..20_000);
            let received = polled(stream.recv(Vec::with_capacity(capacity)), polls).await;
            received.map(|received| match received {
                Ok((0, _)) => Ok(None),
                Ok((_, buf)) => {
                    listening.hear(&buf);
                    Ok(Some(buf.len()))
                }
                Err(error) => Err(std::io::Error::from(error)),
            })
        } else {
            let received = polled(stream.recv_multishot().next(), polls).await;
            received.map(|received| {
                let Some(chunk) = received.transpose()? else {
                    return Ok(None);
                };
                listening.hear(&chunk);
                let count = chunk.len();
                if hoard.len() < 20 {
                    hoard.push(chunk);
                }
                Ok(Some(count))
            })
        };
        match heard {
            None => add(&tally.dropped, 1),
            Some(Ok(Some(count))) => add(&tally.bytes, count as u64),
            Some(Ok(None)) => return listening.ends(),
            Some(Err(error)) => {
                assert!(listening.model.borrow().reset, "{error:?}");
                return;
            }
        }
        if random.u8(..) < 40 {
            hoard.clear();
            yield_now().await;
        }
    }
}

/// One end of a connection, with both directions at the same time.
async fn live(stream: TcpStream, seeds: [u64; 2], models: [Model; 2], tally: Rc<Tally>) {
    let stream = Rc::new(stream);
    let [out, into] = models;
    let mut random = fastrand::Rng::with_seed(seeds[0].rotate_left(20));
    let (sends, talks, counts) = (Rc::clone(&stream), Rc::clone(&out), Rc::clone(&tally));
    let talking = spawn(async move { talk(&sends, seeds[0], talks, &counts).await });
    if random.u8(..) < 40 {
        // It is not received to its end.
        let hearing = hear(&stream, seeds[1], Rc::clone(&into), &tally);
        let cut = polled(hearing, random.u32(0..40)).await;
        if cut.is_none() {
            add(&tally.resets, 1);
            out.borrow_mut().reset = true;
            into.borrow_mut().reset = true;
            if random.bool() {
                let _ = stream.set_linger(Some(Duration::ZERO));
            }
            // Queued sends would wait for a reader forever.
            let _ = stream.shutdown(Shutdown::Both);
            talking.abort();
        }
    } else {
        hear(&stream, seeds[1], into, &tally).await;
    }
    match talking.await {
        Ok(()) => {}
        Err(error) => {
            if let Ok(panic) = error.into_panic() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Handles one connection after another.
async fn handle(listener: Rc<TcpListener>, address: SocketAddr, storm: Storm, tally: Rc<Tally>) {
    let mut random = fastrand::Rng::with_seed(storm.seed);
    while tally.operations.get() < storm.operations {
        let connecting = spawn(TcpStream::connect(address));
        let accepted = listener.accept().await.unwrap();
        let client = connecting.await.unwrap().unwrap();
        add(&tally.connections, 1);
        let seeds = [random.u64(..), random.u64(..)];
        let models = [Model::default(), Model::default()];
        let other = models.clone();
        let [there, back] = other;
        let counts = Rc::clone(&tally);
        let serving = spawn(live(accepted, [seeds[1], seeds[0]], [back, there], counts));
        live(client, seeds, models, Rc::clone(&tally)).await;
        if let Err(error) = serving.await
            && let Ok(panic) = error.into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Runs the storm on the calling core. Returns the used ports, on which no socket may be left.
pub(crate) async fn run(storm: Storm, tally: Rc<Tally>) -> Vec<u16> {
    let mut handles = Vec::new();
    let mut ports = Vec::new();
    for task_number in 0..storm.abreast {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        ports.push(address.port());
        let seed = storm.seed.wrapping_add((task_number as u64) << 40);
        let storm = Storm { seed, ..storm };
        handles.push(spawn(handle(
            Rc::new(listener),
            address,
            storm,
            Rc::clone(&tally),
        )));
    }
    for handle in handles {
        if let Err(error) = handle.await
            && let Ok(panic) = error.into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
    ports
}
