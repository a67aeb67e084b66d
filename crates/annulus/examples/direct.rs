//! Counts the lines of a file, with direct I/O into registered buffers:
//! `cargo run --release -p annulus --example direct -- README.md`

use std::error::Error;
use std::io;

use annulus::buf::BufferLayout;
use annulus::{Engine, OpenOptions};

const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: direct FILE")?;
    pollster::block_on(async {
        let engine = Engine::new()?;
        // The kernel pins these buffers once, and not at each read. They are aligned for direct I/O.
        let arena = engine.register_buffers(BufferLayout::new(BUFFERS, BUFFER_BYTES))?;
        eprintln!("{arena}");

        // Direct reads bypass the page cache. Some file systems refuse them: the open then fails with `EINVAL`.
        let mut options = OpenOptions::new();
        let file = engine
            .open_with(options.read(true).direct(true), path)
            .await?;
        let file_bytes = file.metadata().await?.len();

        // One read per buffer to begin with. Each completed read passes its buffer to the next one.
        let mut offsets = (0..file_bytes).step_by(BUFFER_BYTES);
        let mut first = Vec::new();
        for offset in offsets.by_ref().take(BUFFERS) {
            first.push((arena.take().await, offset));
        }
        let mut reads = file.read_many_at(first);
        let mut lines = 0;
        while let Some(read) = reads.next().await {
            let (bytes, buffer) = read.result?;
            if (bytes as u64) < (file_bytes - read.offset).min(BUFFER_BYTES as u64) {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            lines += buffer[..bytes]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count();
            if let Some(offset) = offsets.next() {
                reads.push(buffer, offset);
            }
        }
        println!("{lines}");
        Ok(())
    })
}
