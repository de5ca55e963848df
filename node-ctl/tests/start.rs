//! The process from outside: arguments, a bad setting, an API server that is away, the wish to stop.

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::process::{Child, Command, Output, Stdio};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(20);

    fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-ctl"));
        command
            .env_clear()
            .args(["--config-dir", "/nonexistent"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(command: &mut Command) -> Output {
        command.output().unwrap()
    }

    /// A port that was free a moment ago.
    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// What `path` answers, or why it does not.
    fn get(address: SocketAddr, path: &str) -> Result<String, std::io::Error> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn await_answer(address: SocketAddr, path: &str, wanted: &str) {
        let deadline = Instant::now() + LIMIT;
        let mut last = String::new();
        while Instant::now() < deadline {
            last = get(address, path).unwrap_or_else(|error| error.to_string());
            if last.contains(wanted) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{path} never answered {wanted:?}; last: {last}");
    }

    fn await_end(child: &mut Child) -> std::process::ExitStatus {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        panic!("still running {LIMIT:?} after it was asked to stop");
    }

    #[test]
    fn the_version_names_the_binary() {
        let output = run(command().arg("--version"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("node-ctl {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn a_bad_setting_stops_the_process_with_one_line() {
        let output = run(command().env("ACL_TICK", "soon"));
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "ERROR");
        let error = line["fields"]["error"].as_str().unwrap();
        assert!(
            error.starts_with("setting aclTick: \"soon\" (from environment variable ACL_TICK)"),
            "{error}"
        );
    }

    #[test]
    fn without_an_api_server_the_process_lives_is_not_ready_and_stops_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "away",
            "contexts": [{"name": "away", "context": {"cluster": "away", "user": "away"}}],
            "clusters": [{"name": "away", "cluster": {"server": format!("http://127.0.0.1:{}", free_port())}}],
            "users": [{"name": "away", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut child = command()
            .env("KUBECONFIG", &kubeconfig)
            .env("LISTEN_ADDRESS", address.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        await_answer(address, "/livez", "200 OK");
        await_answer(address, "/readyz", "waiting for: CRDs");
        await_answer(address, "/metrics", "valkey_operator_api_requests_total");
        let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        assert_eq!(await_end(&mut child).code(), Some(0));
    }
}
