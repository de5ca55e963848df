//! The container reconcile-loops: keeps the ACL rules and certificates of running nodes current.

use std::process::ExitCode;

use shared::settings::Binary;

fn main() -> ExitCode {
    shared::run::main(Binary::ReconcileLoops, reconcile_loops::run)
}
