//! Buffers of a type that breaks the contract of its traits.

use std::io::ErrorKind;

#[cfg(not(annulus_portable))]
use annulus::fs::Merge;
use annulus::{BufError, IoBuf};
use annulus_testing::broken_buffer::BrokenBuffer;

use crate::fixtures::{bytes, for_each_backend};

/// Returns the buffer of a refused operation.
#[track_caller]
fn refused<T, B>(result: Result<T, BufError<B>>) -> B {
    let (error, buf) = result.err().expect("it was taken").into_parts();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(
        error.to_string().contains("contract of IoBufMut"),
        "{error}"
    );
    buf.expect("it was never lent")
}

#[cfg(not(annulus_portable))]
#[test]
fn no_read_touches_a_buffer_that_breaks_its_contract() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 9_000)).await;
        for make in [BrokenBuffer::apart, BrokenBuffer::too_full] {
            assert!(refused(file.read_at(make(), 0).await).is_untouched());
            assert!(refused(file.read_exact_at(make(), 0).await).is_untouched());
            let part = refused(file.read_at(make().subslice(500..900), 0).await);
            assert!(part.into_inner().is_untouched());
            let parts = refused(file.read_vectored_at(vec![make(), make()], 0).await);
            assert!(parts.iter().all(BrokenBuffer::is_untouched));
            let parts = refused(file.read_vectored_exact_at(vec![make()], 0).await);
            assert!(parts.iter().all(BrokenBuffer::is_untouched));
            for result in file.read_many_at([(make(), 0), (make(), 5000)]).await {
                assert!(refused(result).is_untouched());
            }
            let merged = file.read_many_at([(make(), 0), (make(), 500)]);
            for result in merged.merge(Merge::default()).await {
                assert!(refused(result).is_untouched());
            }
        }
    });
}
