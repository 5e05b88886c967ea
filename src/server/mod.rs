//! The safe layer over the server's module API, and the only place with `unsafe`.
//!
//! A command comes in through [`entry`], opens keys with [`key`], tells replicas and the AOF with
//! [`context::Ctx::replicate`], and is answered by [`reply`]. What happens outside of commands
//! (a key that goes, a client that leaves, a deadline) is collected by [`events`] and [`timer`].

// Calls a function of the module API. Its pointer is checked when the module is loaded, or by the
// caller where older servers lack it.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(function) => function($($arg),*),
            None => panic!(concat!("the server lacks ", stringify!($name))),
        }
    };
}

pub mod alloc;
mod apply;
pub mod block;
mod call;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod config;
pub mod context;
mod deleters;
pub mod entry;
pub mod events;
mod import;
pub mod info;
pub mod io;
pub mod key;
pub mod lent;
pub mod lines;
pub mod load;
pub mod log;
pub mod main_thread;
pub mod memory;
pub mod native;
mod queued;
pub mod random;
pub mod replicas;
pub mod reply;
pub mod slice;
pub mod slots;
pub mod stream;
pub mod timer;
pub mod watch;
