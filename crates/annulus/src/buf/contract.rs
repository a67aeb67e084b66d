//! Checks of the buffer traits' contract, as far as it can be checked, before a buffer is lent. For the buffers of this
//! crate, the compiler proves the checks and removes them.

use std::io;

use super::{IoBufMut, ReadTarget};

/// Returns how many bytes a read may put into `buf`.
///
/// # Errors
///
/// Fails with `InvalidInput` if the buffer breaks its contract; it could be written outside the lent bytes.
#[inline]
pub(crate) fn check_lent<B: IoBufMut>(buf: &mut B) -> io::Result<usize> {
    let is_one_address = buf.stable_mut_ptr().cast_const() == buf.stable_ptr();
    let init = buf.init_bytes();
    if is_one_address && init <= buf.lent_bytes() && buf.kept_bytes() <= init {
        return Ok(buf.fill_bytes());
    }
    Err(broken(is_one_address, buf.kept_bytes() <= init))
}

/// Returns how many bytes a read may put into `buf`; at least 1.
///
/// # Errors
///
/// Fails like [`check_lent`], and with `InvalidInput` if the buffer has no capacity.
#[inline]
pub(crate) fn check_capacity<B: IoBufMut>(buf: &mut B) -> io::Result<usize> {
    match check_lent(buf) {
        Ok(0) => Err(no_capacity()),
        lent => lent,
    }
}

/// Returns the error for a read without capacity. A result of 0 bytes would mean the end of the file.
#[cold]
pub(crate) fn no_capacity() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "cannot read into a buffer without capacity: the result 0 would mean the end of the data; pass a buffer with a \
         length, an empty one with capacity, or a `BytesMut` with spare capacity",
    )
}

#[cold]
fn broken(is_one_address: bool, has_what_it_keeps: bool) -> io::Error {
    let what = match (is_one_address, has_what_it_keeps) {
        (false, _) => "is filled at a different address than it is read from",
        (true, false) => "keeps more bytes than it has initialised",
        (true, true) => "has more initialised bytes than it lends",
    };
    let what = format!("the buffer {what}; its implementation breaks the contract of IoBufMut");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use std::any::type_name;

    use super::*;
    use crate::buf::{AlignedBuf, IoBuf};

    fn lent<B: IoBufMut>(mut buf: B) -> usize {
        check_lent(&mut buf).unwrap_or_else(|error| panic!("{}: {error}", type_name::<B>()))
    }

    #[test]
    fn the_buffers_of_this_crate_satisfy_the_contract() {
        assert_eq!(lent(vec![0; 7]), 7);
        assert_eq!(lent(Vec::new()), 0);
        assert!(lent(Vec::with_capacity(7)) >= 7);
        assert_eq!(lent(vec![0; 7].into_boxed_slice()), 7);
        assert_eq!(lent(Box::new([0; 7])), 7);
        assert_eq!(lent(AlignedBuf::with_len(7, 8)), 7);
        assert_eq!(lent(vec![0; 7].subslice(2..6).subslice(1..3)), 2);
        assert_eq!(lent(vec![0; 7].subslice(7..7)), 0);
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn a_bytes_mut_lends_its_spare_capacity_and_a_part_of_it_lends_its_length() {
        use bytes::BytesMut;

        let mut buf = BytesMut::with_capacity(7);
        assert_eq!(lent(buf.clone()), 0);
        buf.extend_from_slice(b"abc");
        let base = buf.as_ptr();
        assert_eq!(buf.fill_ptr().cast_const(), base.wrapping_add(3));
        assert_eq!((buf.len(), buf.fill_bytes()), (3, 4));
        assert_eq!(lent(buf), 4);
        assert_eq!(lent(BytesMut::zeroed(7)), 0);
        assert_eq!(lent(BytesMut::zeroed(7).subslice(2..6)), 4);
    }

    #[test]
    fn only_a_buffer_that_lends_something_has_capacity() {
        assert!(check_capacity(&mut Vec::with_capacity(1)).is_ok());
        let error = check_capacity(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
