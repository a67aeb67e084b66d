//! The processors that `--sqpoll` needs.

use rustix::thread::sched_getaffinity;

use crate::doctor::processors_online;

/// The least number of processors: for the program, its clients or other processes, and the polling thread.
const ONLINE_MIN: usize = 4;
/// The least number of processors that this process may use.
const ALLOWED_MIN: usize = 3;

/// Returns a warning if this machine has too few processors for `--sqpoll`.
pub(super) fn warning() -> Option<String> {
    let allowed = sched_getaffinity(None).map(|set| set.count() as usize);
    warning_for(processors_online(), allowed.ok())
}

fn warning_for(online: Option<usize>, allowed: Option<usize>) -> Option<String> {
    let few = match (online, allowed) {
        (Some(online), _) if online < ONLINE_MIN => format!("this machine has {online} processors"),
        (_, Some(allowed)) if allowed < ALLOWED_MIN => {
            format!("this process may use {allowed} processors")
        }
        _ => return None,
    };
    Some(format!(
        "--sqpoll makes the program slower here: {few}, and the kernel's polling thread competes with it. Leave it \
         out, or use at least {ONLINE_MIN} processors, {ALLOWED_MIN} of them for this process"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polling_thread_needs_a_free_processor() {
        assert!(
            warning_for(Some(2), Some(2))
                .unwrap()
                .contains("has 2 processors")
        );
        assert!(warning_for(Some(8), Some(2)).unwrap().contains("may use 2"));
        assert_eq!(warning_for(Some(4), Some(3)), None);
        assert_eq!(warning_for(None, None), None);
    }
}
