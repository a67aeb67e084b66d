//! Values that are bound to their core, and their handles on other threads.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};

use annulus::net::TcpStream;
use annulus::runtime::{self, CoreBound};

use crate::across::beside;
use crate::ways::{each_way, listener};

/// Records the thread that drops it.
struct DropRecorder(Arc<Mutex<Vec<ThreadId>>>);

impl Drop for DropRecorder {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(thread::current().id());
    }
}

#[test]
fn a_bound_value_is_used_and_dropped_on_its_core_wherever_its_handle_goes() {
    each_way(|builder| {
        let drops = Arc::new(Mutex::new(Vec::new()));
        let core = beside(builder.cores(2), |handle| {
            let recorder = DropRecorder(Arc::clone(&drops));
            let bind = || async move { CoreBound::new(Rc::new(recorder)).unwrap() };
            let bound = pollster::block_on(handle.spawn_on(1, bind)).unwrap();
            let error = bound.get().err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Other);
            assert!(error.to_string().contains("core 1 "), "{error}");
            let here = move || async move { (thread::current().id(), bound.get().is_ok(), bound) };
            // The other core counts as a foreign thread.
            let bound = pollster::block_on(handle.spawn_on(0, here)).unwrap();
            let (_, is_there, bound) = bound;
            assert!(!is_there);
            let here = move || async move { (thread::current().id(), bound.get().is_ok(), bound) };
            let (core, is_there, bound) = pollster::block_on(handle.spawn_on(1, here)).unwrap();
            assert!(is_there);
            assert!(drops.lock().unwrap().is_empty());
            drop(bound);
            // A task that is sent after the drop runs after it.
            pollster::block_on(handle.spawn_on(1, || async {})).unwrap();
            assert_eq!(*drops.lock().unwrap(), [core]);
            core
        });
        assert_eq!(*drops.lock().unwrap(), [core], "once");
    });
}

#[test]
fn a_core_that_ends_drops_what_other_threads_still_hold() {
    each_way(|builder| {
        let drops = Arc::new(Mutex::new(Vec::new()));
        let (bound, core) = beside(builder, |handle| {
            let recorder = DropRecorder(Arc::clone(&drops));
            let bind = || async move {
                let bound = CoreBound::new(Rc::new(recorder)).unwrap();
                (bound, thread::current().id())
            };
            pollster::block_on(handle.spawn_on(0, bind)).unwrap()
        });
        assert_eq!(*drops.lock().unwrap(), [core]);
        assert_eq!(bound.get().err().unwrap().kind(), ErrorKind::NotConnected);
        drop(bound);
        assert_eq!(drops.lock().unwrap().len(), 1);
        assert!(CoreBound::new(Rc::new(0)).is_err(), "no core is here");
    });
}

#[test]
fn a_reused_slot_does_not_belong_to_an_old_handle() {
    each_way(|builder| {
        let run = builder.cores(1).run(|_| async {
            let (first, second) = (CoreBound::new(Rc::new(1))?, CoreBound::new(Rc::new(2))?);
            drop(first);
            let third = CoreBound::new(Rc::new(3))?;
            assert_eq!((*second.get()?, *third.get()?), (2, 3));
            Ok(())
        });
        run.unwrap();
    });
}

#[test]
fn a_stream_whose_handle_another_thread_drops_is_closed_by_its_core() {
    each_way(|builder| {
        let run = builder.cores(1).run(|_| async {
            let (listener, address) = listener();
            let (tell, receiver) = mpsc::channel();
            let near = TcpStream::connect(address).await?;
            let far = listener.accept().await?;
            // A receive is in flight when it is closed.
            let bound = CoreBound::new(Rc::new(near))?;
            let shared = bound.get()?;
            let receiving = runtime::spawn(async move { shared.recv(vec![0; 10]).await.is_ok() });
            runtime::yield_now().await;
            receiving.abort();
            drop(receiving.await);
            let elsewhere = thread::spawn(move || {
                receiver.recv().unwrap();
                drop(bound);
            });
            tell.send(()).unwrap();
            assert_eq!(far.recv(vec![0; 10]).await?.0, 0);
            elsewhere.join().unwrap();
            io::Result::Ok(())
        });
        run.unwrap();
    });
}
