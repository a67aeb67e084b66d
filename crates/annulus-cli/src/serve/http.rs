//! `annulus serve http`: serves the files of a directory with the crate `annulus-http`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use annulus::runtime::CoreInfo;
use annulus_http::site::SiteOptions;
use annulus_http::{AccessLog, Limits, LogFormat, Options};
use http::StatusCode;

use super::listening::{self, ListenAddr};
use super::{announce, end_at_signal, runtime_of};
use crate::args::{HttpArgs, LogFormatName};
use crate::bench::machine::allow_many_open_files;
use crate::fault::Fault;
use crate::signals;
use crate::watching;

pub(crate) fn http(args: &HttpArgs) -> Result<ExitCode, Fault> {
    let runtime = runtime_of(&args.runtime, None)?;
    let passed = listening::passed(&args.addr)?;
    // Before the first ring, which stores the limit.
    allow_many_open_files();
    signals::listen()?;
    signals::end_in_order();
    let options = options(args)?;
    let log = options.log.clone();
    // Also without a log, so that SIGUSR1 does not end a server that has none.
    let reopened = log.clone();
    signals::on_reopen(move || reopened.iter().for_each(AccessLog::reopen))?;
    let addresses = listening::resolve(&args.addr, passed)?;
    let _watching = watching::serving(&args.watch)?;
    let end = OnceLock::new();
    let outcome = runtime.grace(args.grace).run(|core| {
        end_at_signal(&core, &end);
        serve(core, &addresses, &options)
    });
    // This also writes the lines of aborted connections.
    log.iter().for_each(AccessLog::finish);
    outcome.map_err(|error| Fault::failed(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves one core. The future borrows nothing, because it outlives the call that returns it.
fn serve(
    core: CoreInfo,
    addresses: &[ListenAddr],
    options: &Options,
) -> impl Future<Output = io::Result<()>> + use<> {
    let listeners: io::Result<Vec<_>> = addresses.iter().map(ListenAddr::listener).collect();
    let message: String = (addresses
        .iter()
        .map(|address| format!("listening on {address}\n")))
    .collect();
    let options = options.clone();
    async move {
        let listeners = listeners?;
        if core.index() == 0 {
            announce(&core, &message);
        }
        annulus_http::serve_all(listeners, &options).await
    }
}

fn options(args: &HttpArgs) -> Result<Options, Fault> {
    let files = &args.files;
    let mut site = SiteOptions::default();
    site.index = files.index.clone();
    site.listing = files.listing;
    site.precompressed = !files.no_precompressed;
    site.hidden = files.hidden;
    site.cache_bytes = usize::try_from(files.cache).unwrap_or(usize::MAX);
    site.recheck = files.recheck;
    if let Some(status) = args.respond {
        let Some(status) = StatusCode::from_u16(status)
            .ok()
            .filter(|one| one.as_u16() >= 200)
        else {
            let message =
                format!("--respond {status} is not a status; write a number from 200 to 999");
            return Err(Fault::usage(message));
        };
        site.respond = Some((status, args.respond_body.clone().into()));
    }
    if let Some(dir) = &args.dir {
        check_dir(dir)?;
        site.root = dir.clone();
    }
    if let Some(name) = files
        .index
        .iter()
        .find(|name| name.contains('/') || name.is_empty())
    {
        let message = format!("--index `{name}` is not a file name; write a name without a slash");
        return Err(Fault::usage(message));
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => {
            let config = annulus_http::tls_config(cert, key);
            Some(config.map_err(|error| Fault::usage(error.to_string()))?)
        }
        _ => None,
    };
    let mut options = Options::new(site);
    options.limits = limits(args);
    options.log = args
        .access_log
        .as_deref()
        .map(|path| log(path, args))
        .transpose()?;
    options.tls = tls;
    Ok(options)
}

fn check_dir(dir: &Path) -> Result<(), Fault> {
    let shown = dir.display();
    match fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(usage!(
            "{shown} is not a directory; name the directory to serve"
        )),
        Err(error) => Err(usage!(
            "cannot serve {shown}: {error}; name an existing directory"
        )),
    }
}

fn limits(args: &HttpArgs) -> Limits {
    let values = &args.limits;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut limits = Limits::default();
    limits.head_bytes = size(values.max_head);
    limits.target_bytes = size(values.max_target);
    limits.fields = usize::from(values.max_fields);
    limits.body_bytes = values.max_body;
    limits.requests = values.max_requests;
    limits.connections = values.max_connections.max(1);
    limits.head_timeout = values.head_timeout;
    limits.body_timeout = values.body_timeout;
    limits.idle_timeout = values.idle_timeout;
    limits.send_timeout = values.send_timeout;
    limits.handshake_timeout = values.handshake_timeout;
    limits.streams = values.max_streams;
    limits
}

fn log(path: &Path, args: &HttpArgs) -> Result<AccessLog, Fault> {
    let format = match args.access_log_format {
        LogFormatName::Common => LogFormat::Common,
        LogFormatName::Combined => LogFormat::Combined,
        LogFormatName::Json => LogFormat::Json,
    };
    AccessLog::open(path, format).map_err(|error| {
        usage!(
            "cannot open --access-log {}: {error}; name a writable file",
            path.display()
        )
    })
}
