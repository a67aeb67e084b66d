//! Values that stay on their core behind a handle that may go to any thread. The core's executor has them; the handle
//! knows its index in that list. Used where a foreign interface asks for `Send`.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use super::executor::{self, Inbox, Message};

/// A value of one core's, such as a stream, behind a handle that is `Send` and `Sync`.
///
/// The value itself never leaves its core: [`get`](CoreBound::get) works on that core's thread only. Wherever the
/// handle is dropped, the value is dropped on its core. When the core ends it drops what is left.
///
/// ```
/// use std::rc::Rc;
///
/// use annulus::net::UnixStream;
/// use annulus::runtime::{CoreBound, Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().threads(1).run(|_core| async {
///     let (near, far) = UnixStream::pair()?;
///     let bound = CoreBound::new(Rc::new(near))?;
///     bound.get()?.send_all("hello").await?;
///     let elsewhere = std::thread::spawn(move || bound.get().unwrap_err().to_string());
///     let says = elsewhere.join().unwrap();
///     assert!(says.contains("core 0"), "{says}");
///     // The thread has dropped the handle: the stream is closed by its core.
///     assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
///     assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
///     Ok(())
/// })
/// # }
/// ```
pub struct CoreBound<T: 'static> {
    home: Arc<Inbox>,
    position: usize,
    // `Send` and `Sync` whatever `T` is: no `T` is here.
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> CoreBound<T> {
    /// Leaves `value` to the calling core.
    ///
    /// # Errors
    ///
    /// The calling thread runs no core, or the core is ending; `value` is dropped.
    pub fn new(value: Rc<T>) -> io::Result<CoreBound<T>> {
        let executor = executor::current();
        let kept = executor.and_then(|executor| executor.keep(value));
        let Some((home, position)) = kept else {
            let says = "a stream or timer can't be bound to its core here: this thread runs no core of a runtime, \
                        or that core is ending; make it in a task of the runtime";
            return Err(io::Error::other(says));
        };
        Ok(CoreBound {
            home,
            position,
            of: PhantomData,
        })
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// `Other`: the calling thread is not the value's core; the text says which core is, and what to do.
    /// `NotConnected`: the core has ended, and has dropped the value.
    #[inline]
    pub fn get(&self) -> io::Result<Rc<T>> {
        let existing = executor::kept_on_this_core(&self.home, self.position);
        let existing = existing.and_then(|value| value.downcast::<T>().ok());
        existing.ok_or_else(|| self.missing())
    }

    #[cold]
    fn missing(&self) -> io::Error {
        let core = self.home.index();
        if self.home.has_ended() {
            let says = format!("core {core} of the runtime, to which this belonged, has ended");
            return io::Error::new(io::ErrorKind::NotConnected, says);
        }
        io::Error::other(format!(
            "this belongs to core {core} of a runtime of Annulus, and was used on another thread; use it in a task \
             of that core: `annulus::runtime::spawn` starts one from there, `Handle::spawn_on` from elsewhere"
        ))
    }
}

impl<T: 'static> Drop for CoreBound<T> {
    fn drop(&mut self) {
        if !executor::forget_on_this_core(&self.home, self.position) {
            // If the core has ended, it has dropped the value.
            self.home.send(Message::Forget(self.position));
        }
    }
}

impl<T: 'static> fmt::Debug for CoreBound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreBound")
            .field("core", &self.home.index())
            .finish_non_exhaustive()
    }
}
