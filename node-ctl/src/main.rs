//! The process node-ctl.

use std::process::ExitCode;

use shared::run;
use shared::settings::Binary;

fn main() -> ExitCode {
    run::main(Binary::NodeCtl, node_ctl::controller::run)
}
