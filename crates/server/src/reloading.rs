//! What is read from files that may change while a server runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tessera_core::{Result, lock};

/// How often files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Something that is made from files, anew when one of them changes.
pub(crate) struct Reloading<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T> + Send + Sync>,
    look_interval: Duration,
    state: Mutex<ReloadingState<T>>,
}

struct ReloadingState<T> {
    made: Arc<T>,
    looked: Instant,
    changed: Vec<Option<SystemTime>>,
}

impl<T> Reloading<T> {
    /// Makes it for the first time.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let changed = change_times(&files);
        let made = Arc::new(make()?);
        let state = Mutex::new(ReloadingState { made, looked: Instant::now(), changed });
        Ok(Self { files, make: Box::new(make), look_interval: LOOK_INTERVAL, state })
    }

    /// What the files say now. Where they can't be read any more, what they said before.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = lock(&self.state);
        if state.looked.elapsed() >= self.look_interval {
            state.looked = Instant::now();
            let changed = change_times(&self.files);
            if changed != state.changed {
                state.changed = changed;
                match (self.make)() {
                    Ok(made) => {
                        state.made = Arc::new(made);
                        tracing::info!(file = %self.files[0].display(), "read again");
                    }
                    Err(error) => tracing::error!(%error, "what was read before is kept"),
                }
            }
        }
        Arc::clone(&state.made)
    }
}

fn change_times(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    files
        .iter()
        .map(|file| std::fs::metadata(file).and_then(|found| found.modified()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tessera_core::Error;

    use super::*;

    #[test]
    fn what_files_say_counts_once_it_makes_sense() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        fs::write(&file, "1").unwrap();
        let read = {
            let file = file.clone();
            move || {
                let text =
                    fs::read_to_string(&file).map_err(|error| Error::from_io("f", &error))?;
                text.parse::<u32>().map_err(|error| Error::usage(error.to_string()))
            }
        };
        let mut number = Reloading::new(vec![file.clone()], read).unwrap();
        fs::write(&file, "2").unwrap();
        assert_eq!(*number.current(), 1, "it was looked at just now");
        number.look_interval = Duration::ZERO;
        assert_eq!(*number.current(), 2);
        fs::write(&file, "two").unwrap();
        assert_eq!(*number.current(), 2);
        fs::remove_file(&file).unwrap();
        assert_eq!(*number.current(), 2);
        fs::write(&file, "3").unwrap();
        assert_eq!(*number.current(), 3);
    }
}
