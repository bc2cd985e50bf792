//! Makes C functions of `data/*.txt`, and names the library as the driver is named, so that `dlopen("libcuda.so.1")`
//! finds it.
//!
//! A line of a table is `BEHAVIOUR SYMBOL`. The behaviours: `ok` succeeds; `launch` succeeds and counts a kernel;
//! `unsupported` fails with the library's "not supported"; `create` puts a new handle where the first argument points;
//! `destroy` takes such a handle; `zero:TYPE:N[,N...]` writes a zero of a type (`u64`, `i64`, `i32`) where the arguments
//! with these numbers (counted from 0, floating-point arguments left out) point; `guess:TYPE:N[,N...]` does the same and
//! remembers that a size was asked for which only a real device knows; `launch:TYPE:N[,N...]` does the same and counts a
//! kernel; `own` stands in `src`; `real` is left to the real library. The first line is `library CONSTANT`, the name of the library in `crate`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=data");
    println!("cargo:rerun-if-changed=src");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    }
    let own = own_functions(&root.join("src"));
    let mut seen = BTreeSet::new();
    let mut code = String::new();
    let mut real = Vec::new();
    for path in files(&root.join("data"), "txt") {
        let text = fs::read_to_string(&path).expect("readable");
        let mut library = "";
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let Some((behaviour, symbol)) = line.split_once(' ') else {
                assert!(line.is_empty(), "{}:{}: no symbol", path.display(), index + 1);
                continue;
            };
            if behaviour == "library" {
                library = symbol;
                continue;
            }
            let place = format!("{}:{}: {symbol}", path.display(), index + 1);
            assert!(!library.is_empty(), "{place}: before the library's name");
            assert!(seen.insert(symbol.to_owned()), "{place}: listed twice");
            assert_eq!(behaviour == "own", own.contains(symbol), "{place}: `own` and a function in src go together");
            if behaviour == "real" {
                real.push(symbol.to_owned());
            }
            code += &function(behaviour, symbol, library).unwrap_or_else(|| panic!("{place}: unknown '{behaviour}'"));
        }
    }
    for symbol in &own {
        assert!(seen.contains(symbol), "{symbol} is in no table of data/");
    }
    writeln!(
        code,
        "/// Functions that the real libraries answer.\npub(crate) const LEFT_TO_REAL: &[&str] = &{real:?};"
    )
    .expect("a string");
    fs::write(out.join("entry_points.rs"), code).expect("writable");
}

/// The Rust text of one entry point; empty if it is not ours to make.
fn function(behaviour: &str, symbol: &str, library: &str) -> Option<String> {
    let success = "Ok(())".to_owned();
    let (parameters, first, outcome) = match behaviour {
        "ok" => (String::new(), String::new(), success),
        "launch" => (String::new(), "count_launch();".to_owned(), success),
        "unsupported" => (String::new(), String::new(), "Err(Failure::NotSupported)".to_owned()),
        "create" => ("out: Out<Handle>".to_owned(), String::new(), "created(out)".to_owned()),
        "destroy" => ("handle: Handle".to_owned(), String::new(), "destroyed(handle)".to_owned()),
        "own" | "real" => return Some(String::new()),
        _ => {
            let (kind, places) = behaviour.split_once(':')?;
            let (parameters, outcome) = zeros(places)?;
            match kind {
                "zero" => (parameters, String::new(), outcome),
                "launch" => (parameters, "count_launch();".to_owned(), outcome),
                "guess" => (parameters, format!("note_guess(\"{symbol}\");"), outcome),
                _ => return None,
            }
        }
    };
    Some(format!(
        "#[unsafe(no_mangle)]\nextern \"C\" fn {symbol}({parameters}) -> i32 {{\n    {first}\n    \
         crate::{library}.status(\"{symbol}\", {outcome})\n}}\n"
    ))
}

/// Parameters and outcome for `TYPE:N[,N...]`.
fn zeros(text: &str) -> Option<(String, String)> {
    let (kind, positions) = text.split_once(':')?;
    let positions = positions.split(',').map(|number| number.parse().ok()).collect::<Option<BTreeSet<usize>>>()?;
    let mut parameters = String::new();
    for index in 0..=*positions.last()? {
        if positions.contains(&index) {
            write!(parameters, "a{index}: Out<{kind}>, ").ok()?;
        } else {
            write!(parameters, "_a{index}: usize, ").ok()?;
        }
    }
    let writes: Vec<String> = positions.iter().map(|index| format!("a{index}.set(0)")).collect();
    Some((parameters, writes.join(".and(") + &")".repeat(writes.len() - 1)))
}

/// Names of the C functions in the sources.
fn own_functions(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files(folder, "rs") {
        let text = fs::read_to_string(&path).expect("readable");
        for line in text.lines() {
            let declared = line.strip_prefix("fn ").or_else(|| line.strip_prefix("extern \"C\" fn "));
            let name = declared.and_then(|rest| rest.split(['(', '<']).next());
            // C's names have capitals, Rust's have none.
            names.extend(name.filter(|name| name.contains(char::is_uppercase)).map(str::to_owned));
        }
    }
    names
}

/// Files below `folder` with this extension, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|ending| ending == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
