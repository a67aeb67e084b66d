//! Keys and values of Redis and memcached. The request's number determines the key, and the key determines the value, so
//! that a response to another request is detected.

/// The number of digits in a key: `key:000000000042`.
pub(super) const KEY_DIGITS: usize = 12;
/// The period of a value in bytes.
const PERIOD: usize = 16;
/// The bytes after a value in a response of either store.
const LINE_END: &[u8] = b"\r\n";

/// Random keys that are derived from the request's number.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) count: u64,
    pub(super) seed: u64,
}

impl Keys {
    /// Returns the key of a request.
    #[inline]
    pub(super) fn of(&self, connection: u32, sequence: u64) -> u64 {
        // The finalizer of SplitMix64, so that consecutive numbers give unrelated keys.
        let mut mixed = (self.seed ^ u64::from(connection).rotate_left(40))
            .wrapping_add(sequence.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(self.count)) >> 64) as u64
    }
}

/// Writes a key's digits.
#[inline]
pub(super) fn write_key(mut key: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
}

/// The value of a key, of any length: the digits of the key, low digits first, repeated.
#[derive(Clone, Copy)]
pub(super) struct Value {
    /// The period twice, so that a period from any offset is one slice.
    twice: [u8; 2 * PERIOD],
}

impl Value {
    #[inline]
    pub(super) fn of(key: u64) -> Value {
        let mut twice = [b'.'; 2 * PERIOD];
        write_key(key, &mut twice[..KEY_DIGITS]);
        twice[..KEY_DIGITS].reverse();
        let (once, again) = twice.split_at_mut(PERIOD);
        again.copy_from_slice(once);
        Value { twice }
    }

    #[inline]
    pub(super) fn write(&self, into: &mut [u8]) {
        for piece in into.chunks_mut(PERIOD) {
            piece.copy_from_slice(&self.twice[..piece.len()]);
        }
    }

    /// Returns whether `bytes` equal the value of `length` bytes and its line end, from offset `from` on.
    #[inline]
    pub(super) fn is_at(&self, from: usize, length: usize, bytes: &[u8]) -> bool {
        let (value, end) = bytes.split_at(bytes.len().min(length.saturating_sub(from)));
        let rotated = &self.twice[from % PERIOD..][..PERIOD];
        let mut pieces = value.chunks(PERIOD);
        let end_from = (from + value.len()).saturating_sub(length);
        pieces.all(|piece| piece == &rotated[..piece.len()])
            && (LINE_END.get(end_from..)).is_some_and(|line_end| line_end.starts_with(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_among_those_there_are_and_come_again() {
        let keys = Keys { count: 10, seed: 7 };
        let mut counts = [0; 10];
        for connection in 0..10 {
            for sequence in 0..1000 {
                let key = keys.of(connection, sequence);
                assert_eq!(key, keys.of(connection, sequence));
                counts[key as usize] += 1;
            }
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_value_is_known_however_it_is_cut_and_no_other_is() {
        for length in [0, 1, 3, 16, 17, 100] {
            let mut bytes = vec![0; length];
            Value::of(42).write(&mut bytes);
            bytes.extend_from_slice(LINE_END);
            for from in 0..bytes.len() {
                for to in from..=bytes.len() {
                    let is = |key| Value::of(key).is_at(from, length, &bytes[from..to]);
                    assert!(is(42), "{length}: {from}..{to}");
                    assert!(
                        !is(43) || from > 0 || to == 0 || length == 0,
                        "{length}: {from}..{to}"
                    );
                }
            }
            assert!(!Value::of(42).is_at(0, length + 1, &bytes), "{length}");
            bytes.push(b'x');
            assert!(!Value::of(42).is_at(0, length, &bytes), "{length}");
        }
    }
}
