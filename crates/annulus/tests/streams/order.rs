//! Many sends on one socket: each is whole, and they are in order.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use annulus::net::TcpStream;
use annulus::runtime;

use super::{on_each, tcp_pair};

/// Returns a message with its sender's number and its length.
fn message(number: u32, bytes: usize) -> Vec<u8> {
    let mut message = vec![number as u8; 8 + bytes];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    message
}

/// Reads messages up to the end; each must be whole.
async fn read_messages(stream: &TcpStream) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    loop {
        let head = match stream.recv_exact(vec![0; 8]).await {
            Ok(head) => head,
            Err(error) if error.error().kind() == io::ErrorKind::UnexpectedEof => {
                let began = error
                    .into_buf()
                    .is_none_or(|buf| buf.iter().any(|byte| *byte != 0));
                assert!(!began, "the end came within a head");
                return Ok(numbers);
            }
            Err(error) => return Err(error.into()),
        };
        let number = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
        let bytes = u32::from_le_bytes(head[4..].try_into().expect("four bytes")) as usize;
        let body = stream.recv_exact(vec![!(number as u8); bytes]).await?;
        assert!(
            body.iter().all(|byte| *byte == number as u8),
            "message {number}"
        );
        numbers.push(number);
        // A slow reader, so that the senders queue.
        if number.is_multiple_of(7) {
            runtime::yield_now().await;
        }
    }
}

#[test]
fn hundreds_of_sends_on_one_socket_arrive_whole_and_in_the_order_of_their_first_polls() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let near = Rc::new(near);
        let first_polls = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 1..=400_u32 {
            let (near, first_polls) = (Rc::clone(&near), Rc::clone(&first_polls));
            tasks.push(runtime::spawn(async move {
                // From one byte to more than the socket takes in one call.
                let bytes = [1, 100, 5_000, 60_000][number as usize % 4];
                first_polls.borrow_mut().push(number);
                near.send_all(message(number, bytes)).await.map(drop)
            }));
        }
        drop(near);
        let numbers = read_messages(&far).await?;
        for task in tasks {
            task.await??;
        }
        assert_eq!(numbers, *first_polls.borrow());
        Ok(())
    });
}

#[test]
fn each_dropped_send_arrives_whole_or_not_at_all() {
    on_each(|| async {
        let mut random = fastrand::Rng::with_seed(41);
        let (near, far) = tcp_pair().await?;
        let near = Rc::new(near);
        let mut tasks = Vec::new();
        for number in 1..=300_u32 {
            let near = Rc::clone(&near);
            let bytes = random.usize(1..80_000);
            tasks.push((
                number,
                runtime::spawn(
                    async move { near.send_all(message(number, bytes)).await.map(drop) },
                ),
            ));
        }
        drop(near);
        let reader = runtime::spawn(async move { read_messages(&far).await });
        let (mut kept, mut sent) = (Vec::new(), Vec::new());
        for (number, task) in tasks {
            match random.u8(..4) {
                0 => task.abort(),
                1 => {
                    runtime::yield_now().await;
                    task.abort();
                }
                _ => {}
            }
            kept.push((number, task));
        }
        for (number, task) in kept {
            match task.await {
                Ok(outcome) => {
                    outcome?;
                    sent.push(number);
                }
                Err(error) => assert!(error.is_aborted()),
            }
        }
        let numbers = reader.await??;
        assert!(numbers.is_sorted(), "{numbers:?}");
        // Some of the dropped sends had started, and went on.
        let missing = sent.iter().find(|number| !numbers.contains(number));
        assert_eq!(missing, None);
        assert!(
            sent.len() >= 100,
            "most sends were not dropped: {}",
            sent.len()
        );
        Ok(())
    });
}

#[test]
fn a_buffer_comes_back_from_a_send_that_was_not_awaited() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let back: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let keep = |back: &Rc<RefCell<Vec<Vec<u8>>>>| {
            let back = Rc::clone(back);
            move |buf| back.borrow_mut().push(buf)
        };
        for number in 1..=50 {
            let mut buf = back.borrow_mut().pop().unwrap_or_default();
            buf.clear();
            buf.extend(message(number, 300));
            near.try_send_then(buf, keep(&back)).unwrap();
            assert_eq!(far.recv_exact(vec![0; 308]).await?[0], number as u8);
            while back.borrow().is_empty() {
                runtime::yield_now().await;
            }
        }
        assert_eq!(back.borrow().len(), 1, "one buffer served for all");
        // An empty send completes, and returns its buffer.
        near.try_send_then(Vec::new(), keep(&back)).unwrap();
        assert_eq!(back.borrow().len(), 2);
        // While another send is in progress, immediately.
        let large = near.try_send(vec![1; 30_000_000]);
        assert!(large.is_ok());
        let refused = near.try_send_then(vec![2; 3], |_| panic!("it was not sent"));
        assert_eq!(refused, Err(vec![2; 3]));
        Ok(())
    });
}
