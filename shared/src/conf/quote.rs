//! Quoting for Valkey's configuration file.
//!
//! The file's parser trims a line, skips it when it starts with `#`, and splits it into arguments: blanks separate,
//! double quotes hold an argument together and know the escapes of C (Valkey 8.1 and 9.1 alike). A directive that
//! takes several arguments and finds exactly one splits that one again by the same rules; `CONFIG SET` never does, it
//! splits its value at single spaces. What is written here has the effect of `CONFIG SET` with the same value.

/// Directives whose value is several arguments (Valkey 8.1 to 9.1). `loadmodule` is none of the parser's own kind, but
/// takes arguments too. One that is missing here would still be split by the server, only with quotes interpreted.
const MULTI_ARGUMENT: [&str; 9] = [
    "bind",
    "client-output-buffer-limit",
    "latency-tracking-info-percentiles",
    "loadmodule",
    "oom-score-adj-values",
    "rdma-bind",
    "save",
    "shutdown-on-sigint",
    "shutdown-on-sigterm",
];

/// One `key value` line without its end, or nothing where `CONFIG SET` of the value would change nothing.
///
/// `value` must be free of control characters; the caller checks it.
pub(super) fn line(key: &str, value: &str) -> Option<String> {
    if !MULTI_ARGUMENT.contains(&key) {
        return Some(format!("{key} {}", quote(value)));
    }
    let arguments: Vec<&str> = value.split(' ').collect();
    match arguments.as_slice() {
        // No argument at all. Three of these directives take `""` for it; this one refuses to start with it.
        [""] if key == "client-output-buffer-limit" => None,
        [""] => Some(format!("{key} \"\"")),
        // The parser splits a single argument again: quote it for both passes.
        [single] if key != "loadmodule" => Some(format!("{key} {}", quote(&quote(single)))),
        many => {
            let quoted: Vec<String> = many.iter().map(|argument| quote(argument)).collect();
            Some(format!("{key} {}", quoted.join(" ")))
        }
    }
}

/// One argument: as it is when that is safe, else in double quotes.
fn quote(argument: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,*".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(plain) {
        return argument.to_owned();
    }
    let mut quoted = String::with_capacity(argument.len() + 2);
    quoted.push('"');
    for character in argument.chars() {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}
