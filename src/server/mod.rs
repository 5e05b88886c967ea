//! The safe layer over the server's module API, and the only place with `unsafe`.
//!
//! The layers, each of which uses only those before it: [`base`], [`handles`], [`services`], [`hooks`], then [`entry`], where
//! commands enter the module, and [`load`], where the server loads it.

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

mod apply;
pub mod base;
pub mod entry;
pub mod handles;
pub mod hooks;
pub mod load;
pub mod services;
