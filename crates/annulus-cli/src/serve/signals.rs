//! SIGINT and SIGTERM end a server in order; the second of them at once.

use std::io;
use std::thread::{self, JoinHandle};

use annulus::runtime::Handle;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A thread that waits for signals. Dropped, it is told to end, and waited for.
pub(crate) struct Watch {
    handle: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

/// Signals that nobody waits for yet: from now on they end the process no more.
pub(crate) fn catch() -> io::Result<Signals> {
    Signals::new([SIGINT, SIGTERM])
}

/// Has the first signal end the runtime.
pub(crate) fn end_by(mut signals: Signals, runtime: Handle) -> io::Result<Watch> {
    let handle = signals.handle();
    let wait = move || {
        let mut ends = false;
        for signal in signals.forever() {
            if ends {
                // Whoever sends two has no patience left.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            ends = true;
            runtime.shutdown();
        }
    };
    let thread = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)?;
    Ok(Watch {
        handle,
        thread: Some(thread),
    })
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say, not even in a panic.
            let _ = thread.join();
        }
    }
}
