//! Hash slots of a cluster: which node owns a key, the clients that wait while slots move, and atomic slot migration.

mod migration;
mod ownership;
mod waiting;

pub use migration::{SlotParcel, send_to_importers};
pub(in crate::server) use migration::{module_options, role_changes, subscribe};
pub use ownership::{
    act_on, is_known_as_own, notice_changes, notice_changes_now, notice_possible_moves,
    owned_slots, owns, same_nodes, slot,
};
pub(in crate::server) use ownership::{
    is_moving, is_my_id, is_renamed, note_possible_move, share_slot,
};
pub(in crate::server) use waiting::{
    check_waiting_clients_if_changed, check_waiting_clients_regularly, go_on,
};
pub use waiting::{demotion_error, serves};
