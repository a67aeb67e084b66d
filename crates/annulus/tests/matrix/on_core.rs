//! A future of a core that other executors poll there.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use annulus::runtime::CoreBound;

/// Uses the core. It panics if it is polled on another thread.
pub(crate) struct OnCore<T: 'static>(CoreBound<RefCell<Pin<Box<dyn Future<Output = T>>>>>);

impl<T: 'static> OnCore<T> {
    pub(crate) fn new(future: impl Future<Output = T> + 'static) -> OnCore<T> {
        let future: Pin<Box<dyn Future<Output = T>>> = Box::pin(future);
        OnCore(CoreBound::new(Rc::new(RefCell::new(future))).unwrap())
    }
}

impl<T: 'static> Future for OnCore<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let future = self.0.get().unwrap();
        future.borrow_mut().as_mut().poll(context)
    }
}
