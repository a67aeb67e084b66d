//! The conformance tests of `object_store` that `LocalFileSystem`'s own tests call, and the other tests of that file
//! that apply to any store of local files.

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use std::sync::Arc;

        use annulus_object_store::$store::LocalFileSystem;
        use futures_util::TryStreamExt;
        use $object_store::integration::*;
        use $object_store::path::Path;
        use $object_store::{ObjectStore, ObjectStoreExt};

        async fn conforms(configure: impl Fn(LocalFileSystem) -> LocalFileSystem) {
            let root = tempfile::tempdir().unwrap();
            let store = configure(LocalFileSystem::new_with_prefix(root.path()).unwrap());
            put_get_delete_list(&store).await;
            list_with_offset_exclusivity(&store).await;
            get_opts(&store).await;
            list_uses_directories_correctly(&store).await;
            list_with_delimiter(&store).await;
            rename_and_copy(&store).await;
            copy_if_not_exists(&store).await;
            copy_rename_nonexistent_object(&store).await;
            stream_get(&store).await;
            put_opts(&store, false).await;
        }

        #[tokio::test]
        async fn the_default_engine_conforms() {
            conforms(|store| store).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_default_engine_conforms_on_several_threads() {
            conforms(|store| store).await;
        }

        #[tokio::test]
        async fn the_fallback_conforms() {
            conforms(|store| store.with_engine(crate::fallback())).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_simulated_kernel_conforms() {
            conforms(|store| store.with_engine(crate::simulated())).await;
            conforms(|store| store.with_fsync(true).with_engine(crate::simulated())).await;
        }

        #[tokio::test]
        async fn durable_changes_conform() {
            conforms(|store| store.with_fsync(true)).await;
            conforms(|store| store.with_fsync(true).with_engine(crate::fallback())).await;
        }

        #[tokio::test]
        async fn a_store_without_open_files_conforms() {
            conforms(|store| store.with_open_files(0)).await;
        }

        #[tokio::test]
        async fn a_store_that_trusts_open_files_conforms() {
            conforms(|store| store.with_revalidation(std::time::Duration::MAX)).await;
        }

        #[test]
        fn it_works_outside_of_tokio() {
            for fsync in [false, true] {
                let root = tempfile::tempdir().unwrap();
                let store = LocalFileSystem::new_with_prefix(root.path())
                    .unwrap()
                    .with_fsync(fsync);
                pollster::block_on(async {
                    put_get_delete_list(&store).await;
                    list_uses_directories_correctly(&store).await;
                    list_with_delimiter(&store).await;
                    let location = Path::from("upload");
                    let mut upload = store.put_multipart(&location).await.unwrap();
                    upload.put_part("123".into()).await.unwrap();
                    upload.put_part("45678".into()).await.unwrap();
                    let put = upload.complete().await.unwrap();
                    let got = store.get(&location).await.unwrap();
                    assert_eq!(got.meta.e_tag, put.e_tag);
                    assert_eq!(got.bytes().await.unwrap(), "12345678");
                });
            }
        }

        #[tokio::test]
        async fn the_whole_file_system_can_be_a_store() {
            let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
            assert!(
                !store
                    .list_with_delimiter(None)
                    .await
                    .unwrap()
                    .common_prefixes
                    .is_empty()
            );
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("a b%");
            std::fs::write(&file, "contents").unwrap();
            let location = Path::from_absolute_path(&file).unwrap();
            assert_eq!(
                store.get(&location).await.unwrap().bytes().await.unwrap(),
                "contents"
            );
            LocalFileSystem::new_with_prefix("..").unwrap();
        }

        #[tokio::test]
        async fn links_are_followed_and_unfinished_uploads_are_hidden() {
            use std::os::unix::fs::symlink;

            let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            std::fs::write(outside.path().join("file"), "outside").unwrap();
            symlink(outside.path().join("file"), root.path().join("link")).unwrap();
            symlink(outside.path().join("missing"), root.path().join("broken")).unwrap();
            symlink(outside.path(), root.path().join("folder")).unwrap();
            let mut upload = store.put_multipart(&Path::from("a")).await.unwrap();
            upload.put_part("part".into()).await.unwrap();

            let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
            let mut names: Vec<_> = listed.iter().map(|meta| meta.location.as_ref()).collect();
            names.sort_unstable();
            assert_eq!(names, ["folder/file", "link"]);
            let level = store.list_with_delimiter(None).await.unwrap();
            assert_eq!(level.common_prefixes, [Path::from("folder")]);
            assert_eq!(level.objects.len(), 1);
            let linked = store.get(&Path::from("folder/file")).await.unwrap();
            assert_eq!(linked.bytes().await.unwrap(), "outside");
            store.delete(&Path::from("link")).await.unwrap();
            assert!(outside.path().join("file").exists());
        }

        #[tokio::test]
        async fn a_name_that_becomes_a_folder_in_its_url_is_an_error() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let (object, odd) = (Path::from("a"), Path::from("a:"));
            store.put(&object, "x".into()).await.unwrap();
            store.copy(&object, &odd).await.unwrap_err();
            store.copy_if_not_exists(&object, &odd).await.unwrap_err();
            store.rename(&object, &odd).await.unwrap_err();
            store.put(&odd, "x".into()).await.unwrap_err();
            store.get(&object).await.unwrap();
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
        async fn a_pipe_with_a_writer_is_an_object() {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("pipe");
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let head = tokio::spawn(async move { store.head(&Path::from("pipe")).await });
            // Opened for both, because an open for writing alone waits for a reader, which may be gone again.
            let both = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path);
            assert_eq!(head.await.unwrap().unwrap().size, 0);
            drop(both.unwrap());
        }

        #[tokio::test]
        async fn automatic_cleanup_removes_empty_folders_below_the_root() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let location = Path::from("a/b/c");
            store.put(&location, "x".into()).await.unwrap();
            store.delete(&location).await.unwrap();
            assert!(root.path().join("a/b").is_dir());
            let store = store.with_automatic_cleanup(true);
            store.put(&location, "x".into()).await.unwrap();
            store.put(&Path::from("a/d"), "x".into()).await.unwrap();
            store.delete(&location).await.unwrap();
            assert!(!root.path().join("a/b").exists());
            store.delete(&Path::from("a/d")).await.unwrap();
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        }
    };
}
crate::for_each_version!(tests);
