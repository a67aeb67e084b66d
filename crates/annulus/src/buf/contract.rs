//! The part of the traits' contract that a look at a buffer shows, checked before anything is lent. With the buffers
//! of this crate the compiler sees that it holds, and leaves nothing of the checks.

use std::io;

use super::IoBufMut;

/// The bytes that `buf` lends.
///
/// # Errors
///
/// `InvalidInput`: the buffer breaks its contract, and would be written to outside of what it lends.
#[inline]
pub(crate) fn check_lent<B: IoBufMut>(buf: &mut B) -> io::Result<usize> {
    let is_one_place = buf.stable_mut_ptr().cast_const() == buf.stable_ptr();
    let bytes = buf.lent_bytes();
    if is_one_place && buf.init_bytes() <= bytes {
        return Ok(bytes);
    }
    Err(broken(is_one_place))
}

#[cold]
fn broken(is_one_place: bool) -> io::Error {
    let what = if is_one_place {
        "has more initialised bytes than it lends"
    } else {
        "is filled at another address than it is read at"
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
    fn the_buffers_of_this_crate_keep_to_the_contract() {
        assert_eq!(lent(vec![0; 7]), 7);
        assert_eq!(lent(Vec::new()), 0);
        assert!(lent(Vec::with_capacity(7)) >= 7);
        assert_eq!(lent(vec![0; 7].into_boxed_slice()), 7);
        assert_eq!(lent(Box::new([0; 7])), 7);
        assert_eq!(lent(AlignedBuf::with_len(7, 8)), 7);
        assert_eq!(lent(vec![0; 7].slice(2, 6).slice(1, 3)), 2);
        assert_eq!(lent(vec![0; 7].slice(7, 7)), 0);
    }
}
