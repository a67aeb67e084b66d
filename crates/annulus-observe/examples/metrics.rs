//! Reads a file every second, prints the program's metrics, and serves them to Prometheus:
//! `cargo run --release -p annulus-observe --features prometheus --example metrics -- 127.0.0.1:9100 README.md`

use std::error::Error;
use std::time::Duration;

use annulus::{Engine, metrics};
use annulus_observe::prometheus;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: metrics ADDRESS:PORT FILE".into());
    };
    // Serves until it is dropped. Port 0 selects a free port.
    let endpoint = prometheus::serve(address.parse()?)?;
    println!("metrics at http://{}/metrics", endpoint.addr());
    pollster::block_on(async {
        let engine = Engine::new()?;
        let file = engine.open(path).await?;
        let file_bytes = file.metadata().await?.len();
        loop {
            let before = metrics::snapshot();
            for offset in (0..file_bytes).step_by(4096) {
                file.read_at(vec![0; 4096], offset).await?;
            }
            // The counters and latencies of the last round, of all engines of this program.
            let round = metrics::snapshot().since(&before).total();
            if let Some(reads) = round.operation("read_at") {
                let p99_ns = reads.latency.quantile(0.99).unwrap_or(0);
                println!("{} reads, 99th percentile {p99_ns} ns", reads.completed);
            }
            engine.sleep(Duration::from_secs(1)).await?;
        }
    })
}
