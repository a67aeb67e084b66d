//! Several servers that communicate, and TLS.

use super::{moment, redis, redis_cli};
use crate::certificate::certificate;
use crate::resp::Reply;
use crate::server::{free_port, until};

/// The source is a blocking client of the target, whose calls have timeouts.
#[test]
fn keys_migrate_from_one_server_to_another() {
    let Some(from) = redis("") else { return };
    let Some(to) = redis("") else { return };
    let (mut at_source, mut at_target) = (from.client(), to.client());
    let big = vec![b'x'; 3_000_000];
    assert_eq!(at_source.call_words(&[b"SET", b"big", &big]), Reply::ok());
    for n in 0..50 {
        assert_eq!(at_source.call(&format!("SET key{n} {n}")), Reply::ok());
    }
    let port = to.port();
    let migrate = format!("MIGRATE 127.0.0.1 {port} big 0 10000");
    assert_eq!(at_source.call(&migrate), Reply::ok());
    assert_eq!(at_source.call("EXISTS big"), Reply::Number(0));
    assert!(at_target.call("GET big") == Reply::Bytes(big));

    let keys: String = (0..50).map(|n| format!(" key{n}")).collect();
    let words = format!("MIGRATE 127.0.0.1 {port}  0 10000 KEYS{keys}");
    assert_eq!(at_source.call(&words), Reply::ok());
    assert_eq!(at_source.call("DBSIZE"), Reply::Number(0));
    assert_eq!(at_target.call("DBSIZE"), Reply::Number(51));
    assert_eq!(at_target.call("GET key49"), Reply::bytes("49"));
    from.finish_served();
    to.finish_served();
}

#[test]
fn three_nodes_make_a_cluster_and_a_slot_moves() {
    let nodes: Vec<_> = (0..3)
        .filter_map(|_| redis("--cluster-enabled yes --cluster-node-timeout 5000"))
        .collect();
    let [one, two, three] = &nodes[..] else {
        return;
    };
    let addresses = [one, two, three].map(|node| format!("127.0.0.1:{}", node.port()));
    let mut create = vec!["--cluster-yes", "--cluster", "create"];
    create.extend(addresses.iter().map(String::as_str));
    let output = redis_cli(&create);
    assert!(output.contains("[OK] All 16384 slots covered."), "{output}");
    for node in &nodes {
        let mut client = node.client();
        until("the node knows the cluster", || {
            client
                .call("CLUSTER INFO")
                .text()
                .contains("cluster_state:ok")
                .then_some(())
        });
    }
    let port = one.port().to_string();
    for n in 0..30 {
        let output = redis_cli(&["-c", "-p", &port, "SET", &format!("key{n}"), &n.to_string()]);
        assert_eq!(output, "OK\n");
    }
    let keys: i64 = nodes
        .iter()
        .map(|node| node.client().call("DBSIZE").number())
        .sum();
    assert_eq!(keys, 30);
    let mut from = one.client();
    let slots = from.call("CLUSTER MYID").text();
    let to = two.client().call("CLUSTER MYID").text();
    let reshard = [
        "--cluster-yes",
        "--cluster",
        "reshard",
        &addresses[0],
        "--cluster-from",
        &slots,
    ];
    let how_many = ["--cluster-to", &to, "--cluster-slots", "300"];
    redis_cli(&[&reshard[..], &how_many[..]].concat());
    for n in 0..30 {
        let output = redis_cli(&["-c", "-p", &port, "GET", &format!("key{n}")]);
        assert_eq!(output, format!("{n}\n"));
    }
    for node in nodes {
        node.finish_served();
    }
}

#[test]
fn clients_over_tls_are_served() {
    let folder = tempfile::TempDir::new().unwrap();
    if certificate(folder.path()).is_none() {
        return;
    }
    let port = free_port().to_string();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (key, cert) = (file("key.pem"), file("cert.pem"));
    let options = format!(
        "--tls-port {port} --tls-key-file {key} --tls-cert-file {cert} --tls-ca-cert-file {cert} --tls-auth-clients no"
    );
    let Some(server) = redis(&options) else {
        return;
    };
    let value = "v".repeat(300_000);
    let cli = ["-p", &port, "--tls", "--cacert", &cert];
    let with = |words: &[&str]| redis_cli(&[&cli[..], words].concat());
    assert_eq!(with(&["PING"]), "PONG\n");
    let mut plain = server.client();
    assert_eq!(
        plain.call_words(&[b"SET", b"big", value.as_bytes()]),
        Reply::ok()
    );
    assert_eq!(with(&["GET", "big"]), format!("{value}\n"));
    assert_eq!(
        with(&["-r", "100", "INCR", "n"]).lines().last(),
        Some("100")
    );
    moment();
    assert_eq!(plain.call("GET n"), Reply::bytes("100"));
    server.finish_served();
}
