//! Serves the files of a directory over HTTP, with a ring per core. Ctrl-C and SIGTERM end it gracefully:
//! `cargo run --release -p annulus-http --example static_files -- docs 127.0.0.1:8080`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus_http::Options;
use annulus_http::site::SiteOptions;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    println!("http://{address}/");
    Runtime::builder()
        // The time that requests in progress have to finish.
        .grace(Duration::from_secs(5))
        .run_with(
            |handle| {
                thread::spawn(move || {
                    signals.forever().next();
                    handle.shutdown();
                });
            },
            // Runs on each core. The kernel spreads connections over the cores' listeners.
            |_core| {
                let options = options.clone();
                async move { annulus_http::serve(TcpListener::bind(address)?, &options).await }
            },
        )?;
    Ok(())
}
