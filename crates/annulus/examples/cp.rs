//! Copies a file. Several reads are in flight while a part is written:
//! `cargo run --release -p annulus --example cp -- README.md /tmp/copy`

use std::error::Error;
use std::io;

use annulus::Engine;

const PART_BYTES: usize = 256 << 10;
const READS_IN_FLIGHT: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else {
        return Err("usage: cp FROM TO".into());
    };
    pollster::block_on(async {
        let engine = Engine::new()?;
        let from = engine.open(from).await?;
        let to = engine.create(to).await?;
        let file_bytes = from.metadata().await?.len();

        // The iterator advances as reads complete, so it needs no memory for the whole file.
        let offsets = (0..file_bytes).step_by(PART_BYTES);
        let parts = offsets.map(|offset| (Vec::with_capacity(PART_BYTES), offset));
        let mut reads = from.read_many_at(parts).window(READS_IN_FLIGHT);
        // Reads complete in any order; each result has its offset.
        while let Some(read) = reads.next().await {
            let (bytes, part) = read.result?;
            if bytes == 0 {
                return Err(io::Error::other("the file became shorter").into());
            }
            to.write_all_at(part, read.offset).await?;
            // A read may return less than the part. The rest is read like any other part.
            let next = read.offset + bytes as u64;
            if bytes < PART_BYTES && next < file_bytes {
                reads.push(Vec::with_capacity(PART_BYTES - bytes), next);
            }
        }
        to.sync_all().await?;
        Ok(())
    })
}
