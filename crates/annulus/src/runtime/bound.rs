//! Values that stay on their core behind a handle that any thread may hold. The core's executor stores the value, and
//! the handle its index. Used where a foreign interface requires `Send`.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use super::executor::{self, Inbox, Message};

/// A `Send` and `Sync` handle to a value of one core, such as a stream.
///
/// The value never leaves its core: [`get`](CoreBound::get) works on that core's thread only, and
/// [`on_core`](CoreBound::on_core) runs code there. Wherever the handle is dropped, the value is dropped on its core. A
/// core that ends drops its remaining values.
///
/// ```
/// use std::rc::Rc;
///
/// use annulus::net::UnixStream;
/// use annulus::runtime::{CoreBound, Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let (near, far) = UnixStream::pair()?;
///     let bound = CoreBound::new(Rc::new(near))?;
///     bound.get()?.send_all("hello").await?;
///     let other_thread = std::thread::spawn(move || bound.get().unwrap_err().to_string());
///     let error = other_thread.join().unwrap();
///     assert!(error.contains("core 0"), "{error}");
///     // The thread has dropped the handle, so the core closes the stream.
///     assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
///     assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
///     Ok(())
/// })
/// # }
/// ```
pub struct CoreBound<T: 'static> {
    home: Arc<Inbox>,
    position: usize,
    // `Send` and `Sync` for every `T`, because no `T` is stored here.
    marker: PhantomData<fn() -> T>,
}

impl<T: 'static> CoreBound<T> {
    /// Binds `value` to the calling core.
    ///
    /// ```
    /// use std::rc::Rc;
    /// use annulus::runtime::CoreBound;
    ///
    /// let error = CoreBound::new(Rc::new(7)).unwrap_err(); // this thread is not a core
    /// assert!(error.to_string().contains("not a runtime core"));
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core, or the core is ending; `value` is dropped.
    pub fn new(value: Rc<T>) -> io::Result<CoreBound<T>> {
        let executor = executor::current();
        let kept = executor.and_then(|executor| executor.keep(value));
        let Some((home, position)) = kept else {
            return Err(io::Error::other(
                "can't bind a value to a core here: this thread is not a runtime core, or that core is ending; make \
                 the value in a task of the runtime",
            ));
        };
        Ok(CoreBound {
            home,
            position,
            marker: PhantomData,
        })
    }

    /// Returns the value.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use std::{cell::Cell, rc::Rc};
    /// use annulus::runtime::CoreBound;
    ///
    /// let bound = CoreBound::new(Rc::new(Cell::new(1)))?;
    /// bound.get()?.set(2); // on the core, without a lock
    /// let (bound, error) = std::thread::spawn(move || {
    ///     let error = bound.get().unwrap_err(); // on another thread
    ///     (bound, error)
    /// }).join().unwrap();
    /// assert_eq!(error.kind(), std::io::ErrorKind::Other);
    /// assert_eq!(bound.get()?.get(), 2);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `Other` if the calling thread is not the value's core; the message names the core. Fails with
    /// `NotConnected` if the core has ended and dropped the value.
    #[inline]
    pub fn get(&self) -> io::Result<Rc<T>> {
        let existing = executor::kept_on_this_core(&self.home, self.position);
        let existing = existing.and_then(|value| value.downcast::<T>().ok());
        existing.ok_or_else(|| self.missing())
    }

    /// Calls `act` with the value on its core, from any thread. `act` is dropped if the core has ended.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// use std::rc::Rc;
    /// use annulus::runtime::CoreBound;
    ///
    /// let bound = CoreBound::new(Rc::new(near))?;
    /// std::thread::spawn(move || {
    ///     // No result comes back. Use `Handle::spawn_on` for an answer.
    ///     bound.on_core(|stream| stream.try_send("from another thread").unwrap());
    /// });
    /// assert_eq!(far.recv_exact(vec![0; 19]).await?, b"from another thread");
    /// # Ok(()) })? }
    /// ```
    pub fn on_core(&self, act: impl FnOnce(Rc<T>) + Send + 'static) {
        let (home, position) = (Arc::clone(&self.home), self.position);
        self.home.send(Message::Start(Box::new(move || {
            let value = executor::kept_on_this_core(&home, position);
            if let Some(value) = value.and_then(|value| value.downcast::<T>().ok()) {
                act(value);
            }
        })));
    }

    #[cold]
    fn missing(&self) -> io::Error {
        let core = self.home.index();
        if self.home.has_ended() {
            let text = format!("core {core} of the runtime has ended and has dropped this value");
            return io::Error::new(io::ErrorKind::NotConnected, text);
        }
        io::Error::other(format!(
            "this value belongs to core {core} of an Annulus runtime and can't be used on another thread; use it in a \
             task of that core, started by `annulus::runtime::spawn` there or by `Handle::spawn_on` elsewhere"
        ))
    }
}

impl<T: 'static> Drop for CoreBound<T> {
    fn drop(&mut self) {
        if !executor::forget_on_this_core(&self.home, self.position) {
            // A core that has ended has already dropped the value.
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
