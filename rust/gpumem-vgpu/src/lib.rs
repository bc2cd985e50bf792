//! The virtual CUDA device: the entry points of the CUDA libraries that `PyTorch` calls, without a GPU behind them.
//!
//! Loaded before `PyTorch` (`LD_PRELOAD`), its symbols are found before those of the real libraries. Memory is accounted
//! for per device and addresses come out of a range that nothing can be read from; kernels are counted and not run;
//! cuDNN's questions about convolutions go to the real cuDNN with the description of the named card. So `PyTorch`'s own
//! allocator, autograd engine and dispatcher do what they would do on that card.
//!
//! - `config` reads the environment, `platform` is the one state: `accounts` and `address_space`;
//! - `entry` turns a Rust outcome into a library's status; `arguments` reads and writes through C pointers;
//! - one module per library holds the entry points that do something; `data/*.txt` lists all others with what each does
//!   by default, and `build.rs` makes functions of them.
//!
//! Elsewhere than on Linux (x86-64, aarch64) the library is empty.

#![allow(non_snake_case)]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod accounts;
mod address_space;
mod arguments;
mod config;
mod contents;
mod control;
mod copy;
mod counts;
mod cublas;
mod cudnn;
mod cufft;
mod cusparse;
mod driver;
mod entry;
mod handles;
mod ledger;
mod nccl;
mod nvml;
mod platform;
mod reservation;
mod runtime;
mod stray_access;
mod table;
mod thread_exit;
mod visible;
