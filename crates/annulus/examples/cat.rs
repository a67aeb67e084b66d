//! Writes files to standard output, with one buffer for all reads:
//! `cargo run --release -p annulus --example cat -- README.md CHANGELOG.md`

use std::io::{self, Write};

use annulus::Engine;

fn main() -> io::Result<()> {
    pollster::block_on(async {
        let engine = Engine::new()?;
        let mut output = io::stdout().lock();
        let mut buffer = vec![0; 128 << 10];
        for path in std::env::args_os().skip(1) {
            let file = engine.open(path).await?;
            let mut offset = 0;
            loop {
                let bytes;
                // The buffer moves into the read and is returned with the result.
                (bytes, buffer) = file.read_at(buffer, offset).await?;
                if bytes == 0 {
                    break;
                }
                output.write_all(&buffer[..bytes])?;
                offset += bytes as u64;
            }
        }
        output.flush()
    })
}
