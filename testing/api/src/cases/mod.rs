//! Every admission rule that a single object can break, once kept and once broken. Rules on changes are in
//! `tests/updates.rs`. A case is a line, so that the list reads as a table; hence no rustfmt on it.

mod acl;
mod cluster;
mod config;
mod menu;
mod node;

use crate::Case;

/// All cases, kind by kind.
pub fn all() -> Vec<Case> {
    [menu::image(), menu::role(), config::config(), cluster::cluster(), acl::bindings(), node::node()]
        .concat()
}

/// What the server says of a string that misses its pattern.
const PATTERN: &str = "should match";
