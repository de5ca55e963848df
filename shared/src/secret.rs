//! Secret values: a wrapper that never shows its content, and password generation.
//!
//! Owns redaction and the use of the system's random source. Knows nothing of where a secret is stored or sent.

use std::fmt;

/// Bytes of entropy in a generated password; rendered as twice as many hex digits.
const PASSWORD_BYTES: usize = 64;

/// A value that must not appear in a log, event, status or error.
///
/// `Debug` and `Display` print a fixed placeholder, there is no `Serialize`, and the only way to the content is
/// [`Redacted::expose`], so that a reviewer can find every use.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a secret.
    pub const fn new(secret: T) -> Self {
        Self(secret)
    }

    /// The secret itself. Every call is a place where it may leak: keep it as late and as local as possible.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// Unwraps the secret.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> From<T> for Redacted<T> {
    fn from(secret: T) -> Self {
        Self(secret)
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The system's random source failed.
#[derive(Debug, thiserror::Error)]
#[error("the system's random source failed")]
pub struct RandomError(#[source] getrandom::Error);

/// A new password: 128 lowercase hex characters (512 bits) from the system's CSPRNG.
///
/// # Errors
/// The system gave no random bytes. There is no fallback: a guessable password is worse than none.
pub fn generate_password() -> Result<Redacted<String>, RandomError> {
    let mut bytes = [0_u8; PASSWORD_BYTES];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    Ok(Redacted(hex::encode(bytes)))
}

/// `digits` lowercase hex digits (at most 64) from the system's CSPRNG, for name suffixes.
///
/// # Errors
/// The system gave no random bytes.
pub fn random_hex(digits: usize) -> Result<String, RandomError> {
    let mut bytes = vec![0_u8; digits.div_ceil(2)];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    let mut text = hex::encode(bytes);
    text.truncate(digits);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_text_has_as_many_digits_as_asked_for() {
        for digits in [0, 1, 5, 64, 128, 129] {
            assert_eq!(random_hex(digits).unwrap().len(), digits);
        }
    }

    #[test]
    fn neither_debug_nor_display_shows_the_content() {
        #[derive(Debug)]
        struct Holder {
            password: Redacted<String>,
        }
        let holder = Holder { password: Redacted::new("hunter2".to_owned()) };
        let shown = format!("{holder:?} {holder:#?} {} {:?}", holder.password, Some(&holder.password));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(holder.password.expose(), "hunter2");
    }

    #[test]
    fn a_password_is_128_lowercase_hex_characters_and_never_the_same_twice() {
        let one = generate_password().unwrap().into_inner();
        let two = generate_password().unwrap().into_inner();
        assert_eq!(one.len(), 128);
        assert!(one.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{one}");
        assert_ne!(one, two);
    }

    #[test]
    fn a_suffix_has_exactly_the_digits_asked_for() {
        assert_eq!(random_hex(5).unwrap().len(), 5);
    }
}
