//! Whether the kernel's polling thread would have a processor to itself.

use rustix::thread::sched_getaffinity;

use crate::doctor::processors_online;

/// The program, its clients or the rest of the machine, and the polling thread want one each.
const ONLINE_MIN: usize = 4;
const ALLOWED_MIN: usize = 3;

/// What to say about `--sqpoll` here.
pub(super) fn warning() -> Option<String> {
    let allowed = sched_getaffinity(None).map(|set| set.count() as usize);
    judge(processors_online(), allowed.ok())
}

fn judge(online: Option<usize>, allowed: Option<usize>) -> Option<String> {
    let few = match (online, allowed) {
        (Some(online), _) if online < ONLINE_MIN => format!("this machine has {online} processors"),
        (_, Some(allowed)) if allowed < ALLOWED_MIN => {
            format!("this process may use {allowed} processors")
        }
        _ => return None,
    };
    Some(format!(
        "--sqpoll: {few}, so that the kernel's polling thread takes time from the program (measured: it lost); leave \
         it out, or give it {ONLINE_MIN} or more, {ALLOWED_MIN} of them to this process"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polling_thread_needs_a_processor_that_nobody_else_wants() {
        assert!(
            judge(Some(2), Some(2))
                .unwrap()
                .contains("has 2 processors")
        );
        assert!(judge(Some(8), Some(2)).unwrap().contains("may use 2"));
        assert_eq!(judge(Some(4), Some(3)), None);
        assert_eq!(judge(None, None), None);
    }
}
