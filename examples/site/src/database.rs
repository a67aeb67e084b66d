//! Users, sessions and uploads, in SQLite or PostgreSQL. The statements are the same for both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, Error, query, query_as, query_scalar};

/// The number of connections. SQLite has one writer at a time.
const CONNECTIONS_MAX: u32 = 8;
/// The time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The lifetime of a session.
pub(crate) const SESSION: Duration = Duration::from_secs(7 * 24 * 3600);

const SCHEMA: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS users (name TEXT PRIMARY KEY, password TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sessions (
        token TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES users (name), expires BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS uploads (
        file TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES users (name),
        title TEXT NOT NULL, bytes BIGINT NOT NULL, created BIGINT NOT NULL)",
];

pub(crate) struct Database(AnyPool);

/// An uploaded file.
pub(crate) struct Upload {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) bytes: i64,
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs() as i64
}

impl Database {
    /// Connects, and creates missing tables.
    pub(crate) async fn open(url: &str) -> Result<Database, Error> {
        sqlx::any::install_default_drivers();
        let options = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(CONNECT_TIMEOUT);
        let pool = options.connect(url).await?;
        if url.starts_with("sqlite:") {
            // Readers do not wait for the writer.
            query("PRAGMA journal_mode = WAL").execute(&pool).await?;
        }
        for table in SCHEMA {
            query(table).execute(&pool).await?;
        }
        Ok(Database(pool))
    }

    pub(crate) async fn close(&self) {
        self.0.close().await;
    }

    /// Adds a user. Returns `false` if the name is taken.
    pub(crate) async fn add_user(&self, name: &str, password: &str) -> Result<bool, Error> {
        let query = query("INSERT INTO users (name, password) VALUES ($1, $2)");
        match query.bind(name).bind(password).execute(&self.0).await {
            Err(Error::Database(error)) if error.is_unique_violation() => Ok(false),
            added => added.map(|_| true),
        }
    }

    /// Returns the hash of a user's password.
    pub(crate) async fn password(&self, name: &str) -> Result<Option<String>, Error> {
        let query = query_scalar("SELECT password FROM users WHERE name = $1");
        query.bind(name).fetch_optional(&self.0).await
    }

    /// Adds a session, and removes those that have expired.
    pub(crate) async fn add_session(&self, token: &str, name: &str) -> Result<(), Error> {
        let expired = query("DELETE FROM sessions WHERE expires <= $1");
        expired.bind(now()).execute(&self.0).await?;
        let query = query("INSERT INTO sessions (token, name, expires) VALUES ($1, $2, $3)");
        let query = query.bind(token).bind(name);
        let query = query.bind(now() + SESSION.as_secs() as i64);
        query.execute(&self.0).await.map(drop)
    }

    pub(crate) async fn remove_session(&self, token: &str) -> Result<(), Error> {
        let query = query("DELETE FROM sessions WHERE token = $1").bind(token);
        query.execute(&self.0).await.map(drop)
    }

    /// Returns the name of a session's user.
    pub(crate) async fn user_of(&self, token: &str) -> Result<Option<String>, Error> {
        let query = query_scalar("SELECT name FROM sessions WHERE token = $1 AND expires > $2");
        query.bind(token).bind(now()).fetch_optional(&self.0).await
    }

    pub(crate) async fn add_upload(&self, name: &str, upload: &Upload) -> Result<(), Error> {
        let query = query("INSERT INTO uploads VALUES ($1, $2, $3, $4, $5)");
        let query = query.bind(&upload.file).bind(name).bind(&upload.title);
        let query = query.bind(upload.bytes).bind(now());
        query.execute(&self.0).await.map(drop)
    }

    /// Returns the latest uploads of a user.
    pub(crate) async fn uploads(&self, name: &str) -> Result<Vec<Upload>, Error> {
        let query = query_as(
            "SELECT file, title, bytes FROM uploads WHERE name = $1 ORDER BY created DESC LIMIT 100",
        );
        let rows: Vec<(String, String, i64)> = query.bind(name).fetch_all(&self.0).await?;
        let upload = |(file, title, bytes)| Upload { file, title, bytes };
        Ok(rows.into_iter().map(upload).collect())
    }
}
