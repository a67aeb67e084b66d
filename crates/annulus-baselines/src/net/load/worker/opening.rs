//! The opening of connections, a few at a time, and the handling of failed ones, which are counted and opened again.

use super::*;

impl<P: Protocol> Worker<'_, '_, P> {
    /// Opens waiting connections, at most `opening_max` at a time. Reports this thread as ready when all are open.
    pub(super) fn open_more(&mut self) -> io::Result<()> {
        while self.opening < self.opening_max && self.phase != Phase::Draining {
            let again = self.retry.pop_front_if(|(at_ns, _)| *at_ns <= self.now_ns);
            let Some(conn_index) = again
                .map(|(_, conn_index)| conn_index)
                .or_else(|| self.to_open.pop_front())
            else {
                break;
            };
            if self.plan.reconnect && self.conns[conn_index as usize].to_send == 0 {
                self.requests.due(
                    conn_index,
                    &mut self.conns[conn_index as usize],
                    self.now_ns,
                );
            }
            self.open(conn_index)?;
        }
        let all = self.open == self.conns.len() || self.plan.reconnect;
        if all && !self.reported_ready {
            self.reported_ready = true;
            self.shared.one_is_ready();
        }
        Ok(())
    }

    /// Returns the loopback address to bind, where a single one would run out of ports. `None`: the kernel chooses.
    pub(super) fn source(&mut self, conn_index: u32) -> Option<Ipv4Addr> {
        let Target::Tcp(std::net::SocketAddr::V4(target)) = &self.plan.target else {
            return None;
        };
        if !target.ip().is_loopback() {
            return None;
        }
        let index = if self.plan.reconnect {
            self.next_source = (self.next_source + 1) % SOURCES;
            self.next_source
        } else {
            let number = conn_index as usize * self.plan.threads + self.thread;
            (number / PORTS_OF_SOURCE) as u32
        };
        (self.plan.reconnect || index > 0).then(|| Ipv4Addr::new(127, 0, 0, 1 + index as u8))
    }

    pub(super) fn open(&mut self, conn_index: u32) -> io::Result<()> {
        let source = self.source(conn_index);
        let socket = match os::socket(self.address.domain(), source) {
            Ok(socket) => socket,
            Err(error) => match error.raw_os_error() {
                Some(errno @ (libc::EADDRNOTAVAIL | libc::EADDRINUSE)) => {
                    return self.fail_with(conn_index, "binding a connection", errno);
                }
                _ => return Err(error),
            },
        };
        let fd = types::Fd(socket.as_raw_fd());
        let conn = &mut self.conns[conn_index as usize];
        conn.socket = Some(socket);
        conn.state = State::Connecting;
        conn.since_ns = self.now_ns;
        self.opening += 1;
        let entry = opcode::Connect::new(fd, self.address.as_ptr().cast(), self.address.len())
            .build()
            .user_data(token(What::Connect, conn_index, conn.generation));
        // SAFETY: the address outlives the worker, and the worker's end cancels the operations in flight.
        unsafe { self.channel.push(entry) }
    }

    pub(super) fn connected(&mut self, conn_index: u32, result: i32) -> io::Result<()> {
        // A Unix socket returns EAGAIN, instead of blocking, if the backlog of the listener is full.
        if -result == libc::EAGAIN {
            self.close(conn_index);
            self.retry.push_back((self.now_ns + RETRY_NS, conn_index));
            return Ok(());
        }
        if result < 0 {
            return self.fail_with(conn_index, "connecting", -result);
        }
        self.opening -= 1;
        self.open += 1;
        self.conns[conn_index as usize].state = State::Open;
        if !self.plan.disconnect {
            self.arm(conn_index)?;
        }
        match self.plan.reconnect {
            true => self.flush(conn_index),
            false => self.queue_requests(conn_index, self.plan.pipeline as u32),
        }
    }

    pub(super) fn fail_with(&mut self, conn_index: u32, doing: &str, errno: i32) -> io::Result<()> {
        let error = io::Error::from_raw_os_error(errno);
        let target = &self.plan.target;
        self.fail(conn_index, Kind::of(errno), || {
            format!("{doing}, {target}: {error}")
        })
    }

    /// Counts an error, drops the outstanding requests of the connection, and opens it again later.
    pub(super) fn fail(
        &mut self,
        conn_index: u32,
        kind: Kind,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        self.requests.err(kind, self.now_ns, text);
        let conn = &mut self.conns[conn_index as usize];
        let dropped = self
            .requests
            .drop_outstanding(conn_index, conn, self.now_ns);
        self.requests.dropped += u64::from(dropped);
        if let Some(socket) = &conn.socket {
            // Entries for this descriptor that are not yet submitted would refer to the next socket with this number.
            self.channel.submit()?;
            os::shutdown(socket);
        }
        self.close(conn_index);
        if self.phase == Phase::Draining {
            return Ok(());
        }
        self.reopened += 1;
        match self.plan.reconnect && self.schedule.is_some() {
            true => self.reuse(conn_index),
            false => self.retry.push_back((self.now_ns + RETRY_NS, conn_index)),
        }
        Ok(())
    }

    pub(super) fn close(&mut self, conn_index: u32) {
        let conn = &mut self.conns[conn_index as usize];
        match conn.state {
            State::Closed => {}
            State::Connecting => self.opening -= 1,
            State::Open => self.open -= 1,
        }
        conn.state = State::Closed;
        conn.socket = None;
        conn.generation = conn.generation.wrapping_add(1);
        (conn.armed, conn.sending) = (false, false);
        conn.responses = conn.sent;
        conn.reader = P::Reader::default();
    }
}
