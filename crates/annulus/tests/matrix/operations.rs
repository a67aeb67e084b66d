//! The table of operations. Each line has the operation's name in the counters, the place where it runs, and the work.

use std::fs::Permissions;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use annulus::fs::{Advice, AllocateMode, CachedReads, FileTimes, Merge, SyncRangeMode};
use annulus::net::{
    self, TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
};
use annulus::tokio::fs;
use annulus::{Engine, File, OpenOptions, runtime};
use futures_lite::future::try_zip;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

pub(crate) type Work = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
pub(crate) type LocalWork = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The place where an operation runs if the host has a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// On the ring, if the kernel has the opcode.
    Ring,
    /// Several reads on the ring. One poll submits them and looks at them, so they may never be pending.
    Batch,
    /// On a blocking thread, because there is no opcode, or for another reason.
    Threads,
    /// On the engine of the process or a blocking thread of its runtime, whatever the backend of the host.
    Process,
    /// On the thread that awaits it. It may be ready at once.
    Caller,
    /// In a list of timers or of tasks, without a count.
    Timer,
}

#[derive(Clone, Copy)]
pub(crate) enum Start {
    File(fn(Fixture) -> Work),
    Socket(fn(Fixture) -> LocalWork),
}

/// A line of the table.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// The name in the counters.
    pub(crate) counted: &'static str,
    pub(crate) on: On,
    pub(crate) start: Start,
}

/// Operations by path, of an engine or of a core.
#[derive(Clone)]
pub(crate) enum Fs {
    Engine(Engine),
    Core,
}

impl Fs {
    /// Returns the engine. Called where the cells run.
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Fs::Engine(engine) => engine.clone(),
            Fs::Core => runtime::engine(),
        }
    }
}

pub(crate) const BLOCK_BYTES: usize = 4096;
const BLOCKS: u8 = 16;
const BYTES: usize = BLOCK_BYTES * BLOCKS as usize;

/// Returns numbered blocks, the contents of every file here.
pub(crate) fn contents() -> Vec<u8> {
    let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
    blocks.concat()
}

fn block(n: u8) -> Vec<u8> {
    vec![n; BLOCK_BYTES]
}

/// The files and the folder of a cell.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) engine: Engine,
    /// A file with `contents`, whose reads all are operations.
    pub(crate) file: File,
    /// That file, open for direct I/O if its file system supports that.
    pub(crate) direct: File,
    /// The folder, by a path whose lookup is not tried on the caller's thread.
    pub(crate) folder: Arc<PathBuf>,
    /// Files that will have these lengths, without a future that waits for it.
    pub(crate) written: Arc<Mutex<Vec<(PathBuf, u64)>>>,
}

impl Fixture {
    fn new_path(&self) -> PathBuf {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("new-{number}"))
    }

    fn existing(&self) -> PathBuf {
        let path = self.new_path();
        std::fs::write(&path, contents()).unwrap();
        path
    }

    fn existing_folder(&self) -> PathBuf {
        let path = self.new_path();
        std::fs::create_dir(&path).unwrap();
        path
    }
}

fn is_now(wanted: impl PartialEq + std::fmt::Debug, is: impl PartialEq + std::fmt::Debug) {
    assert_eq!(format!("{wanted:?}"), format!("{is:?}"));
}

/// Closes on a ring if it is the last reference.
async fn close(file: File) -> io::Result<()> {
    file.close().await.map(drop)
}

/// Awaits both at the same time.
async fn both<A, B, E: Into<io::Error>, F: Into<io::Error>>(
    one: impl Future<Output = Result<A, E>>,
    two: impl Future<Output = Result<B, F>>,
) -> io::Result<(A, B)> {
    try_zip(async { one.await.map_err(Into::into) }, async {
        two.await.map_err(Into::into)
    })
    .await
}

/// Returns a loopback address that no other cell uses. A connect that was dropped may reach a listener of the same
/// port.
fn unused_address() -> SocketAddr {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    SocketAddr::from(([127, high, low, 1], 0))
}

async fn stream_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(unused_address())?;
    let address = listener.local_addr()?;
    both(TcpStream::connect(address), listener.accept()).await
}

const MESSAGE: &[u8] = b"a message";

macro_rules! operations {
    ($kind:ident $list:ident: $($name:ident $on:ident $counted:literal |$at:ident| $work:block)*) => {
        pub(crate) const $list: &[Operation] = &[$(Operation {
            name: stringify!($name),
            counted: $counted,
            on: On::$on,
            start: Start::$kind(|$at| Box::pin(async move { $work; Ok(()) })),
        },)*];
    };
}

operations! { File FILES:
    read_at Ring "read_at" |at| {
        let (count, page) = at.file.read_at(block(0), BLOCK_BYTES as u64).await?;
        assert_eq!((count, page), (BLOCK_BYTES, block(1)))
    }
    read_exact_at Ring "read_at" |at| { assert_eq!(block(2), at.file.read_exact_at(block(0), 8192).await?) }
    read_cached Caller "read_at" |at| {
        let file = at.engine.open_with(OpenOptions::new().read(true).cached_reads(CachedReads::Always), at.existing()).await?;
        assert_eq!(block(2), file.read_exact_at(block(0), 8192).await?)
    }
    read_uncached Ring "read_at" |at| {
        let mut options = OpenOptions::new();
        options.read(true).uncached(true).cached_reads(CachedReads::Never);
        let file = at.engine.open_with(&options, at.existing()).await?;
        assert_eq!(block(2), file.read_exact_at(block(0), 8192).await?)
    }
    write_uncached Ring "write_at" |at| {
        let file = at.engine.open_with(OpenOptions::new().write(true).uncached(true), at.existing()).await?;
        assert_eq!(block(2), file.write_all_at(block(2), 8192).await?)
    }
    read_into Ring "read_at" |at| {
        let mut into = block(0);
        assert_eq!((at.file.read_into(&mut into, 4096).await?, into), (BLOCK_BYTES, block(1)))
    }
    read_vectored_at Ring "read_vectored_at" |at| {
        assert_eq!((8192, vec![block(1), block(2)]), at.file.read_vectored_at(vec![block(0), block(0)], 4096).await?)
    }
    read_vectored_exact_at Ring "read_vectored_at" |at| {
        assert_eq!(vec![block(3)], at.file.read_vectored_exact_at(vec![block(0)], 3 * 4096).await?)
    }
    read_many_at Batch "read_at" |at| {
        let reads = at.direct.read_many_at((0..BLOCKS).map(|n| (block(99), u64::from(n) * 4096)));
        for (n, read) in (0..).zip(reads.await) { assert_eq!((BLOCK_BYTES, block(n)), read?) }
    }
    read_merged Batch "read_at" |at| {
        let reads = at.direct.read_many_at((0..BLOCKS).map(|n| (block(99), u64::from(n) * 4096)));
        for (n, read) in (0..).zip(reads.merge(Merge::new(4096, 16384)).await) { assert_eq!((BLOCK_BYTES, block(n)), read?) }
    }
    load Batch "read_at" |at| { assert_eq!(at.direct.load(0, BYTES).chunk_bytes(8192).await?[..], contents()) }
    load_file Ring "read_at" |at| { assert_eq!(at.engine.load_file(at.existing()).await?[..], contents()) }
    write_at Ring "write_at" |at| { assert_eq!((4096, block(1)), at.file.write_at(block(1), 4096).await?) }
    write_all_at Ring "write_at" |at| { assert_eq!(block(2), at.file.write_all_at(block(2), 8192).await?) }
    write_all_durable_at Threads "write_at" |at| { at.file.write_all_durable_at(block(2), 8192).await? }
    write_vectored_at Ring "write_vectored_at" |at| {
        assert_eq!(at.file.write_vectored_at(vec![block(1), block(2)], 4096).await?.0, 8192)
    }
    write_vectored_all_at Ring "write_vectored_at" |at| {
        at.file.write_vectored_all_at(vec![block(0), block(1)], 0).await?
    }
    sync_all Ring "fsync" |at| { at.file.sync_all().await? }
    sync_data Ring "fsync" |at| { at.file.sync_data().await? }
    sync_range Ring "sync_range" |at| { at.file.sync_range(0, 4096, SyncRangeMode::Start).await? }
    copy_range_to Threads "copy_range" |at| {
        let into = at.engine.create(at.new_path()).await?;
        assert_eq!(at.file.copy_range_to(0, &into, 0, 8192).await?, 8192)
    }
    allocate Ring "allocate" |at| { at.file.allocate(0, 1 << 20, AllocateMode::KeepLength).await? }
    advise Ring "advise" |at| { at.file.advise(0, 4096, Advice::WillNeed).await? }
    set_len Ring "truncate" |at| { at.file.set_len(BYTES as u64).await? }
    link_to Ring "link" |at| { at.file.link_to(at.new_path()).await? }
    set_permissions_of_file Threads "set_permissions" |at| {
        at.file.set_permissions(Permissions::from_mode(0o600)).await?
    }
    set_times_of_file Threads "set_times" |at| { at.file.set_times(FileTimes::new()).await? }
    xattrs_of_file Ring "set_xattr" |at| {
        at.file.set_xattr("user.a", "b").await?;
        is_now(b"b", at.file.get_xattr("user.a").await?);
        at.file.list_xattrs().await?
    }
    metadata_of_file Caller "metadata" |at| { assert_eq!(at.file.metadata().await?.len(), BYTES as u64) }
    metadata_of_proc Ring "metadata" |at| {
        let file = at.engine.open_with(OpenOptions::new().read(true), "/proc/self/comm").await?;
        file.metadata().await?
    }
    close Ring "close" |at| {
        close(at.engine.open_with(OpenOptions::new().read(true), "/proc/self/comm").await?).await?
    }
    cursor_reads Ring "read_at" |at| {
        let mut cursor = at.file.cursor();
        cursor.seek(io::SeekFrom::Start(4096)).await?;
        let mut all = Vec::new();
        cursor.read_to_end(&mut all).await?;
        assert_eq!(all, contents()[4096..])
    }
    cursor_writes Threads "write_at" |at| {
        let mut cursor = at.engine.create(at.new_path()).await?.cursor();
        cursor.write_all(&contents()).await?;
        cursor.flush().await?
    }
    cursor_dropped Ring "open" |at| {
        let path = at.new_path();
        let mut cursor = at.engine.create(path.clone()).await?.cursor();
        for _ in 0..3 { cursor.write_all(&contents()).await? }
        at.written.lock().unwrap().push((path, 3 * BYTES as u64));
        drop(cursor)
    }
    open Ring "open" |at| {
        at.engine.open_with(OpenOptions::new().read(true), at.existing()).await?
    }
    create Ring "open" |at| { at.engine.create(at.new_path()).await? }
    create_unnamed Ring "open" |at| { at.engine.create_unnamed((*at.folder).clone()).await? }
    open_beneath Ring "open" |at| {
        let path = at.existing();
        let name = PathBuf::from(path.file_name().unwrap());
        let dir = at.engine.open_dir((*at.folder).clone()).await?;
        let options = OpenOptions::new().read(true).beneath(true).custom_flags(0x20_0000).clone();
        at.engine.open_with(&options, dir.at(&name)).await?
    }
    metadata Ring "metadata" |at| { assert_eq!(at.engine.metadata(at.existing()).await?.len(), BYTES as u64) }
    symlink_metadata Ring "metadata" |at| { at.engine.symlink_metadata(at.existing()).await? }
    try_exists Ring "metadata" |at| { assert!(!at.engine.try_exists(at.new_path()).await?) }
    rename Ring "rename" |at| { at.engine.rename(at.existing(), at.new_path()).await? }
    rename_new Ring "rename" |at| { at.engine.rename_new(at.existing(), at.new_path()).await? }
    exchange Ring "rename" |at| { at.engine.exchange(at.existing(), at.existing()).await? }
    hard_link Ring "link" |at| { at.engine.hard_link(at.existing(), at.new_path()).await? }
    symlink Ring "symlink" |at| {
        let name = at.new_path();
        at.engine.symlink("target", name.clone()).await?;
        is_now("target", at.engine.read_link(name).await?)
    }
    read_link Threads "read_link" |at| { at.engine.read_link("/proc/self/exe").await? }
    set_permissions Threads "set_permissions" |at| {
        at.engine.set_permissions(at.existing(), Permissions::from_mode(0o600)).await?
    }
    set_times Threads "set_times" |at| { at.engine.set_times(at.existing(), FileTimes::new()).await? }
    set_xattr Ring "set_xattr" |at| { at.engine.set_xattr(at.existing(), "user.a", b"b").await? }
    get_xattr Ring "get_xattr" |at| {
        let path = at.existing();
        at.engine.set_xattr(path.clone(), "user.a", b"b").await?;
        is_now(b"b", at.engine.get_xattr(path, "user.a").await?)
    }
    list_xattrs Threads "list_xattrs" |at| { at.engine.list_xattrs(at.existing()).await? }
    remove_xattr Threads "remove_xattr" |at| {
        let path = at.existing();
        at.engine.set_xattr(path.clone(), "user.a", b"b").await?;
        at.engine.remove_xattr(path, "user.a").await?
    }
    remove_file Ring "unlink" |at| { at.engine.remove_file(at.existing()).await? }
    remove_dir Ring "unlink" |at| { at.engine.remove_dir(at.existing_folder()).await? }
    remove_dir_all Ring "unlink" |at| {
        let folder = at.existing_folder();
        std::fs::write(folder.join("file"), "")?;
        at.engine.remove_dir_all(folder).await?
    }
    create_dir Ring "create_dir" |at| { at.engine.create_dir(at.new_path()).await? }
    create_dir_all Ring "create_dir" |at| { at.engine.create_dir_all(at.new_path().join("a/b")).await? }
    read_local Caller "read_file" |at| {
        let path = PathBuf::from("/").join(at.existing().strip_prefix("/proc/self/root").unwrap());
        assert_eq!(at.engine.read(path).await?, contents())
    }
    read Threads "read_file" |at| { assert_eq!(at.engine.read(at.existing()).await?, contents()) }
    read_proc Threads "read_file" |at| { assert!(!at.engine.read_to_string("/proc/self/comm").await?.is_empty()) }
    write Ring "write_at" |at| { at.engine.write(at.new_path(), contents()).await? }
    copy Threads "copy" |at| { assert_eq!(at.engine.copy(at.existing(), at.new_path()).await?, BYTES as u64) }
    canonicalize Threads "canonicalize" |at| { at.engine.canonicalize(at.existing()).await? }
    read_dir Threads "read_dir" |at| {
        let folder = at.existing_folder();
        std::fs::write(folder.join("file"), "")?;
        let mut entries = at.engine.read_dir(folder);
        is_now("file", entries.next().await.unwrap()?.name());
        assert!(entries.next().await.is_none())
    }
}

// Operations that only an engine has.
operations! { File ENGINES:
    nop Ring "nop" |at| { at.engine.nop().await? }
    sleep Timer "sleep" |at| { at.engine.sleep(Duration::from_micros(100)).await? }
}

// Operations of `annulus::tokio::fs`, by a path whose lookup is not tried on the caller's thread.
operations! { File TOKIO_FS:
    tokio_fs_read Process "" |at| {
        assert_eq!(fs::read(at.existing()).await?, contents());
        let error = fs::read_to_string(at.new_path()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound)
    }
    tokio_fs_write Process "" |at| {
        let path = at.new_path();
        fs::write(&path, contents()).await?;
        assert_eq!(std::fs::read(path)?, contents())
    }
    tokio_fs_copy_and_names Process "" |at| {
        let [copy, renamed, linked, symlink] = [(); 4].map(|()| at.new_path());
        assert_eq!(fs::copy(at.existing(), &copy).await?, BYTES as u64);
        fs::rename(&copy, &renamed).await?;
        fs::hard_link(&renamed, &linked).await?;
        fs::symlink(&linked, &symlink).await?;
        assert_eq!(fs::read_link(&symlink).await?, linked);
        assert!(!fs::try_exists(copy).await?);
        assert_eq!(std::fs::read(fs::canonicalize(symlink).await?)?, contents());
        fs::remove_file(linked).await?
    }
    tokio_fs_metadata Process "" |at| {
        let path = at.existing();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).await?;
        let metadata = fs::metadata(&path).await?;
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (BYTES as u64, 0o600));
        assert!(fs::symlink_metadata(path).await?.is_file())
    }
    tokio_fs_folders Process "" |at| {
        let folder = at.new_path();
        fs::create_dir_all(folder.join("a/b")).await?;
        fs::DirBuilder::new().mode(0o700).create(folder.join("c")).await?;
        fs::write(folder.join("file"), "four").await?;
        let mut entries = fs::read_dir(&folder).await?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next_entry().await? {
            assert_eq!(entry.metadata().await?.file_type(), entry.file_type().await?);
            names.push(entry.file_name());
        }
        names.sort();
        assert_eq!(names, ["a", "c", "file"]);
        fs::remove_dir(folder.join("c")).await?;
        fs::remove_dir_all(folder).await?
    }
    tokio_fs_reads_and_seeks Process "" |at| {
        let mut file = fs::File::open(at.existing()).await?;
        file.set_max_buf_size(BLOCK_BYTES);
        for n in [3, 1, 15, 0] {
            assert_eq!(file.seek(io::SeekFrom::Start(u64::from(n) * 4096)).await?, u64::from(n) * 4096);
            let mut read = block(99);
            file.read_exact(&mut read).await?;
            assert_eq!(read, block(n));
        }
        let mut all = Vec::new();
        file.read_to_end(&mut all).await?;
        assert_eq!(all, contents()[4096..]);
        assert_eq!(file.seek(io::SeekFrom::End(-1)).await?, BYTES as u64 - 1)
    }
    tokio_fs_writes Process "" |at| {
        let path = at.new_path();
        let mut file = fs::File::create_new(&path).await?;
        for n in 0..BLOCKS { file.write_all(&block(n)).await? }
        file.flush().await?;
        assert_eq!(std::fs::read(path)?, contents());
        file.write_all(MESSAGE).await?;
        file.sync_all().await?;
        assert_eq!(file.metadata().await?.len(), (BYTES + MESSAGE.len()) as u64);
        file.set_len(10).await?;
        assert_eq!(file.into_std().await.metadata()?.len(), 10)
    }
    tokio_fs_dropped Process "" |at| {
        let path = at.new_path();
        let mut file = fs::File::create(&path).await?;
        for _ in 0..3 { file.write_all(&contents()).await? }
        at.written.lock().unwrap().push((path, 3 * BYTES as u64));
        drop(file)
    }
    tokio_fs_clones Process "" |at| {
        let mut one = fs::File::open(at.existing()).await?;
        let mut other = one.try_clone().await?;
        let mut read = [block(99), block(99)];
        for _ in 0..BLOCKS / 2 {
            let [first, second] = &mut read;
            both(one.read_exact(first), other.read_exact(second)).await?;
        }
        assert_eq!(one.seek(io::SeekFrom::Current(0)).await?, BYTES as u64)
    }
    tokio_fs_positional Process "" |at| {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).open(at.existing()).await?;
        assert_eq!(file.write_all_at(block(7), 0).await?, block(7));
        assert_eq!(file.read_exact_at(block(99), 4096).await?, block(1));
        let reads = file.read_many_at((0..BLOCKS).map(|n| (block(99), u64::from(n) * 4096))).await;
        for (n, read) in (0..).zip(reads) { assert_eq!(read?.1, block(if n == 0 { 7 } else { n })) }
    }
}

operations! { Socket SOCKETS:
    connect Ring "connect" |_at| { stream_pair().await? }
    accept Ring "accept" |_at| { stream_pair().await? }
    connect_unix Ring "connect" |at| {
        // An abstract address; other paths would be too long.
        let path = format!("\0{}", at.new_path().display());
        let listener = UnixListener::bind(&path)?;
        both(UnixStream::connect(&path), listener.accept()).await?
    }
    accept_multishot Ring "accept" |_at| {
        let listener = TcpListener::bind(unused_address())?;
        let address = listener.local_addr()?;
        let mut incoming = listener.accept_multishot();
        both(TcpStream::connect(address), async { incoming.next().await.unwrap() }).await?
    }
    recv Ring "recv" |_at| {
        let (one, two) = UnixStream::pair()?;
        let received = two.recv(vec![0; 64]);
        let (_, (count, _)) = both(one.send_all(MESSAGE), received).await?;
        assert_eq!(count, MESSAGE.len())
    }
    recv_exact Ring "recv" |_at| {
        let (one, two) = UnixStream::pair()?;
        let received = two.recv_exact(vec![0; 9]);
        let sent = one.send_all(MESSAGE);
        is_now(MESSAGE, both(received, sent).await?.0)
    }
    recv_multishot Ring "recv" |_at| {
        let (one, two) = UnixStream::pair()?;
        let mut chunks = two.recv_multishot();
        let sent = one.send_all(MESSAGE);
        let received = async { chunks.next().await.unwrap() };
        is_now(MESSAGE, &both(received, sent).await?.0[..])
    }
    recv_the_end Ring "recv" |_at| {
        let (one, two) = UnixStream::pair()?;
        one.shutdown(Shutdown::Write)?;
        assert_eq!(two.recv(vec![0; 9]).await?.0, 0)
    }
    send_all Ring "send" |_at| {
        // More than the socket's buffers hold.
        let (one, two) = UnixStream::pair()?;
        let received = two.recv_exact(vec![0; 1 << 20]);
        both(one.send_all(vec![7; 1 << 20]), received).await?
    }
    send_vectored_all Ring "send_vectored" |_at| {
        let (one, two) = UnixStream::pair()?;
        one.send_vectored_all(vec![MESSAGE, MESSAGE]).await?;
        two.recv_exact(vec![0; 18]).await?
    }
    send_zc Ring "send_zero_copy" |_at| {
        let (one, two) = stream_pair().await?;
        both(one.send_zc(MESSAGE), two.recv_exact(vec![0; 9])).await?
    }
    writer Ring "send" |_at| {
        let (one, two) = UnixStream::pair()?;
        let mut writer = one.writer();
        let written = async { writer.write(MESSAGE).await?; writer.finish().await };
        is_now(MESSAGE, both(written, two.recv_exact(vec![0; 9])).await?.1)
    }
    async_stream Ring "recv" |_at| {
        let (one, two) = UnixStream::pair()?;
        let (mut one, mut two) = (net::AsyncStream::new(one), net::AsyncStream::new(two));
        one.write_all(MESSAGE).await?;
        one.flush().await?;
        let mut message = [0; 9];
        two.read_exact(&mut message).await?;
        is_now(MESSAGE, message)
    }
    readable Ring "poll" |_at| {
        let (one, two) = UnixStream::pair()?;
        both(two.readable(), async { one.try_send(MESSAGE).unwrap(); one.sent().await }).await?
    }
    writable Ring "poll" |_at| { UnixStream::pair()?.0.writable().await? }
    send_file Ring "recv" |at| {
        let (one, two) = stream_pair().await?;
        let file = std::fs::File::open(at.existing())?;
        let received = two.recv_exact(vec![0; BYTES]);
        let sent = one.send_file(b"", std::os::fd::AsFd::as_fd(&file), 0, BYTES as u64, || ());
        assert_eq!(contents(), both(sent, received).await?.1)
    }
    splice Ring "splice" |_at| {
        let (from, into) = std::io::pipe()?;
        std::io::Write::write_all(&mut &into, MESSAGE)?;
        let (one, two) = UnixStream::pair()?;
        assert_eq!(net::splice(&net::Descriptor::new(from)?, &one, 9).await?, 9);
        two.recv_exact(vec![0; 9]).await?
    }
    datagrams Ring "recv_message" |_at| {
        let (one, two) = UnixDatagram::pair()?;
        let received = two.recv(vec![0; 64]);
        both(received, one.send(MESSAGE)).await?
    }
    udp Ring "send_message" |_at| {
        let (one, two) = (UdpSocket::bind(unused_address())?, UdpSocket::bind(unused_address())?);
        let mut datagrams = two.recv_multishot();
        one.send_to(MESSAGE, two.local_addr()?).await?;
        datagrams.next().await.unwrap()?
    }
    spawn_blocking Threads "spawn_blocking" |_at| { assert_eq!(runtime::spawn_blocking(|| 7).await.unwrap(), 7) }
    spawn Timer "" |_at| { assert_eq!(runtime::spawn(async { 7 }).await.unwrap(), 7) }
    sleep_of_core Timer "" |_at| { annulus::time::sleep(Duration::from_micros(100)).await }
    timeout Timer "" |_at| {
        let late = annulus::time::timeout(Duration::from_micros(100), std::future::pending::<()>()).await;
        assert!(late.is_err())
    }
    interval Timer "" |_at| {
        let mut interval = annulus::time::interval(Duration::from_micros(100));
        interval.tick().await;
        interval.tick().await
    }
    yield_now Caller "" |_at| { runtime::yield_now().await }
}
