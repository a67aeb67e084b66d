//! Serves the files of a directory over HTTP, with a ring per core. Ctrl-C and SIGTERM end it gracefully:
//! `cargo run --release -p annulus-http --example static_files -- docs 127.0.0.1:8080`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus_http::Options;
use annulus_http::site::SiteOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(directory), Some(address)) = (args.next(), args.next()) else {
        return Err("usage: static_files DIRECTORY ADDRESS:PORT".into());
    };
    let address: SocketAddr = address.parse()?;
    // Nothing outside the root is served, not even through links.
    let mut site = SiteOptions::default();
    site.root = directory.into();
    site.listing = true;
    let options = Options::new(site);

    println!("http://{address}/");
    Runtime::builder()
        .shutdown_on_signals()
        // The time that requests in progress have to finish.
        .grace(Duration::from_secs(5))
        // Runs on each core. The kernel spreads connections over the cores' listeners.
        .run(|_core| {
            let options = options.clone();
            async move { annulus_http::serve(TcpListener::bind(address)?, &options).await }
        })?;
    Ok(())
}
