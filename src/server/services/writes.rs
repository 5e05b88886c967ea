//! Whether the server accepts a command that writes. The server checks commands of clients. It does not check changes that the
//! module makes while a command runs that reads, so the module asks the server.

use crate::server::handles::call::CallReply;
use crate::server::handles::context::Ctx;
use crate::server::handles::string::ServerString;
use crate::server::services::commit;
use redis_module::raw;

/// The parts of errors by which the server refuses a write, and not a command of this name.
const REFUSALS: [&str; 6] = [
    "NOREPLICAS",
    "MISCONF",
    "READONLY",
    "MASTERDOWN",
    "cluster is down",
    "non local key",
];

/// Whether the server would accept a command that writes this key, which exists. It would not, for example, if it has too few
/// replicas, if it cannot save its dataset, or if its cluster is down and serves reads only.
pub fn are_accepted(ctx: Ctx<'_>, name: &ServerString<'_>) -> bool {
    // SAFETY: the pointer was set when the module was initialized and never changes.
    let function = unsafe { raw::RedisModule_CommandFilterGetClientId };
    let is_since_7_2 = function.is_some();
    if is_since_7_2 {
        // "S" lets the server check all this, as for a script, and with "D" it does not run the command.
        // SAFETY: "sc" are a key's name and a NUL-terminated string, which live through the call.
        let reply = unsafe {
            CallReply(api!(RedisModule_Call(
                ctx.raw(),
                commit::APPLY.as_ptr(),
                c"DESsc".as_ptr(),
                name.raw(),
                c"".as_ptr()
            )))
        };
        return !is_refused(&reply);
    }
    // Redis 7.0 runs the command, which changes nothing: the key does not expire earlier than at this time.
    // SAFETY: "scc" are a key's name and two NUL-terminated strings, which live through the call.
    let reply = unsafe {
        CallReply(api!(RedisModule_Call(
            ctx.raw(),
            commit::PEXPIREAT.as_ptr(),
            c"ESscc".as_ptr(),
            name.raw(),
            c"1".as_ptr(),
            c"GT".as_ptr()
        )))
    };
    !is_refused(&reply)
}

fn is_refused(reply: &CallReply) -> bool {
    let error = reply.part().error();
    error.is_some_and(|error| REFUSALS.iter().any(|part| error.contains(part)))
}
