//! Watching a command from outside while it runs: the endpoint for Prometheus, alerts as lines on standard error, and
//! what `annulus top` reads. What alerts make of a run that was measured is in `judge`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use annulus::metrics::{Every, share};
use annulus_observe::alert::Alerts;
use annulus_observe::prometheus::{self, Endpoint};

use crate::args::WatchArgs;
use crate::fault::Fault;

mod judge;

pub(crate) use judge::{Interval, Judge, Measured, Verdict};

/// How often a server looks at itself for alerts.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What watches; dropped, it ends.
pub(crate) struct Watching {
    _endpoint: Option<Endpoint>,
    _alerts: Option<Every>,
}

/// Before anything else: what this process does from here on can be seen by `annulus top` and, if `metrics` says so, by
/// Prometheus.
pub(crate) fn begin(metrics: Option<SocketAddr>) -> Result<Watching, Fault> {
    if let Err(error) = share() {
        eprintln!("annulus: `annulus top` can't look at this process: {error}");
    }
    let endpoint = match metrics {
        Some(addr) => {
            let endpoint = prometheus::serve(addr).map_err(|error| refused(&error))?;
            eprintln!("annulus: metrics at http://{}/metrics", endpoint.addr());
            Some(endpoint)
        }
        None => None,
    };
    Ok(Watching {
        _endpoint: endpoint,
        _alerts: None,
    })
}

/// The same for a server, which also looks at itself.
pub(crate) fn serving(args: &WatchArgs) -> Result<Watching, Fault> {
    let mut watching = begin(args.metrics)?;
    if !args.alert.is_empty() {
        let alerts = Alerts::new(args.alert.iter().cloned());
        let running = alerts.run(LOOK_EVERY, |event| eprintln!("annulus: {event}"));
        let running =
            running.map_err(|error| Fault::failed(format!("watching for alerts: {error}")))?;
        watching._alerts = Some(running);
    }
    Ok(watching)
}

fn refused(error: &io::Error) -> Fault {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "somebody else has it; give --metrics another port, or 0 for any that is free"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; `ip address` lists those it has"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 are root's; choose a higher one",
        _ => "give --metrics another address",
    };
    Fault::failed(format!("{error}; {advice}"))
}
