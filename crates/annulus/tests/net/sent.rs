//! Waiting for sends that nobody has waited for.

use std::net::Shutdown;

use annulus::runtime::spawn;

use crate::bytes::{bytes, receive_all};
use crate::echo::connection;
use crate::grounds::for_each_way;

/// More than both socket buffers have room for.
const BYTES: usize = 16 << 20;

#[test]
fn who_waits_for_what_was_begun_may_end_the_direction_then() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        server.sent().await.unwrap();
        let serving = spawn(async move {
            server.try_send(bytes(1, 0, BYTES)).unwrap();
            server.try_send(vec![1]).expect_err("one is under way");
            server.sent().await.unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(receive_all(&client, 1).await, BYTES as u64);
        serving.await.unwrap();
    });
}

#[test]
fn a_send_that_nobody_waited_for_and_failed_is_told_to_who_waits() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        server.try_send(bytes(1, 0, BYTES)).unwrap();
        drop(client);
        server.sent().await.unwrap_err();
        server.send_all("more").await.unwrap_err();
    });
}
