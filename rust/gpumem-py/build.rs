//! Builds the virtual CUDA device (`gpumem-vgpu`) beside the extension, so that one wheel carries both.
//!
//! Only with the feature `virtual-device`, which maturin sets: a plain `cargo build` of the workspace builds the device as
//! the member it is. Maturin takes the file out of `OUT_DIR` (`include` in pyproject.toml).

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libgpumem_vgpu.so";
/// Where the device exists; elsewhere the package says so when it is asked for.
const OS: &str = "linux";

fn main() {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    for source in ["../gpumem-vgpu", "../gpumem-core/src", "../gpumem-core/data", "../../Cargo.lock"] {
        println!("cargo:rerun-if-changed={source}");
    }
    let wanted = env::var_os("CARGO_FEATURE_VIRTUAL_DEVICE").is_some() && variable("CARGO_CFG_TARGET_OS") == OS;
    if wanted {
        build(&here.join("../gpumem-vgpu/Cargo.toml"), &PathBuf::from(variable("OUT_DIR")));
    }
}

/// A second cargo with a target folder of its own: the one that runs holds the lock of the usual one.
fn build(manifest: &Path, out: &Path) {
    let target = variable("TARGET");
    let folder = out.join("vgpu");
    let status = Command::new(variable("CARGO"))
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&folder)
        // Shipped as it is: no debug information, and a panic ends the process as an abort of CUDA would.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "building {} failed", manifest.display());
    let built = folder.join(target).join("release").join(LIBRARY);
    std::fs::copy(&built, out.join(LIBRARY)).expect("the library was built");
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}
