//! Closes that must not block the thread that drops the last user of a descriptor.

use std::pin::Pin;
use std::task::{Context, Waker};

use super::operation::Operation;
use super::submitter::Submitter;
use crate::fd::CloseLater;
use crate::op::Close;

impl CloseLater for Submitter {
    fn close_later(&self, raw: i32) {
        let mut close = Operation::new(self, Close::new(raw, None).by_thread());
        if self.serves() {
            let _ = Pin::new(&mut close).poll(&mut Context::from_waker(Waker::noop()));
        }
        // The operation is dropped. The blocking thread that disposes of it closes the descriptor.
    }
}
