//! Finding and opening libonnxruntime.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::environment::Environment;
use ort::logging::LogLevel;
use tessera_core::{Error, Result};

use super::arena::share_arena;

/// Folder of the project that `scripts/fetch-onnxruntime` installs the library to.
const PROJECT_FOLDER: &str = ".onnxruntime";

/// Whether the user says where the library is.
pub(crate) fn is_library_named() -> bool {
    std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty())
}

/// Where the library is: `ORT_DYLIB_PATH`, beside the binary, in a `.onnxruntime` folder of the
/// current folder or one above it or above the binary, or in the `onnxruntime` of the Python
/// environment that the binary was installed in; in that order.
pub fn find_library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let binary = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_path_buf()));
    let current = std::env::current_dir().ok();
    if let Some(found) = binary.as_deref().and_then(library_in) {
        return Some(found);
    }
    let mut above = current.iter().chain(&binary).flat_map(|folder| folder.ancestors());
    above
        .find_map(|folder| library_in(&folder.join(PROJECT_FOLDER)))
        .or_else(|| binary.as_deref().and_then(find_in_environment))
}

/// The library of the package `onnxruntime` that was installed with the binary, whose folder this
/// is: in an environment (`bin` beside `lib/python3.N/site-packages`), or in a folder of packages
/// (`pip install --target`: `bin` among them).
fn find_in_environment(binary: &Path) -> Option<PathBuf> {
    let root = binary.parent()?;
    let mut versions: Vec<PathBuf> = ["lib", "lib64"]
        .into_iter()
        .filter_map(|folder| std::fs::read_dir(root.join(folder)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().is_some_and(|name| is_python_folder(&name.to_string_lossy()))
        })
        .collect();
    versions.sort();
    let packages = versions
        .iter()
        .rev()
        .flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    let mut places = packages.chain([root.to_path_buf()]);
    places.find_map(|packages| library_in(&packages.join("onnxruntime/capi")))
}

fn is_python_folder(name: &str) -> bool {
    name.strip_prefix("python3.").is_some_and(|minor| minor.parse::<u16>().is_ok())
}

/// The newest libonnxruntime in `folder`.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name == "libonnxruntime.so"
                || name.starts_with("libonnxruntime.so.")
                || name.starts_with("libonnxruntime.") && name.ends_with(".dylib")
        })
        .collect();
    found.sort();
    found.pop()
}

/// Opens the library; a process has one environment, which everyone shares.
pub(super) fn open_library() -> Result<(Environment, String)> {
    static OPENED: Mutex<Option<(Environment, String)>> = Mutex::new(None);
    let mut opened = tessera_core::lock(&OPENED);
    if let Some((environment, version)) = opened.as_ref() {
        return Ok((environment.clone(), version.clone()));
    }
    let path = find_library().ok_or_else(|| {
        Error::not_found(
            "no libonnxruntime found (pip install onnxruntime beside the binary, set ORT_DYLIB_PATH, or \
             run scripts/fetch-onnxruntime)",
        )
    })?;
    let fail = |error: &dyn std::fmt::Display| {
        Error::engine(format!("{}: can't be used as ONNX Runtime: {error}", path.display()))
    };
    // The library would keep an identity of this machine in the user's home folder; its own switch
    // comes too late for that.
    if std::env::var_os("ORT_DISABLE_TELEMETRY").is_none() {
        // SAFETY: nothing of ours reads the environment on another thread, and the library, which
        // does, is not loaded yet.
        unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
    }
    let builder = ort::init_from(&path).map_err(|error| fail(&error))?;
    let environment =
        builder.with_name("tessera").with_telemetry(false).build().map_err(|error| fail(&error))?;
    // What goes wrong comes back as an error, and is told once, by whoever handles it.
    environment.set_log_level(LogLevel::Fatal);
    share_arena(&environment).map_err(|error| fail(&error))?;
    let version = version_of(&path);
    *opened = Some((environment.clone(), version.clone()));
    Ok((environment, version))
}

/// The version, from the file's name where it carries one.
fn version_of(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_prefix("libonnxruntime.so.") {
        Some(version) => version.to_owned(),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::fs;

    use super::*;

    #[test]
    fn the_library_of_the_environment_of_the_binary_is_found() {
        for (packages, is_found) in [
            ("lib/python3.11/site-packages", true),
            ("lib64/python3.12/site-packages", true),
            ("lib/python3/dist-packages", false),
            ("lib/python3.11/dist-packages", true),
            ("", true),
            ("elsewhere", false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join(packages).join("onnxruntime/capi");
            fs::create_dir_all(&folder).unwrap();
            fs::create_dir_all(root.path().join("bin")).unwrap();
            let library = folder.join("libonnxruntime.so.1.31.1");
            fs::write(&library, "").unwrap();
            let found = find_in_environment(&root.path().join("bin"));
            assert_eq!(found, is_found.then_some(library), "{packages}");
        }
    }
}
