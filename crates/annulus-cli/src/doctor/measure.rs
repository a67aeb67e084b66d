//! Measures the cost of a system call, a batch, a read and a message on this machine, in two seconds.
//!
//! Each measurement has a [`Probe`], which takes a short sample. All probes run in a shuffled order in each of several
//! rounds, so that other load on the machine affects all of them equally.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus::buf::AlignedBuf;
use annulus::fs::CachedReads;
use annulus::{Backend, Engine, File};
use annulus_baselines::{Failure, NopRing, Pread, Ring};

use super::echo::{self, Echo};
use super::figures::{Figure, Figures, Measurement, Missing};
use super::location::Sample;
use super::worker::{BLOCK_BYTES, Timed};
use crate::bench::{machine::Usage, spread::Spread};

/// The number of samples of each probe. 15 probes × 5 rounds × 22 ms take 1.65 s, and the set-up takes the rest of the
/// two seconds.
const ROUNDS: usize = 5;
/// The length of a sample.
const WINDOW: Duration = Duration::from_millis(22);
/// The first sample of each probe only warms up.
const WARM_UP: Duration = Duration::from_millis(4);

/// Takes a sample: nanoseconds per operation.
type Probe = Box<dyn FnMut(Duration) -> Result<f64, Failure>>;

/// Runs all measurements that are possible here. Without `has_ring`, those with a ring are left out.
pub(crate) fn measure(sample: &Sample, why_no_reads: &str, has_ring: bool) -> Figures {
    let (began, usage) = (Instant::now(), Usage::now());
    let mut probes: Vec<(Measurement, Result<Probe, Failure>)> = Measurement::all()
        .map(|what| (what, probe(what, sample, why_no_reads, has_ring)))
        .collect();
    for (_, probe) in &mut probes {
        let warm = match probe {
            Ok(ready) => ready(WARM_UP).err(),
            Err(_) => None,
        };
        if let Some(failure) = warm {
            *probe = Err(failure);
        }
    }
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); probes.len()];
    let mut order: Vec<usize> = (0..probes.len()).collect();
    for _ in 0..ROUNDS {
        fastrand::shuffle(&mut order);
        for &index in &order {
            let probe = &mut probes[index].1;
            let Ok(ready) = probe else { continue };
            match ready(WINDOW) {
                Ok(ns) => samples[index].push(ns),
                Err(failure) => *probe = Err(failure),
            }
        }
    }
    let ns = began.elapsed().as_nanos() as f64;
    let used = Usage::now().since(&usage);
    let mut figures = Figures {
        seconds: ns / 1e9,
        samples: ROUNDS,
        others_busy: (used.machine_busy_ns - used.own_cpu_ns).max(0.0) / ns,
        stolen: used.stolen_ns / ns,
        ..Figures::default()
    };
    for ((what, probe), samples) in probes.iter().zip(&samples) {
        match (probe, Spread::of(samples)) {
            (Ok(_), Some(ns)) => figures.figures.push(Figure {
                what: *what,
                about: what.name().to_owned(),
                ns,
            }),
            (Err(failure), _) => figures.missing.push(Missing {
                what: *what,
                why: failure.to_string(),
            }),
            (Ok(_), None) => {}
        }
    }
    figures
}

fn probe(
    what: Measurement,
    sample: &Sample,
    why_no_reads: &str,
    has_ring: bool,
) -> Result<Probe, Failure> {
    let unavailable = |why: &str| Err(Failure::Unavailable(why.to_owned()));
    let by_ring = !matches!(
        what,
        Measurement::CachedPread
            | Measurement::CachedHop
            | Measurement::DirectPread
            | Measurement::DirectHop
            | Measurement::EchoEpoll
    );
    if by_ring && !has_ring {
        return unavailable("io_uring is not available");
    }
    let (cached, direct) = (sample.buffered.as_ref(), sample.direct.as_ref());
    let cached = || cached.ok_or_else(|| Failure::Unavailable(why_no_reads.to_owned()));
    let direct = || {
        cached()?;
        direct.ok_or_else(|| Failure::Unavailable("direct I/O is not available there".to_owned()))
    };
    let bytes = sample.bytes;
    match what {
        Measurement::Enter => enters(),
        Measurement::Nop1 => nops(1),
        Measurement::Nop8 => nops(8),
        Measurement::Nop32 => nops(32),
        Measurement::CachedPread => variant(Pread, cached()?, bytes, 1, false),
        Measurement::CachedRing => variant(ring("base-unregistered")?, cached()?, bytes, 1, false),
        Measurement::CachedHop => hops(cached()?, bytes),
        Measurement::DirectPread => variant(Pread, direct()?, bytes, 1, true),
        Measurement::DirectRing => variant(ring("base")?, direct()?, bytes, 1, true),
        Measurement::DirectHop => hops(direct()?, bytes),
        Measurement::DirectRing8 => variant(ring("base")?, direct()?, bytes, 8, true),
        Measurement::DirectRing32 => variant(ring("base")?, direct()?, bytes, 32, true),
        Measurement::DirectPlain32 => {
            variant(ring("base-unregistered")?, direct()?, bytes, 32, true)
        }
        Measurement::EchoEpoll => echoes(Echo::start(echo::Server::Epoll)?),
        Measurement::EchoRing => echoes(Echo::start(echo::Server::Ring)?),
    }
}

/// Runs `step`, which returns its number of operations, until the time is over. Returns the time per operation.
fn timed(window: Duration, mut step: impl FnMut() -> Result<u64, Failure>) -> Result<f64, Failure> {
    let (began, mut ops) = (Instant::now(), 0);
    loop {
        ops += step()?;
        let elapsed = began.elapsed();
        if elapsed >= window {
            return Ok(elapsed.as_nanos() as f64 / ops.max(1) as f64);
        }
    }
}

/// The number of rounds between two reads of the clock, which cost as much as a NOP each.
const ROUNDS_PER_CLOCK: u64 = 16;

fn enters() -> Result<Probe, Failure> {
    let ring = nop_ring(1)?;
    Ok(Box::new(move |window| {
        timed(window, || {
            for _ in 0..ROUNDS_PER_CLOCK {
                ring.enter()?;
            }
            Ok(ROUNDS_PER_CLOCK)
        })
    }))
}

fn nops(batch: usize) -> Result<Probe, Failure> {
    let mut ring = nop_ring(batch)?;
    Ok(Box::new(move |window| {
        timed(window, || {
            for _ in 0..ROUNDS_PER_CLOCK {
                ring.round()?;
            }
            Ok(ROUNDS_PER_CLOCK * batch as u64)
        })
    }))
}

/// Creates a ring like those of the library's runtime: with deferred task work, if the kernel supports it.
fn nop_ring(batch: usize) -> Result<NopRing, Failure> {
    match NopRing::new(batch, true) {
        Err(Failure::Unavailable(_)) => NopRing::new(batch, false),
        result => result,
    }
}

fn ring(name: &str) -> Result<Ring, Failure> {
    let variant = |ring: &Ring| annulus_baselines::Variant::<Timed>::name(ring) == name;
    let ring = Ring::variants().into_iter().find(variant);
    ring.ok_or_else(|| Failure::Failed(format!("there is no ring {name}")))
}

/// Returns a probe for a variant of `bench file`, which runs on its own threads.
fn variant(
    variant: impl annulus_baselines::Variant<Timed> + 'static,
    file: &std::fs::File,
    bytes: u64,
    depth: usize,
    direct: bool,
) -> Result<Probe, Failure> {
    let job = super::worker::job(copy(file)?, bytes, depth, direct);
    Ok(Box::new(move |window| {
        let bench = Timed::new(&job, window);
        variant.run(&job, &bench)?;
        bench.ns_per_op()
    }))
}

fn copy(file: &std::fs::File) -> Result<std::fs::File, Failure> {
    file.try_clone()
        .map_err(|error| Failure::failed("copying a descriptor", &error))
}

/// Returns a probe that reads on another thread, as the library does without a ring.
fn hops(file: &std::fs::File, bytes: u64) -> Result<Probe, Failure> {
    let failed = |error: std::io::Error| Failure::failed("a read on a blocking thread", &error);
    let engine = Engine::builder()
        .backend(Backend::Fallback)
        .blocking_threads(1)
        .build()
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let file: Arc<File> = Arc::new(File::from_std(copy(file)?, &engine).map_err(failed)?);
    file.set_cached_reads(CachedReads::Never);
    let mut buf = Some(AlignedBuf::with_len(BLOCK_BYTES, BLOCK_BYTES));
    let mut random = fastrand::Rng::new();
    let blocks = bytes / BLOCK_BYTES as u64;
    Ok(Box::new(move |window| {
        timed(window, || {
            let at = random.u64(..blocks) * BLOCK_BYTES as u64;
            let block = match buf.take() {
                Some(buf) => buf,
                None => AlignedBuf::with_len(BLOCK_BYTES, BLOCK_BYTES),
            };
            let (count, back) = futures_executor::block_on(file.read_at(block, at))
                .map_err(|error| failed(error.into()))?;
            buf = Some(back);
            match count {
                BLOCK_BYTES => Ok(1),
                count => Err(Failure::Failed(format!(
                    "a read of 4096 bytes returned {count}"
                ))),
            }
        })
    }))
}

fn echoes(mut echo: Echo) -> Result<Probe, Failure> {
    Ok(Box::new(move |window| timed(window, || echo.round())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::location::Location;

    #[test]
    fn a_measurement_has_a_figure_or_a_reason_for_its_absence() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (_, mut sample) = Location::at(dir.path(), true).unwrap();
        sample.direct = None;
        let figures = measure(&sample, "no file", false);
        let measured: Vec<Measurement> = figures.figures.iter().map(|one| one.what).collect();
        let expected = match sample.buffered {
            Some(_) => vec![
                Measurement::CachedPread,
                Measurement::CachedHop,
                Measurement::EchoEpoll,
            ],
            None => vec![Measurement::EchoEpoll],
        };
        assert_eq!(measured, expected, "{:?}", figures.missing);
        assert_eq!(
            measured.len() + figures.missing.len(),
            Measurement::all().len()
        );
        assert!(figures.figures.iter().all(|one| one.ns.median > 0.0));
        let enter = figures
            .missing
            .iter()
            .find(|one| one.what == Measurement::Enter);
        assert_eq!(enter.unwrap().why, "io_uring is not available");
    }
}
