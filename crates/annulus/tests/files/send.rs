//! Tasks of a work-stealing runtime write every kind of buffer.
//!
//! Whether a future is `Send` is decided without its lifetimes: a literal fails where a `Vec` compiles.

use std::sync::Arc;

use annulus::buf::AlignedBuf;
use annulus::{Engine, IoBuf};
use tokio::runtime::Builder;

use crate::fixtures::for_each_fixture;

const TEXT: &str = "text";

fn aligned() -> AlignedBuf {
    let mut buf = AlignedBuf::with_len(TEXT.len(), 512);
    buf.copy_from_slice(TEXT.as_bytes());
    buf
}

/// Writes `$buf` with each call, one task per call.
#[cfg(not(annulus_portable))]
macro_rules! write_in_tasks {
    ($engine:ident, $path:ident, $($buf:expr),+ $(,)?) => {$(
        in_task!($engine, $path, |_file| $engine.write(&$path, $buf).await.unwrap());
        in_task!($engine, $path, |file| _ = file.write_at($buf, 0).await.unwrap());
        in_task!($engine, $path, |file| _ = file.write_all_at($buf, 0).await.unwrap());
        in_task!($engine, $path, |file| _ = file.write_all_durable_at($buf, 0).await.unwrap());
        in_task!($engine, $path, |file| _ = file.write_vectored_at(vec![$buf], 0).await.unwrap());
        in_task!($engine, $path, |file| _ = file.write_vectored_all_at(vec![$buf], 0).await.unwrap());
    )+};
}

macro_rules! in_task {
    ($engine:ident, $path:ident, |$file:ident| $write:expr) => {{
        let ($engine, $path) = ($engine.clone(), $path.clone());
        let task = tokio::spawn(async move {
            let $file = $engine.create(&$path).await.unwrap();
            $write;
            $engine.read(&$path).await.unwrap()
        });
        assert_eq!(task.await.unwrap(), TEXT.as_bytes());
    }};
}

#[cfg(not(annulus_portable))]
#[test]
fn tasks_write_every_kind_of_buffer() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    for_each_fixture(
        |builder| builder,
        |fixture| {
            let (engine, path): (Engine, _) = (fixture.engine.clone(), fixture.path("f"));
            runtime.block_on(async move {
                write_in_tasks![
                    engine,
                    path,
                    "text",
                    TEXT.as_bytes(),
                    b"text".as_slice(),
                    TEXT.subslice(..),
                    TEXT.to_owned(),
                    TEXT.as_bytes().to_vec(),
                    Box::<[u8]>::from(TEXT.as_bytes()),
                    Box::new(*b"text"),
                    Arc::<[u8]>::from(TEXT.as_bytes()),
                    Box::new(TEXT) as Box<dyn IoBuf>,
                    aligned(),
                ];
                #[cfg(feature = "bytes")]
                write_in_tasks![
                    engine,
                    path,
                    bytes::Bytes::from_static(TEXT.as_bytes()),
                    bytes::BytesMut::from(TEXT),
                ];
            });
        },
    );
}
