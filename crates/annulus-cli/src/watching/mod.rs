//! Monitors a running command: the Prometheus endpoint, alerts on standard error, and shared metrics for `annulus top`.
//! Alerts of benchmarks are in `judge`.

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

/// The interval at which a server checks its alerts.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The monitoring of this process, which ends when this is dropped.
pub(crate) struct Watching {
    _endpoint: Option<Endpoint>,
    _alerts: Option<Every>,
}

/// Starts monitoring. Call this first: from then on the activity is visible to `annulus top` and, with `metrics`, to
/// Prometheus.
pub(crate) fn begin(metrics: Option<SocketAddr>) -> Result<Watching, Fault> {
    if let Err(error) = share() {
        note!("annulus: `annulus top` cannot show this process: {error}");
    }
    let endpoint = match metrics {
        Some(addr) => {
            let endpoint = prometheus::serve(addr).map_err(|error| refused("--metrics", &error))?;
            note!("annulus: metrics at http://{}/metrics", endpoint.addr());
            Some(endpoint)
        }
        None => None,
    };
    Ok(Watching {
        _endpoint: endpoint,
        _alerts: None,
    })
}

/// Starts monitoring of a server, including its alerts.
pub(crate) fn serving(args: &WatchArgs) -> Result<Watching, Fault> {
    let mut watching = begin(args.metrics)?;
    if !args.alert.is_empty() {
        let alerts = Alerts::new(args.alert.iter().cloned());
        let running = alerts.run(CHECK_INTERVAL, |event| note!("annulus: {event}"));
        let running = running.map_err(|error| failed!("cannot check alerts: {error}"))?;
        watching._alerts = Some(running);
    }
    Ok(watching)
}

/// Returns the error of an endpoint, with what to do. `option` has its address.
pub(crate) fn refused(option: &str, error: &io::Error) -> Fault {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process uses it; give {option} another port, or 0 for a free one")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; `ip address` lists its addresses".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root; choose a higher one".to_owned()
        }
        _ => format!("give {option} another address"),
    };
    failed!("{error}; {advice}")
}
