//! `Support`, compared with a real ring, and under filters and limits that the tests set.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use annulus::engine::SetupMode;
use annulus::support::{KernelVersion, Mechanism, ProbeKind, Support, Verdict};
use annulus::{Backend, Engine, SetupError};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;
use io_uring::IoUring;
use rustix::process::{Resource, WaitOptions, getrlimit, wait};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// One test at a time, because some count resources of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Detects the support, if rings are available here.
fn detect_ring() -> Option<Support> {
    let support = Support::detect();
    if let Err(error) = support.ring() {
        skip(error);
        return None;
    }
    Some(support)
}

fn works(support: &Support, kind: ProbeKind, name: &str) -> bool {
    let probe = support.probes(kind).find(|probe| probe.name == name);
    probe.unwrap_or_else(|| panic!("no {name}")).works()
}

#[test]
fn the_set_up_mode_is_the_one_that_an_engine_reaches() {
    let _alone = alone();
    let reached = |setup_mode| {
        let engine = Engine::builder()
            .backend(Backend::Uring)
            .setup_mode(setup_mode)
            .build();
        engine.map(|engine| engine.backend().to_string())
    };
    match Support::detect().ring() {
        Ok(setup_mode) => assert_eq!(
            reached(SetupMode::Deferred).unwrap(),
            reached(setup_mode).unwrap()
        ),
        Err(error) => assert_eq!(
            reached(SetupMode::Plain).unwrap_err().to_string(),
            error.to_string()
        ),
    }
}

#[test]
fn a_set_up_flag_is_accepted_if_a_ring_can_be_made_with_it() {
    let _alone = alone();
    let Some(support) = detect_ring() else { return };
    let made = |flags: fn(&mut io_uring::Builder) -> &mut io_uring::Builder| {
        let mut builder = IoUring::builder();
        flags(&mut builder);
        builder.build(4).is_ok()
    };
    let mut tried = BTreeMap::new();
    tried.insert("IOPOLL", made(|ring| ring.setup_iopoll()));
    tried.insert("SQPOLL", made(|ring| ring.setup_sqpoll(1)));
    tried.insert("CQSIZE", made(|ring| ring.setup_cqsize(16)));
    tried.insert("CLAMP", made(|ring| ring.setup_clamp()));
    tried.insert("R_DISABLED", made(|ring| ring.setup_r_disabled()));
    tried.insert("SUBMIT_ALL", made(|ring| ring.setup_submit_all()));
    tried.insert("COOP_TASKRUN", made(|ring| ring.setup_coop_taskrun()));
    let taskrun_flag = made(|ring| ring.setup_coop_taskrun().setup_taskrun_flag());
    tried.insert("TASKRUN_FLAG", taskrun_flag);
    tried.insert("SINGLE_ISSUER", made(|ring| ring.setup_single_issuer()));
    let deferred = made(|ring| ring.setup_single_issuer().setup_defer_taskrun());
    tried.insert("DEFER_TASKRUN", deferred);
    tried.insert("NO_SQARRAY", made(|ring| ring.setup_no_sqarray()));
    for (name, works_here) in tried {
        assert_eq!(
            works(&support, ProbeKind::SetupFlag, name),
            works_here,
            "{name}"
        );
    }
}

#[test]
fn features_and_opcodes_are_those_of_a_ring() {
    let _alone = alone();
    let Some(support) = detect_ring() else { return };
    let ring = IoUring::new(4).unwrap();
    let features = support.features().map(|one| (one.name, one.supported));
    let features: BTreeMap<_, _> = features.collect();
    assert_eq!(features["NODROP"], ring.params().is_feature_nodrop());
    assert_eq!(
        features["SUBMIT_STABLE"],
        ring.params().is_feature_submit_stable()
    );
    assert_eq!(features["EXT_ARG"], ring.params().is_feature_ext_arg());
    assert_eq!(
        features["MIN_TIMEOUT"],
        ring.params().is_feature_min_timeout()
    );
    assert_eq!(features["NO_IOWAIT"], ring.params().is_feature_no_iowait());

    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe).unwrap();
    for (code, one) in support.opcodes().enumerate() {
        let (name, has) = (one.name, one.supported);
        assert_eq!(has, probe.is_supported(code as u8), "{name}");
    }
}

#[test]
fn a_registration_works_if_a_ring_accepts_it() {
    let _alone = alone();
    let Some(support) = detect_ring() else { return };
    let ring = IoUring::new(4).unwrap();
    let takes = ring.submitter();
    let works = |name| works(&support, ProbeKind::Registration, name);
    assert_eq!(
        works("direct descriptors"),
        takes.register_files(&[0]).is_ok()
    );
    takes.unregister_files().unwrap();
    let sparse = takes.register_files_sparse(4).is_ok();
    assert_eq!(works("an empty table of direct descriptors"), sparse);
    let limited = takes.register_iowq_max_workers(&mut [0, 0]).is_ok();
    assert_eq!(works("a limit of worker threads"), limited);
    // Buffers and groups are tried with separate memory in src/sys/register/tests.rs.
    assert!(works("registered buffers"));
}

/// The test `tidy` compares the table of docs/reference/kernels.md with the sources.
#[test]
fn every_documented_operation_exists_and_runs_where_its_opcode_is_supported() {
    let _alone = alone();
    let support = Support::detect();
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/kernels.md");
    let document = fs::read_to_string(document).unwrap();
    let table = document.split("## Operations").nth(1).unwrap();
    let rows: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map_while(|line| line.split('`').nth(1))
        .collect();
    let names: Vec<_> = support
        .operations()
        .map(|operation| operation.name)
        .collect();
    let (own, _) = rows.split_at(names.len());
    assert_eq!(own, names);

    let opcodes = support.opcodes().map(|one| (one.name, one.supported));
    let opcodes: BTreeMap<_, _> = opcodes.collect();
    for operation in support.operations() {
        let mechanism = match operation.opcode {
            Some(opcode) if opcodes[opcode] => Mechanism::Ring,
            None if operation.name == "sleep" => Mechanism::Clock,
            _ => Mechanism::BlockingThread,
        };
        assert_eq!(operation.mechanism, mechanism, "{}", operation.name);
    }
}

#[test]
fn limits_and_policy_are_those_of_the_process() {
    let _alone = alone();
    let support = Support::detect();
    assert_eq!(
        support.memlock_bytes(),
        getrlimit(Resource::Memlock).current
    );
    assert_eq!(support.descriptors(), getrlimit(Resource::Nofile).current);
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let sysctl = sysctl.and_then(|text| text.trim().parse().ok());
    assert_eq!(support.io_uring_disabled(), sysctl);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(support.kernel_release(), release.trim());
    let KernelVersion { major, minor, .. } = support.kernel_version();
    assert!(release.starts_with(&format!("{major}.{minor}")));
}

/// Returns the numbers of descriptors and mapped rings, after the library's threads are gone. The kernel lists a joined
/// thread a moment longer.
fn held() -> (usize, usize) {
    let patience = Instant::now() + Duration::from_secs(60);
    while threads() > 0 {
        assert!(Instant::now() < patience, "a thread stays");
        thread::sleep(Duration::from_millis(1));
    }
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.matches("io_uring").count())
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.starts_with("annulus")).count()
}

/// A thread can register 16 rings. The loop is longer, so that leaked ones would be noticed. In a separate process,
/// because the ring of another test's thread ends with that thread, after its test.
#[test]
fn detection_leaves_nothing_behind() {
    let _alone = alone();
    in_child("detection_leaves_nothing_behind", || {
        let before = held();
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..21 {
            let begin = Instant::now();
            let support = Support::detect();
            times.push(begin.elapsed());
            assert_eq!(support.ring().is_ok(), Support::detect().ring().is_ok());
        }
        assert_eq!(held(), before);
        times.sort();
        // Only printed: the time depends on the load of the machine.
        println!(
            "{:?} at least, {:?} mostly, {:?} at most",
            times[0], times[10], times[20]
        );
    });
}

/// Detects on a thread where `calls` fail with `errno`.
fn under_a_filter(calls: &[i64], errno: i32) -> Support {
    filtered(calls.iter().map(|&call| (call, Vec::new())), errno)
}

/// Detects on a thread where calls that match these rules fail with `errno`.
fn filtered(rules: impl Iterator<Item = (i64, Vec<SeccompRule>)>, errno: i32) -> Support {
    on_a_filtered_thread(rules, SeccompAction::Errno(errno as u32), Support::detect)
}

/// Runs `body` on a thread where calls that match these rules lead to `action`. Filters apply to a thread and those it
/// starts.
fn on_a_filtered_thread<T: Send + 'static>(
    rules: impl Iterator<Item = (i64, Vec<SeccompRule>)>,
    action: SeccompAction,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let rules = rules.collect();
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, machine).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    let filtered = thread::spawn(move || {
        apply_filter(&filter).unwrap();
        body()
    });
    filtered.join().unwrap()
}

const SETUP: i64 = libc::SYS_io_uring_setup;
const ENTER: i64 = libc::SYS_io_uring_enter;
const REGISTER: i64 = libc::SYS_io_uring_register;

/// Returns the text of a row, with its continuation lines.
fn fact(text: &str, label: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(label));
    let first = lines
        .next()
        .unwrap_or_else(|| panic!("no {label} in:\n{text}"));
    let more = lines.take_while(|line| line.starts_with("    "));
    let words = first[label.len()..]
        .split_whitespace()
        .chain(more.flat_map(str::split_whitespace));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_seccomp_filter_is_reported_as_the_cause_with_a_hint() {
    let _alone = alone();
    let filtered = Support::detect().seccomp_filter();
    for calls in [&[SETUP, ENTER, REGISTER][..], &[SETUP], &[ENTER]] {
        let support = under_a_filter(calls, libc::EPERM);
        assert!(support.seccomp_filter());
        let Err(SetupError::Refused { by, hint }) = support.ring() else {
            panic!("{calls:?}: {:?}", support.ring());
        };
        assert!(
            by.contains("seccomp") && hint.contains("io_uring_setup"),
            "{by}; {hint}"
        );
        for kind in [ProbeKind::SetupFlag, ProbeKind::Registration] {
            assert_eq!(support.probes(kind).count(), 0, "{kind:?}");
        }
        assert!(
            support
                .operations()
                .all(|operation| operation.mechanism != Mechanism::Ring)
        );

        let text = support.to_string();
        assert_eq!(
            fact(&text, "io_uring"),
            "refused by a seccomp filter (EPERM)"
        );
        assert!(
            fact(&text, "to allow").contains("seccomp profile"),
            "{text}"
        );
        assert!(
            fact(&text, "policy").ends_with("a seccomp filter is loaded"),
            "{text}"
        );
        assert!(
            fact(&text, "so").starts_with("blocking threads; every operation works."),
            "{text}"
        );
    }
    assert_eq!(
        Support::detect().seccomp_filter(),
        filtered,
        "the filter was another thread's"
    );
}

/// Without a probe in a child, the filter would end this test.
#[test]
fn a_filter_that_kills_is_reported_and_triggered_in_a_child_only() {
    let _alone = alone();
    for action in [
        SeccompAction::KillProcess,
        SeccompAction::KillThread,
        SeccompAction::Trap,
    ] {
        for fatal in [
            &[SETUP, ENTER, REGISTER][..],
            &[SETUP],
            &[ENTER],
            &[REGISTER],
        ] {
            let rules = fatal.iter().map(|&call| (call, Vec::new()));
            let (support, engine) = on_a_filtered_thread(rules, action.clone(), || {
                (Support::detect(), Engine::new().unwrap())
            });
            let Err(SetupError::Refused { by, .. }) = support.ring() else {
                panic!("{fatal:?}: {:?}", support.ring());
            };
            assert!(by.contains("kills the process"), "{by}");
            let calls = [SETUP, ENTER, REGISTER];
            for (call, probe) in calls.iter().zip(support.probes(ProbeKind::SystemCall)) {
                let kills = matches!(probe.verdict, Verdict::Kills);
                assert_eq!(kills, fatal.contains(call), "{probe:?}");
            }
            let backend = engine.backend().to_string();
            assert!(backend.contains("kills the process"), "{backend}");
        }
    }
    // The children are gone, and no parent needs to wait for them.
    let all = WaitOptions::from_bits_retain(libc::__WALL as u32) | WaitOptions::NOHANG;
    assert_eq!(wait(all).unwrap_err(), rustix::io::Errno::CHILD);
}

#[test]
fn a_thread_that_gets_a_filter_later_is_probed_again() {
    let _alone = alone();
    let allowed = [(libc::SYS_acct, Vec::new())].into_iter();
    on_a_filtered_thread(allowed, SeccompAction::Errno(1), || {
        let ring = || Engine::builder().backend(Backend::Uring).build();
        if let Err(error) = ring() {
            return skip(error);
        }
        let fatal = [(SETUP, Vec::new())].into_iter().collect();
        let machine = std::env::consts::ARCH.try_into().unwrap();
        let action = SeccompAction::KillProcess;
        let filter = SeccompFilter::new(fatal, SeccompAction::Allow, action, machine).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let error = ring().unwrap_err().to_string();
        assert!(error.contains("kills the process"), "{error}");
    });
}

/// The ring for cached reads of a thread is made later than the engine.
#[test]
fn a_thread_that_gets_a_filter_makes_no_ring_for_its_cached_reads() {
    let _alone = alone();
    let engine = Engine::new().unwrap();
    let file = pollster::block_on(engine.open("/etc/passwd")).unwrap();
    let read = move || {
        let reads = (0..8).map(|at| (vec![0; 1], at));
        pollster::block_on(file.read_many_at(reads).into_future())
    };
    // The driver starts on this thread.
    let all_read = |read: Vec<annulus::BufResult<usize, Vec<u8>>>| read.iter().all(Result::is_ok);
    assert!(all_read(read()));
    let fatal = [SETUP, ENTER, REGISTER].map(|call| (call, Vec::new()));
    let action = SeccompAction::KillProcess;
    assert!(all_read(on_a_filtered_thread(
        fatal.into_iter(),
        action,
        read
    )));
}

#[test]
fn a_filter_that_imitates_an_old_kernel_is_recognised() {
    let _alone = alone();
    let support = under_a_filter(&[SETUP, ENTER, REGISTER], libc::ENOSYS);
    let Err(error @ SetupError::Missing { hint, .. }) = &support.ring() else {
        panic!("{:?}", support.ring());
    };
    assert!(hint.starts_with("a seccomp filter causes this"), "{hint}");
    // The kernel may have io_uring.
    assert!(error.to_string().starts_with("io_uring is missing (ENOSYS"));
}

#[test]
fn a_filter_that_forbids_some_registrations_leaves_a_ring_and_the_report_lists_them() {
    let _alone = alone();
    if detect_ring().is_none() {
        return;
    }
    // IORING_REGISTER_BUFFERS and IORING_REGISTER_PBUF_RING, the second argument of the call.
    let forbidden = [0, 22].map(|opcode| {
        let is = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, opcode);
        SeccompRule::new(vec![is.unwrap()]).unwrap()
    });
    let support = filtered([(REGISTER, forbidden.into())].into_iter(), libc::EPERM);
    support.ring().unwrap();
    let failed: Vec<_> = support
        .probes(ProbeKind::Registration)
        .filter(|probe| !probe.works())
        .map(|probe| probe.name)
        .collect();
    let forbidden = [
        "registered buffers",
        "replacing registered buffers",
        "buffer groups",
    ];
    assert_eq!(failed, forbidden);
    let text = support.to_string();
    let lacking = fact(&text, "lacking");
    assert!(
        lacking.starts_with("io_uring refused by a seccomp filter (EPERM); allow"),
        "{text}"
    );
    assert!(fact(&text, "registrations").ends_with(&format!("not: {}", forbidden.join(", "))));
    assert_eq!(
        text.matches("refused by").count(),
        1,
        "once is enough:\n{text}"
    );
    assert!(
        fact(&text, "so").starts_with("io_uring, without the features listed above"),
        "{text}"
    );
}

#[test]
fn the_text_has_a_fact_per_line_a_verdict_and_a_next_step() {
    let _alone = alone();
    let text = Support::detect().to_string();
    for label in [
        "kernel",
        "io_uring",
        "operations",
        "policy",
        "locked memory",
        "descriptors",
    ] {
        assert!(!fact(&text, label).is_empty());
    }
    assert!(fact(&text, "so").contains("Next: "), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
}

/// The limit of locked memory applies to a process, so this runs in a separate one.
#[test]
fn without_locked_memory_the_limit_is_reported_with_a_hint() {
    let _alone = alone();
    if detect_ring().is_none() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let name = "detect_without_locked_memory";
    let child = Command::new("sh")
        .args([
            "-c",
            "ulimit -l 0 && exec \"$0\" \"$@\"",
            program.to_str().unwrap(),
        ])
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && out.contains("1 passed"), "{out}");
    // Whether rings are charged depends on the kernel; registered buffers always are.
    let label = if out.contains("\nto allow") {
        "io_uring"
    } else {
        "lacking"
    };
    let fact = fact(&out, label);
    assert!(
        fact.contains("the locked-memory limit of 0 bytes is too small for"),
        "{out}"
    );
    assert!(out.contains("raise it (ulimit -l"), "{out}");
}

#[test]
#[ignore = "run by the test above, in a process without locked memory"]
fn detect_without_locked_memory() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let support = Support::detect();
    assert_eq!(
        (support.memlock_bytes(), support.memlock_waived()),
        (Some(0), false)
    );
    println!("\n{support}");
}
