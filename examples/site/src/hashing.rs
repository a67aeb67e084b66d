//! Password hashes: argon2id, with the default parameters.

use std::sync::{Arc, Mutex, PoisonError};

use argon2::password_hash::{Error, Ident, Output, ParamsString, PasswordHash, Salt, SaltString};
use argon2::{ARGON2ID_IDENT, Algorithm, Argon2, Block, Params, Version};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::pages::Failure;

/// The number of passwords that are hashed at a time.
const HASHED_MAX: usize = 2;

/// The memory of the hashes, 19 MiB each. It is kept, because an allocator would keep it once for each blocking thread.
pub(crate) struct Hashing {
    permits: Arc<Semaphore>,
    memory: Arc<Mutex<Vec<Vec<Block>>>>,
}

impl Hashing {
    pub(crate) fn new() -> Hashing {
        Hashing {
            permits: Arc::new(Semaphore::new(HASHED_MAX)),
            memory: Arc::default(),
        }
    }

    /// Returns the text to store for a password.
    pub(crate) async fn hash(&self, password: String, salt: String) -> Result<String, Failure> {
        Ok(self
            .run(move |memory| hash(&password, &salt, memory))
            .await??)
    }

    /// Checks a password against the stored text. It takes as long if there is none.
    pub(crate) async fn is_right(
        &self,
        password: String,
        expected: Option<String>,
    ) -> Result<bool, Failure> {
        self.run(move |memory| is_right(&password, expected.as_deref(), memory))
            .await
    }

    /// Runs `work` on a blocking thread. It takes too long for a core.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Vec<Block>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        // Held by the work, which goes on if the client leaves.
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let memory = Arc::clone(&self.memory);
        let lock = move || memory.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let kept = Arc::clone(&self.memory);
        let working = spawn_blocking(move || {
            let mut blocks = lock().unwrap_or_default();
            let result = work(&mut blocks);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(blocks);
            drop((kept, permit));
            result
        });
        Ok(working.await?)
    }
}

fn hash(password: &str, salt: &str, memory: &mut Vec<Block>) -> Result<String, Error> {
    let salt = SaltString::from_b64(salt)?;
    let params = Params::default();
    let hash = PasswordHash {
        algorithm: ARGON2ID_IDENT,
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(&params)?,
        hash: Some(output(password, salt.as_salt(), params, memory)?),
        salt: Some(salt.as_salt()),
    };
    Ok(hash.to_string())
}

fn output(
    password: &str,
    salt: Salt<'_>,
    params: Params,
    memory: &mut Vec<Block>,
) -> Result<Output, Error> {
    let mut buffer = [0; Salt::MAX_LENGTH];
    let salt = salt.decode_b64(&mut buffer)?;
    memory.resize(memory.len().max(params.block_count()), Block::default());
    let length = params.output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    Output::init_with(length, |out| {
        Ok(argon2.hash_password_into_with_memory(
            password.as_bytes(),
            salt,
            out,
            &mut memory[..],
        )?)
    })
}

fn is_right(password: &str, expected: Option<&str>, memory: &mut Vec<Block>) -> bool {
    let nothing = SaltString::from_b64("0000000000000000");
    let stored = expected.and_then(|text| PasswordHash::new(text).ok());
    let is_usable = |hash: &PasswordHash<'_>| hash.algorithm == Ident::new_unwrap("argon2id");
    let computed = match &stored {
        Some(hash) if is_usable(hash) => Params::try_from(hash).and_then(|params| {
            let salt = hash.salt.ok_or(Error::PhcStringField)?;
            output(password, salt, params, memory)
        }),
        _ => nothing.and_then(|salt| output(password, salt.as_salt(), Params::default(), memory)),
    };
    // The comparison takes constant time.
    stored.is_some_and(|hash| hash.hash.is_some() && hash.hash == computed.ok())
}

#[cfg(test)]
mod tests {
    use argon2::{PasswordHasher, PasswordVerifier};

    use super::*;

    #[test]
    fn hashes_are_those_of_argon2_in_reused_memory() {
        let memory = &mut Vec::new();
        for salt in ["0123456789abcdef", "fedcba9876543210"] {
            let ours = hash("a password", salt, memory).unwrap();
            let salt = SaltString::from_b64(salt).unwrap();
            let theirs = Argon2::default()
                .hash_password(b"a password", &salt)
                .unwrap();
            assert_eq!(ours, theirs.to_string());
            assert!(is_right("a password", Some(&ours), memory));
            assert!(!is_right("another", Some(&ours), memory));
            let parsed = PasswordHash::new(&ours).unwrap();
            Argon2::default()
                .verify_password(b"a password", &parsed)
                .unwrap();
        }
        for wrong in [
            None,
            Some(""),
            Some("$argon2id$v=19$m=19456,t=2,p=1"),
            Some("$argon2d$v=19$m=8,t=1,p=1$0123456789abcdef$0123456789abcdef"),
        ] {
            assert!(!is_right("a password", wrong, memory), "{wrong:?}");
        }
    }
}
