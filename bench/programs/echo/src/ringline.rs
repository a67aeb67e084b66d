//! ringline: one worker, and the additional threads that this runtime always has, one of which accepts.
//!
//! Where possible, received data is sent from the kernel's buffer, as its documentation suggests for echo. Its special
//! loop for echo, which runs no tasks, is not used: of two messages of 200 KB on one connection it returned the second
//! one corrupted.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use ringline::{AsyncEventHandler, ConfigBuilder, ConnCtx, ParseResult, RinglineBuilder};

/// More than any measurement uses.
const CONNECTIONS: u32 = 16 * 1024;

struct Echo;

impl AsyncEventHandler for Echo {
    fn on_accept(&self, connection: ConnCtx) -> impl Future<Output = ()> + 'static {
        echo(connection)
    }

    fn create_for_worker(_worker: usize) -> Echo {
        Echo
    }
}

async fn echo(connection: ConnCtx) {
    loop {
        let mut failed = false;
        let count = connection
            .with_data(|data| {
                failed = connection.forward_recv_buf(data).is_err();
                ParseResult::Consumed(data.len())
            })
            .await;
        if count == 0 || failed {
            return;
        }
    }
}

pub fn serve(address: SocketAddr) -> io::Result<Infallible> {
    let config = ConfigBuilder::new()
        .workers(1)
        .pin_to_core(false)
        .max_connections(CONNECTIONS)
        .recv_buffer(1024, crate::SMALL_BYTES as u32)
        .tcp_nodelay(true)
        .build()
        .map_err(|error| crate::failed("configuring", error))?;
    let (shutdown, workers) = RinglineBuilder::new(config)
        .bind(address)
        .launch::<Echo>()
        .map_err(|error| crate::failed("launching", error))?;
    crate::listening(shutdown.bound_addr().unwrap_or(address))?;
    for worker in workers {
        match worker.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(crate::failed("a worker", error)),
            Err(_) => return Err(io::Error::other("a worker panicked")),
        }
    }
    Err(io::Error::other("all workers have ended"))
}
