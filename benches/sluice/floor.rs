//! A module in C whose commands make only the calls that no module can do without: their cost is the server's part of a command
//! with such arguments, such changes and such a reply.

use crate::support::{Raw, Server, compile};

const SOURCE: &str = include_str!("floor.c");

/// Loads the module beside Sluice.
pub(crate) fn load(server: &Server, client: &mut Raw) {
    let module = server.dir().join("floor.so");
    compile(SOURCE, &module);
    let module = module.to_str().expect("a temporary path is text");
    assert_eq!(client.call(["MODULE", "LOAD", module]), "OK");
}
