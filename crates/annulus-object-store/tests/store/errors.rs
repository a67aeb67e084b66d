//! Errors of the system: the right error, nothing left behind, and a store that works again.

use std::path::Path as FilePath;

use annulus_testing::skip::{root_or_skip, skip};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Gives this thread, and those that it starts, a separate mount namespace.
fn in_own_mounts() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
}

/// Returns whether mounts can be made here.
pub(crate) fn mounts_or_skip() -> bool {
    if !root_or_skip("a mount") {
        return false;
    }
    in_own_mounts()
        .map_err(|why| skip(format_args!("no mounts of our own: {why}")))
        .is_ok()
}

fn names(folder: &FilePath) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};

        use super::{mounts_or_skip, names};
        use annulus_object_store::$store::LocalFileSystem;
        use annulus_testing::child_process::{become_own_user, in_child};
        use annulus_testing::faulty_fs::{Call, Fault, FaultyFs};
        use annulus_testing::skip::{root_or_skip, skip};
        use nix::errno::Errno;
        use nix::mount::{MsFlags, mount, umount};
        use nix::sys::statvfs::statvfs;
        use $object_store::path::Path;
        use $object_store::{Error, ObjectStore, ObjectStoreExt};

        /// Returns the name of a test of this module, as a child process needs it.
        fn test(name: &str) -> String {
            let module = module_path!().split_once("::").unwrap().1;
            format!("{module}::{name}")
        }

        fn block_on(body: impl Future<Output = ()>) {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            runtime.unwrap().block_on(body);
        }

        fn is_generic<T>(result: Result<T, Error>, reason: &str) {
            match result {
                Err(error @ Error::Generic { .. }) => {
                    let text = error.to_string();
                    assert!(text.contains(reason), "{text}");
                }
                Err(error) => panic!("{error:?}"),
                Ok(_) => panic!("no error; expected {reason}"),
            }
        }

        #[test]
        fn a_full_disk_fails_the_write_and_nothing_is_left() {
            in_child(
                &test("a_full_disk_fails_the_write_and_nothing_is_left"),
                || {
                    if !mounts_or_skip() {
                        return;
                    }
                    let root = tempfile::tempdir().unwrap();
                    mount(
                        Some("tmpfs"),
                        root.path(),
                        Some("tmpfs"),
                        MsFlags::empty(),
                        Some("size=256k"),
                    )
                    .unwrap();
                    block_on(async {
                        let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                        let location = Path::from("object");
                        store.put(&location, "old".into()).await.unwrap();
                        let free = || statvfs(root.path()).unwrap().blocks_free();
                        let free_before = free();
                        is_generic(
                            store.put(&location, vec![1; 1 << 20].into()).await,
                            "No space left",
                        );
                        assert_eq!(names(root.path()), ["object"]);
                        let mut upload = store.put_multipart(&location).await.unwrap();
                        upload.put_part(vec![1; 1000].into()).await.unwrap();
                        is_generic(
                            upload.put_part(vec![1; 1 << 20].into()).await,
                            "No space left",
                        );
                        is_generic(upload.complete().await, "not written");
                        drop(upload);
                        // A thread removes the name, and then closes the file.
                        while names(root.path()) != ["object"] || free() < free_before {
                            tokio::task::yield_now().await;
                        }
                        assert_eq!(
                            store.get(&location).await.unwrap().bytes().await.unwrap(),
                            "old"
                        );
                        store.put(&location, vec![2; 100_000].into()).await.unwrap();
                        assert_eq!(store.head(&location).await.unwrap().size, 100_000);
                    });
                },
            );
        }

        #[test]
        fn a_file_system_is_unmounted_once_its_files_are_closed() {
            in_child(
                &test("a_file_system_is_unmounted_once_its_files_are_closed"),
                || {
                    if !mounts_or_skip() {
                        return;
                    }
                    let root = tempfile::tempdir().unwrap();
                    let (none, flags) = (None::<&str>, MsFlags::empty());
                    mount(Some("tmpfs"), root.path(), Some("tmpfs"), flags, none).unwrap();
                    block_on(async {
                        let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                        let location = Path::from("object");
                        store.put(&location, "x".into()).await.unwrap();
                        store.get(&location).await.unwrap().bytes().await.unwrap();
                        assert_eq!(umount(root.path()), Err(Errno::EBUSY));
                        store.close_files();
                        // The kernel may close the file of a put a little later.
                        while let Err(error) = umount(root.path()) {
                            assert_eq!(error, Errno::EBUSY);
                            tokio::task::yield_now().await;
                        }
                    });
                },
            );
        }

        #[test]
        fn a_file_is_read_without_the_right_to_open_it_until_it_is_closed() {
            use std::os::unix::fs::PermissionsExt;

            in_child(
                &test("a_file_is_read_without_the_right_to_open_it_until_it_is_closed"),
                || {
                    if !root_or_skip("another user") {
                        return;
                    }
                    let root = tempfile::tempdir().unwrap();
                    let allow = |path: &std::path::Path, mode| {
                        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                            .unwrap();
                    };
                    allow(root.path(), 0o755);
                    std::fs::write(root.path().join("object"), "x").unwrap();
                    allow(&root.path().join("object"), 0o600);
                    block_on(async {
                        let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                        let location = Path::from("object");
                        store.get(&location).await.unwrap();
                        become_own_user();
                        let got = store.get(&location).await.unwrap();
                        assert_eq!(got.bytes().await.unwrap(), "x");
                        store.close_files();
                        is_generic(store.get(&location).await, "Permission denied");
                    });
                },
            );
        }

        #[test]
        fn a_failing_disk_fails_the_call_and_nothing_is_left() {
            in_child(
                &test("a_failing_disk_fails_the_call_and_nothing_is_left"),
                || {
                    if !mounts_or_skip() {
                        return;
                    }
                    let root = tempfile::tempdir().unwrap();
                    let flags = [const { AtomicBool::new(false) }; 3];
                    let fails = Arc::new(flags);
                    let plan = Arc::clone(&fails);
                    let mounted =
                        FaultyFs::mount(root.path(), "object", vec![7; 300_000], move |call| {
                            let kind = match call {
                                Call::Read { .. } => 0,
                                Call::Write { .. } => 1,
                                Call::Fsync => 2,
                                _ => return Fault::None,
                            };
                            match plan[kind].load(Ordering::SeqCst) {
                                true => Fault::Error(nix::errno::Errno::EIO as i32),
                                false => Fault::None,
                            }
                        });
                    let _mounted = match mounted {
                        Ok(mounted) => mounted,
                        Err(error) => return skip(format_args!("no FUSE file system: {error}")),
                    };
                    let set = |kind: usize, fail| fails[kind].store(fail, Ordering::SeqCst);
                    block_on(async {
                        let store = LocalFileSystem::new_with_prefix(root.path())
                            .unwrap()
                            .with_fsync(true);
                        let location = Path::from("object");
                        let whole = async || store.get(&location).await?.bytes().await;
                        set(0, true);
                        is_generic(whole().await, "os error 5");
                        is_generic(
                            store.get_ranges(&location, &[0..10, 100..200]).await,
                            "os error 5",
                        );
                        set(0, false);
                        assert_eq!(whole().await.unwrap(), vec![7; 300_000]);
                        assert_eq!(
                            store.get_ranges(&location, &[0..2]).await.unwrap(),
                            [vec![7; 2]]
                        );
                        // A write, and a sync of the file.
                        for kind in [1, 2] {
                            set(kind, true);
                            is_generic(store.put(&location, "new".into()).await, "os error 5");
                            // The file system lists no folders, so a name that is left would make the next attempt
                            // fail.
                            let mut upload = store.put_multipart(&location).await.unwrap();
                            let part = upload.put_part("new".into()).await;
                            assert_eq!(part.is_err(), kind == 1);
                            upload.complete().await.unwrap_err();
                            set(kind, false);
                            assert_eq!(whole().await.unwrap(), vec![7; 300_000]);
                        }
                    });
                },
            );
        }

        #[test]
        fn a_file_without_permission_is_neither_opened_nor_used_again() {
            use std::os::unix::fs::PermissionsExt;

            in_child(
                &test("a_file_without_permission_is_neither_opened_nor_used_again"),
                || {
                    if !root_or_skip("another user") {
                        return;
                    }
                    let root = tempfile::tempdir().unwrap();
                    let allow = |path: &std::path::Path, mode| {
                        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                            .unwrap();
                    };
                    allow(root.path(), 0o777);
                    become_own_user();
                    block_on(async {
                        let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                        let location = Path::from("object");
                        store.put(&location, "old".into()).await.unwrap();
                        store.get(&location).await.unwrap();
                        allow(&root.path().join("object"), 0o000);
                        is_generic(store.get(&location).await, "Permission denied");
                        is_generic(store.head(&location).await, "Permission denied");
                        allow(&root.path().join("object"), 0o600);
                        assert_eq!(
                            store.get(&location).await.unwrap().bytes().await.unwrap(),
                            "old"
                        );
                        std::fs::create_dir(root.path().join("closed")).unwrap();
                        allow(&root.path().join("closed"), 0o500);
                        is_generic(
                            store.put(&Path::from("closed/object"), "x".into()).await,
                            "Permission denied",
                        );
                    });
                },
            );
        }
    };
}
crate::for_each_version!(tests);
