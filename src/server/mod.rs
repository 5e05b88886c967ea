//! The safe layer over the server's module API, and the only place with `unsafe`.
//!
//! The layers, each of which uses only those before it: [`base`], [`handles`], [`services`], [`hooks`], then [`entry`], where
//! commands enter the module, and [`load`], where the server loads it.

// Calls a function of the module API. `load` checks its pointer before anything else, or the caller does where older servers lack
// it. So release builds do not check it again: a command calls 10 to 40 functions, and each check takes two instructions.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(function) => function($($arg),*),
            None => $crate::server::base::api::missing(stringify!($name)),
        }
    };
}

mod apply;
pub mod base;
pub mod entry;
pub mod handles;
pub mod hooks;
pub mod load;
pub mod services;
