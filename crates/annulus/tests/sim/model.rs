//! The possible contents of a file, as known to its only user: the oracle of the random tests.

use annulus::sim::Sim;

/// A byte with a known value, unless writes without a result have changed it, or will change it.
#[derive(Clone, Default)]
struct Byte {
    known: u8,
    possible: Vec<u8>,
}

/// A file of fixed length.
pub(crate) struct Model {
    path: String,
    bytes: Vec<Byte>,
}

impl Model {
    /// Creates the file, zeroed.
    pub(crate) fn new(sim: &Sim, path: String, len: usize) -> Model {
        sim.put(&path, vec![0; len]).unwrap();
        Model {
            path,
            bytes: vec![Byte::default(); len],
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Notes that these bytes were written. Earlier possible writes may still happen.
    pub(crate) fn wrote(&mut self, at: usize, bytes: &[u8]) {
        for (byte, &written) in self.bytes[at..].iter_mut().zip(bytes) {
            byte.known = written;
        }
    }

    /// Notes that some of these bytes may have been written, or may be written later.
    pub(crate) fn may_write(&mut self, at: usize, bytes: &[u8]) {
        for (byte, &written) in self.bytes[at..].iter_mut().zip(bytes) {
            if !byte.possible.contains(&written) {
                byte.possible.push(written);
            }
        }
    }

    /// Compares the data of a read with the possible contents.
    pub(crate) fn check(&self, at: usize, read: &[u8], what: &str) {
        assert!(
            at + read.len() <= self.bytes.len(),
            "{what}: {} bytes at {at} of {}",
            read.len(),
            self.path
        );
        for (offset, &found) in (at..).zip(read) {
            let byte = &self.bytes[offset];
            assert!(
                found == byte.known || byte.possible.contains(&found),
                "{what}: byte {offset} of {} is {found}, not {} nor any of {:?}",
                self.path,
                byte.known,
                byte.possible
            );
        }
    }

    /// Takes the contents of the file as known. Called when nothing is in flight.
    pub(crate) fn resolve(&mut self, sim: &Sim) {
        let contents = sim.contents(&self.path).unwrap();
        assert_eq!(contents.len(), self.bytes.len());
        self.check(0, &contents, "at rest");
        for (byte, &found) in self.bytes.iter_mut().zip(&contents) {
            *byte = Byte {
                known: found,
                possible: Vec::new(),
            };
        }
    }
}
