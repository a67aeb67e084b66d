//! Whether a runtime has an I/O driver. Tokio offers no function for this, and panics if a descriptor is registered
//! with a runtime that has none (checked with 1.54). So a thread of its own tries to register a descriptor that cannot
//! be polled, and a panic on that thread is neither reported nor unwound further.

use std::cell::Cell;
use std::fs::File;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

thread_local! {
    /// On a probing thread: receives the result if the registration panics.
    static ON_PANIC: Cell<Option<SyncSender<bool>>> = const { Cell::new(None) };
}

/// Returns whether `runtime` was built with I/O. `None` if that could not be found out. Blocks for the time of starting
/// a thread.
pub(super) fn has_io(runtime: &Handle) -> Option<bool> {
    // The hook cannot be replaced during a panic. A panic that aborts would end the program if it set its own hook later.
    if thread::panicking() || cfg!(panic = "abort") {
        return None;
    }
    silence_probes();
    // `epoll_ctl(2)` refuses this file with EPERM, so nothing is registered.
    let file = File::open("/dev/null").ok()?;
    let (sender, receiver) = sync_channel(1);
    let runtime = runtime.clone();
    let probe = move || {
        ON_PANIC.set(Some(sender.clone()));
        let _inside = runtime.enter();
        #[expect(
            deprecated,
            reason = "sound because this descriptor never changes; the new form is unsafe"
        )]
        drop(AsyncFd::with_interest(file, Interest::READABLE));
        ON_PANIC.set(None);
        let _ = sender.send(true);
    };
    let probe = thread::Builder::new()
        .name("annulus-probe".to_owned())
        .spawn(probe)
        .ok()?;
    let has_io = receiver.recv().ok();
    let _ = probe.join();
    has_io
}

/// Sets a panic hook that passes every panic on to the hook set before, except those of probing threads.
fn silence_probes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| match ON_PANIC.try_with(Cell::take) {
            Ok(Some(sender)) => {
                let _ = sender.send(false);
            }
            _ => hook(info),
        }));
    });
}
