//! Deadlines: what the families have to do by themselves at a certain time.

use crate::server::base::clock::Now;
use crate::server::handles::context::Ctx;
use crate::server::services::cluster;
use crate::server::services::commit;
use crate::server::services::timer::arm;

/// Called when the timer fires.
pub(in crate::server) fn on_due(ctx: Ctx<'_>) {
    cluster::go_on(ctx);
    commit::emit_events(ctx);
    ask_families(ctx);
}

/// Lets every family do what is due, and sets the timer for what is next.
pub(in crate::server) fn ask_families(ctx: Ctx<'_>) {
    if ctx.is_replica() || ctx.is_loading() {
        return; // the cron event asks again
    }
    let _nodes = cluster::same_nodes();
    let now = Now::read();
    let next = crate::enabled_families().filter_map(|family| {
        let next = (family.due)(ctx, now);
        commit::emit_events(ctx);
        next
    });
    if let Some(at) = next.min() {
        arm(ctx, at);
    }
}
