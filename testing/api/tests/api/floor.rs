//! The oldest Kubernetes that we support: its own code judges the CRDs and every case. See `floor/main.go`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use test_api::{Verdict, cases};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Long enough to fetch and compile the validation code where it never was before.
const LIMIT: Duration = Duration::from_mins(15);

#[tokio::test]
async fn kubernetes_1_27_takes_the_crds_and_agrees_on_every_case() {
    let judged: Vec<Value> = cases::all()
        .into_iter()
        .map(|case| json!({ "what": case.what, "object": case.object, "accept": matches!(case.verdict, Verdict::Accept) }))
        .collect();
    let input = json!({ "crds": shared::api::crds(), "cases": judged }).to_string();
    let mut go = Command::new("go")
        .args(["run", "."])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("floor"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this test needs the Go toolchain, as does `cargo xtask up`");
    let mut stdin = go.stdin.take().unwrap();
    let (written, output) = tokio::time::timeout(LIMIT, async {
        let write = async {
            let written = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
            written
        };
        tokio::join!(write, go.wait_with_output())
    })
    .await
    .expect("Go did not finish in time");
    let output = output.unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    written.unwrap();
    assert!(said.contains(", 0 disagreements"), "{said}");
}
