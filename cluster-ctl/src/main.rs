//! The container cluster-ctl: owns the whole life of a Valkey cluster.

use std::process::ExitCode;

use shared::settings::Binary;

fn main() -> ExitCode {
    shared::run::main(Binary::ClusterCtl, cluster_ctl::controller::run)
}
