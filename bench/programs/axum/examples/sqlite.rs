//! A route that reads a row of SQLite through sqlx and responds with JSON, on one core of Annulus or on Tokio:
//! `sqlite --runtime annulus-tokio|tokio --addr ADDRESS`. `bench/axum --only sqlite` compares them.

use std::net::SocketAddr;

use annulus::runtime::Runtime;
use annulus_hyper::axum::{serve_on_core, server};
use axum::extract::State;
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

type Error = Box<dyn std::error::Error + Send + Sync>;

const USERS: i64 = 1000;

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ["--runtime", runtime, "--addr", address] = words[..] else {
        return Err("usage: sqlite --runtime annulus-tokio|tokio --addr ADDRESS".into());
    };
    let address: SocketAddr = address.parse()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("users.db");
    match runtime {
        "annulus-tokio" => Runtime::builder().cores(1).with_tokio().run(move |_core| {
            let file = file.clone();
            async move {
                let router = router(&file).await.map_err(std::io::Error::other)?;
                let listener = annulus::net::TcpListener::bind(address)?;
                println!("listening on {}", listener.local_addr()?);
                serve_on_core(&server().with_header_read_timeout(None), listener, router).await
            }
        })?,
        "tokio" => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let router = router(&file).await?;
                let listener = tokio::net::TcpListener::bind(address).await?;
                println!("listening on {}", listener.local_addr()?);
                // As `annulus_hyper::serve` does.
                let listener = listener.tap_io(|stream| {
                    let _ = stream.set_nodelay(true);
                });
                Ok::<_, Error>(axum::serve(listener, router).await?)
            })?
        }
        _ => return Err(format!("--runtime {runtime}: use annulus-tokio or tokio").into()),
    }
    Ok(())
}

/// Creates the table, and returns the router that reads it.
async fn router(file: &std::path::Path) -> Result<Router, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .connect_with(options)
        .await?;
    let create =
        "create table users (id integer primary key, name text not null, mail text not null)";
    sqlx::query(create).execute(&pool).await?;
    let mut rows = pool.begin().await?;
    for id in 0..USERS {
        sqlx::query("insert into users values (?, ?, ?)")
            .bind(id)
            .bind(format!("user {id}"))
            .bind(format!("user{id}@example.org"))
            .execute(&mut *rows)
            .await?;
    }
    rows.commit().await?;
    Ok(Router::new().route("/user", get(user)).with_state(pool))
}

async fn user(State(pool): State<SqlitePool>) -> Json<Value> {
    let (id, name, mail): (i64, String, String) =
        sqlx::query_as("select id, name, mail from users where id = ?")
            .bind(USERS / 2)
            .fetch_one(&pool)
            .await
            .unwrap();
    Json(json!({ "id": id, "name": name, "mail": mail }))
}
