//! `Stream` of futures-core, for each type that returns its items with `next`.

/// Implements `Stream` by the inherent method `poll_next`.
macro_rules! item_stream {
    ([$($generics:tt)*] $stream:ty, $item:ty) => {
        #[cfg(feature = "futures")]
        impl<$($generics)*> futures_core::Stream for $stream {
            type Item = $item;

            #[inline]
            fn poll_next(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<$item>> {
                // The inherent method, which takes precedence.
                self.get_mut().poll_next(context)
            }
        }
    };
}

pub(crate) use item_stream;
