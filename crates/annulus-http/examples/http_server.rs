//! The files of a directory over HTTP: `cargo run -p annulus-http --example http_server -- DIR [ADDRESS [epoll]]`.

use std::io;

use annulus::Backend;
use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus_http::Options;
use annulus_http::site::SiteOptions;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().map_or(".", String::as_str);
    let address = args
        .get(1)
        .map_or("127.0.0.1:8080", String::as_str)
        .to_owned();
    let backend = match args.get(2).map(String::as_str) {
        Some("epoll") => Backend::Fallback,
        _ => Backend::Auto,
    };
    let mut site = SiteOptions::default();
    site.root = dir.into();
    site.listing = true;
    let options = Options::new(site);
    println!("http://{address}/");
    Runtime::builder().threads(1).backend(backend).run(|_core| {
        let (address, options) = (address.clone(), options.clone());
        // Once per core: the kernel spreads connections over the listeners.
        async move { annulus_http::serve(TcpListener::bind(&*address)?, &options).await }
    })
}
