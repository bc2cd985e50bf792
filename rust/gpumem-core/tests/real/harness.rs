//! Builds and runs the program that feeds a script to the real `libc10_cuda` on a fake CUDA runtime.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Asks Python where torch and the CUDA headers are; prints nothing when either is missing.
const LOCATE: &str = "
import os, sysconfig
site = sysconfig.get_paths()['purelib']
needed = ['torch/lib/libc10_cuda.so', 'nvidia/cu13/include/cuda_runtime_api.h', 'nvidia/cu13/include/crt/host_defines.h']
if all(os.path.exists(os.path.join(site, name)) for name in needed):
    print(site)
    print(open(os.path.join(site, 'torch/version.py')).read().split(\"__version__ = '\")[1].split(\"'\")[0])
";

/// The built program.
pub(crate) struct Harness {
    directory: PathBuf,
    /// Version of the torch whose allocator runs.
    pub(crate) torch_version: String,
}

impl Harness {
    /// Builds the program, or says why that is not possible here.
    pub(crate) fn build() -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vgpu/allocator_harness");
        if !source.join("drive.cpp").exists() {
            return Err(format!("no harness source at {}", source.display()));
        }
        let python = std::env::var_os("GPUMEM_TORCH_PYTHON").unwrap_or_else(|| OsString::from("python3"));
        let located = Command::new(&python).args(["-c", LOCATE]).output().map_err(|error| error.to_string())?;
        let located = String::from_utf8_lossy(&located.stdout).into_owned();
        let mut lines = located.lines();
        let (Some(site_packages), Some(torch_version)) = (lines.next(), lines.next()) else {
            return Err(format!(
                "{} has no CUDA 13 build of torch with nvidia-cuda-crt (set GPUMEM_TORCH_PYTHON)",
                python.to_string_lossy()
            ));
        };
        if Command::new("g++").arg("--version").stdout(Stdio::null()).status().is_err() {
            return Err("no g++".to_owned());
        }
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("allocator_harness-{torch_version}"));
        let harness = Self { directory, torch_version: torch_version.to_owned() };
        if !harness.directory.join("drive").exists() {
            harness.compile(&source, site_packages);
        }
        Ok(harness)
    }

    fn compile(&self, source: &Path, site_packages: &str) {
        fs::create_dir_all(&self.directory).unwrap();
        for file in fs::read_dir(source).unwrap() {
            let file = file.unwrap();
            let content = fs::read(file.path()).unwrap();
            fs::write(self.directory.join(file.file_name()), content).unwrap();
        }
        // The script reads the headers' folder from `CI`, which continuous integration sets to `true`.
        let headers = Path::new(site_packages).join("nvidia/cu13/include");
        let mut script = Command::new("sh");
        script.arg(self.directory.join("build.sh")).env("SP", site_packages).env("CI", headers);
        let built = script.status().unwrap();
        assert!(built.success(), "the harness does not build in {}", self.directory.display());
    }

    /// Runs a script on a device of `total` bytes of which `overhead` are taken; returns what it printed.
    pub(crate) fn run(&self, script: &str, conf: &str, total: u64, overhead: u64, descending: bool) -> String {
        let mut child = Command::new("sh")
            .arg(self.directory.join("run.sh"))
            .env("PYTORCH_CUDA_ALLOC_CONF", conf)
            .env("FAKE_TOTAL", total.to_string())
            .env("FAKE_OVERHEAD", overhead.to_string())
            .env("FAKE_DESC", u8::from(descending).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let script = script.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().ok();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "the harness failed: {}\n{}", output.status, tail(&text));
        text
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
