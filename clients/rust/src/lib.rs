#![doc = include_str!("../README.md")]

pub mod cache;
mod connect;
pub mod delay;
mod error;
pub mod filter;
pub mod limit;
pub mod lock;
#[cfg(feature = "tokio-comp")]
mod near;
pub mod once;
mod renewed;
mod request;
mod resource;
pub mod semaphore;
#[cfg(feature = "tokio-comp")]
mod shared;
pub mod stock;

pub use connect::Connect;
pub use error::{Error, Result};
pub use request::{Info, Repeatable, Reply, Request};
