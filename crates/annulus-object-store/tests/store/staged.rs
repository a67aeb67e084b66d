//! Staged files of objects with unusual names: neither store shows them, and nothing takes another file for one.

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use std::path::Path as FilePath;
        use std::time::Duration;

        use annulus_object_store::$store::LocalFileSystem;
        use futures_util::TryStreamExt;
        use $object_store::local::LocalFileSystem as Theirs;
        use $object_store::path::Path;
        use $object_store::{ObjectStore, ObjectStoreExt};

        async fn listed(store: &dyn ObjectStore) -> Vec<Path> {
            let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
            let level = store.list_with_delimiter(None).await.unwrap();
            assert!(level.objects.len() <= objects.len());
            objects.into_iter().map(|meta| meta.location).collect()
        }

        fn files(root: &FilePath) -> usize {
            let entries = walkdir::WalkDir::new(root).into_iter();
            entries
                .filter(|entry| entry.as_ref().unwrap().file_type().is_file())
                .count()
        }

        #[tokio::test]
        async fn unfinished_uploads_are_hidden_and_removed_whatever_the_name() {
            let longest = "n".repeat(255);
            for name in [
                "x#",
                "report #3.csv",
                "a#b/c",
                "x#1#2",
                "plain.csv",
                &longest,
            ] {
                let root = tempfile::tempdir().unwrap();
                let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                let theirs = Theirs::new_with_prefix(root.path()).unwrap();
                let at = Path::parse(name).unwrap();
                store.put(&at, "complete".into()).await.unwrap();
                let mut upload = store.put_multipart(&at).await.unwrap();
                upload.put_part("a part of it".into()).await.unwrap();
                assert_eq!(files(root.path()), 2, "{name}");
                for store in [&store as &dyn ObjectStore, &theirs] {
                    assert_eq!(listed(store).await, std::slice::from_ref(&at), "{name}");
                }
                // A killed process leaves the file.
                std::mem::forget(upload);
                let hour = Duration::from_secs(3600);
                assert_eq!(store.remove_staged(hour).await.unwrap(), 0, "{name}");
                assert_eq!(
                    store.remove_staged(Duration::ZERO).await.unwrap(),
                    1,
                    "{name}"
                );
                let got = store.get(&at).await.unwrap().bytes().await.unwrap();
                assert_eq!(
                    (got.as_ref(), files(root.path())),
                    (&b"complete"[..], 1),
                    "{name}"
                );
                // Also the ends of changes that succeed or fail leave nothing.
                let folder = Path::parse("folder").unwrap();
                store.copy(&at, &at).await.unwrap();
                store
                    .put(&folder.clone().join("object"), "x".into())
                    .await
                    .unwrap();
                store.put(&folder, "x".into()).await.unwrap_err();
                store.copy(&at, &folder).await.unwrap_err();
                store
                    .put_multipart(&folder)
                    .await
                    .unwrap()
                    .complete()
                    .await
                    .unwrap_err();
                assert_eq!(files(root.path()), 2, "{name}");
            }
        }

        #[tokio::test]
        async fn a_name_that_is_too_long_fails_and_leaves_nothing() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let theirs = Theirs::new_with_prefix(root.path()).unwrap();
            for bytes in [254, 255] {
                let at = Path::from("n".repeat(bytes));
                theirs.put(&at, "x".into()).await.unwrap_err();
                store.put(&at, "x".into()).await.unwrap();
                theirs.get(&at).await.unwrap();
                store.delete(&at).await.unwrap();
            }
            let at = Path::from("n".repeat(256));
            store.put(&at, "x".into()).await.unwrap_err();
            store
                .put_multipart(&at)
                .await
                .unwrap()
                .complete()
                .await
                .unwrap_err();
            assert_eq!(files(root.path()), 0);
        }

        #[tokio::test]
        async fn files_of_other_programs_are_no_staged_files() {
            let root = tempfile::tempdir().unwrap();
            let names = [
                "song #1",
                "a#12345678901234567890",
                "#1",
                ".annulus-staged#1",
                "x##1",
            ];
            for name in names {
                std::fs::write(root.path().join(name), name).unwrap();
            }
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            assert_eq!(store.remove_staged(Duration::ZERO).await.unwrap(), 0);
            assert_eq!(files(root.path()), names.len());
        }
    };
}
crate::for_each_version!(tests);
