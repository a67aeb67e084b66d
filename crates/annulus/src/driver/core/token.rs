//! The names of the core's operations among all that are in its ring.

/// The name of an operation in flight: the user data of its SQE. Bits 32 to 62 are its generation. Bit 31 distinguishes
/// it from a slot's, and bit 63 from the driver's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(u64);

/// Marks the tokens of this table among all of the ring's.
const LOCAL: u64 = 1 << 31;
const OF_DRIVER: u64 = 1 << 63;
pub(super) const GENERATION_MASK: u32 = u32::MAX >> 1;

impl Token {
    #[inline]
    pub(super) fn of(user_data: u64) -> Option<Token> {
        (user_data & (LOCAL | OF_DRIVER) == LOCAL).then_some(Token(user_data))
    }

    /// Returns a token that names no operation.
    pub(super) const fn special(number: u32) -> Token {
        Token(LOCAL | (number as u64) << 32 | (LOCAL - 1))
    }

    /// Returns the number of a token that names no operation.
    #[inline]
    pub(super) fn special_number(self) -> Option<u32> {
        (self.0 & (LOCAL - 1) == LOCAL - 1).then(|| self.generation())
    }

    pub(super) fn user_data(self) -> u64 {
        self.0
    }

    pub(super) fn new(index: usize, generation: u32) -> Token {
        Token(u64::from(generation & GENERATION_MASK) << 32 | LOCAL | index as u64)
    }

    pub(super) fn index(self) -> usize {
        (self.0 & (LOCAL - 1)) as usize
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & GENERATION_MASK
    }
}
