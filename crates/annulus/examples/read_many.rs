//! Reads many ranges of a file, submitted together:
//! `cargo run --release -p annulus --example read_many -- README.md 0 512 1024 2048`

use std::error::Error;

use annulus::Engine;

const RANGE_BYTES: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: read_many FILE OFFSET...")?;
    let offsets = args
        .map(|arg| arg.parse())
        .collect::<Result<Vec<u64>, _>>()?;
    pollster::block_on(async {
        let engine = Engine::new()?;
        let file = engine.open(path).await?;

        // All results, in order of the requests.
        let ranges = offsets.iter().map(|&offset| (vec![0; RANGE_BYTES], offset));
        let results = file.read_many_at(ranges.clone()).await;
        for (result, offset) in results.into_iter().zip(&offsets) {
            let (bytes, range) = result?;
            let sum: u64 = range[..bytes].iter().map(|&byte| u64::from(byte)).sum();
            println!("{bytes} bytes at {offset}, sum {sum}");
        }

        // Each result as soon as its read completes.
        let mut reads = file.read_many_at(ranges);
        while let Some(read) = reads.next().await {
            let (bytes, _range) = read.result?;
            println!("request {} is complete: {bytes} bytes", read.index);
        }
        Ok(())
    })
}
