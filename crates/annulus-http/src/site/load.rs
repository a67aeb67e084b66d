//! Open files, one per large file that is being sent or was lately; and small ones read whole.

use std::io;

use annulus::File;
use annulus::net::Descriptor;

/// A file that is open for sending; shared by the answers that send it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
}

impl OpenFile {
    /// For [`read_exact_at`](File::read_exact_at), whose `UnexpectedEof` says that the file has been cut: the
    /// length that the answer's head gave can't be kept, so the connection must end there.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file once more, at a position of its own, for [`annulus::net::splice`] into a pipe. 0 bytes spliced
    /// before the answer's end mean that the file has been cut.
    ///
    /// # Errors
    ///
    /// Outside a runtime, without `/proc`, or if no descriptor is left; reading is the way then.
    pub fn descriptor_at(&self, offset: u64) -> io::Result<Descriptor> {
        let _ = offset;
        Err(io::ErrorKind::Unsupported.into())
    }
}
