//! The audit log of the local Kubernetes: each request that the operator made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::objects::text;
use crate::operator;

/// The log's file, `$VALKEY_OPERATOR_AUDIT_LOG`; set on the local Kubernetes only.
pub fn path() -> Option<PathBuf> {
    std::env::var_os("VALKEY_OPERATOR_AUDIT_LOG").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The log's file, for tests that cannot do without.
///
/// # Errors
///
/// This is not the local Kubernetes.
pub fn required() -> Result<PathBuf> {
    path().context(
        "VALKEY_OPERATOR_AUDIT_LOG is unset: this test needs the local Kubernetes; on another one leave it out with \
         `--skip local_`",
    )
}

/// A request of the operator.
#[derive(Debug, Clone)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `patch`, …
    pub verb: String,
    /// Resource and subresource: `pods/status`.
    pub resource: String,
    /// Empty for requests over all namespaces.
    pub namespace: String,
    /// Empty for requests on more than one object.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u64,
    /// The last word of the user agent: which program asked.
    pub program: String,
    /// `allow` or `forbid`.
    decision: String,
    /// Path and query.
    pub uri: String,
}

impl Request {
    /// Whether it was refused for want of a permission; a refusal of another kind (a namespace that is ending) is none.
    pub fn is_denied(&self) -> bool {
        self.decision == "forbid" || self.code == 401
    }

    /// Whether it could change something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether it is about `namespace`, or about no one namespace.
    pub fn concerns(&self, namespace: &str) -> bool {
        self.namespace.is_empty() || self.namespace == namespace
    }
}

/// The log from some point on.
pub struct AuditLog {
    reader: BufReader<File>,
}

impl AuditLog {
    /// The log from now on.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn from_here(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.seek(SeekFrom::End(0)).context("seek in the audit log")?;
        Ok(Self { reader: BufReader::new(file) })
    }

    /// What the operator asked since the last call. A log that was rotated meanwhile is read up to that point.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn read(&mut self) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        let mut line = String::new();
        while self.reader.read_line(&mut line).context("read the audit log")? > 0 {
            // A line that is being written: the rest is read the next time.
            if !line.ends_with('\n') {
                let back = i64::try_from(line.len()).context("length of a line")?;
                self.reader.seek_relative(-back).context("seek in the audit log")?;
                break;
            }
            let event: Value = serde_json::from_str(&line).context("a line of the audit log")?;
            // A watch is logged when it starts and again when it ends.
            let end_of_watch =
                text(&event, "/verb") == "watch" && text(&event, "/stage") == "ResponseComplete";
            if text(&event, "/user/username") == operator::USER && !end_of_watch {
                requests.push(request(&event));
            }
            line.clear();
        }
        Ok(requests)
    }
}

fn request(event: &Value) -> Request {
    let of = |pointer: &str| text(event, pointer).to_owned();
    let subresource = text(event, "/objectRef/subresource");
    let mut resource = of("/objectRef/resource");
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    Request {
        verb: of("/verb"),
        resource,
        namespace: of("/objectRef/namespace"),
        name: of("/objectRef/name"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or(0),
        program: text(event, "/userAgent").rsplit(' ').next().unwrap_or_default().to_owned(),
        decision: of("/annotations/authorization.k8s.io~1decision"),
        uri: of("/requestURI"),
    }
}

/// How many requests of each verb, resource and program, most first, in lines.
pub fn summary(requests: &[Request]) -> String {
    let mut counts: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for request in requests {
        *counts.entry((&request.program, &request.verb, &request.resource)).or_default() += 1;
    }
    let lines = counts
        .iter()
        .map(|((program, verb, resource), count)| format!("{count:>5} {program} {verb} {resource}"));
    lines.collect::<Vec<_>>().join("\n")
}
