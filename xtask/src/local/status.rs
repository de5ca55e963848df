//! `cargo xtask status`: what runs, what does not and should, what is left and should not be.

use std::process::ExitCode;

use anyhow::Result;

use crate::command;
use crate::local::node::Node;
use crate::local::options::Options;
use crate::local::process::Process;
use crate::local::{check_owner, control_plane, kubectl, leftovers, packages, require_root};
use crate::paths::Paths;
use crate::ui;

/// Prints it. Fails when a part of a cluster that should be up is missing, or when a cluster that should not
/// be up has left anything on the machine.
pub(crate) fn show(paths: &Paths) -> Result<ExitCode> {
    require_root()?;
    check_owner(&paths.state())?;
    match Options::saved(paths)? {
        Some(options) => show_running(paths, options),
        None => show_leftovers(paths),
    }
}

fn show_leftovers(paths: &Paths) -> Result<ExitCode> {
    let left = leftovers::find(paths)?;
    if left.is_empty() {
        ui::line(
            "down; nothing is left: no process, mount, cgroup, interface, nftables table, file or changed setting",
        );
        return Ok(ExitCode::SUCCESS);
    }
    ui::line(&format!("down, but {} things are left (`cargo xtask down` removes them):", left.len()));
    for thing in left {
        ui::line(&format!("  {thing}"));
    }
    Ok(ExitCode::FAILURE)
}

fn show_running(paths: &Paths, options: Options) -> Result<ExitCode> {
    let nodes: Vec<_> = (1..=options.nodes).map(|number| Node::new(paths, number)).collect();
    let mut parts: Vec<Process> =
        control_plane::PROCESSES.iter().rev().map(|name| Process::new(paths, *name)).collect();
    parts.extend(nodes.iter().flat_map(|node| [node.containerd().clone(), node.kubelet().clone()]));
    let mut healthy = true;
    ui::line(&format!("{:<26}{:<9}{:<8}log", "part", "state", "pid"));
    for part in parts {
        let running = part.running();
        healthy &= running.is_some();
        let (state, pid) =
            running.map_or(("MISSING", String::new()), |record| ("runs", record.pid.to_string()));
        ui::line(&format!("{:<26}{state:<9}{pid:<8}{}", part.name(), part.log().display()));
    }
    let tools = packages::ensure_unpacked(paths)?;
    let columns = "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type==\"Ready\")].status,\
        ZONE:.metadata.labels.topology\\.kubernetes\\.io/zone,ADDRESS:.status.addresses[0].address";
    match command::output(kubectl(paths, &tools).args(["get", "nodes", "-o", columns])) {
        Ok(table) => {
            ui::line(&format!("\n{table}"));
            healthy &= ready_nodes(&table) == usize::from(options.nodes);
        }
        Err(error) => {
            ui::line(&format!("\nthe API does not answer: {error:#}"));
            healthy = false;
        }
    }
    ui::line(&format!("\nexport KUBECONFIG={}", paths.admin_kubeconfig().display()));
    if healthy {
        return Ok(ExitCode::SUCCESS);
    }
    ui::line("not healthy: `cargo xtask up` starts what is missing");
    Ok(ExitCode::FAILURE)
}

/// Nodes of a table (name, ready, …) that are ready.
fn ready_nodes(table: &str) -> usize {
    table.lines().skip(1).filter(|line| line.split_whitespace().nth(1) == Some("True")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ready_nodes_are_counted() {
        let table = "NAME READY ZONE ADDRESS\nnode-1 True zone-a 1.2.3.4\nnode-2 Unknown zone-b 1.2.3.5\n";
        assert_eq!(ready_nodes(table), 1);
    }
}
