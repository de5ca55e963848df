//! How a refused users.acl is recorded on its ConfigMap (annotation [`crate::names::ANNOTATION_ACL_REFUSED`]).
//!
//! reconcile-loops writes it when a running node refuses the published revision; cluster-ctl then publishes the last
//! accepted content again, and does not publish the refused revision until its inputs change.

/// Longest record, in bytes.
const MAX_BYTES: usize = 1024;

/// The record of `revision`, refused by a server with these words.
pub fn record(revision: &str, words: &str) -> String {
    let mut text = format!("{revision}: {words}");
    text.truncate(text.floor_char_boundary(MAX_BYTES));
    text
}

/// The revision that a record names.
pub fn revision(record: &str) -> Option<&str> {
    record.split_once(": ").map(|(revision, _)| revision)
}

/// The server's words in a record.
pub fn words(record: &str) -> Option<&str> {
    record.split_once(": ").map(|(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_is_cut_between_characters() {
        let text = record("abc", "ERR line 3: +x");
        assert_eq!((revision(&text), words(&text)), (Some("abc"), Some("ERR line 3: +x")));
        let long = record("abc", &"ä".repeat(2000));
        assert!(long.len() <= MAX_BYTES && revision(&long) == Some("abc"));
        assert_eq!(revision("nonsense"), None);
    }
}
