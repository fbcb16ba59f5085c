//! Models for scenarios: siblings of one architecture, in three classes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tessera_core::{Error, Result};
use tessera_zoo::{Architecture, Recipe, SharedStages};

use crate::zoo_file::write_recipe;

/// Most models that are made at the same time: each is in memory twice meanwhile.
const AT_A_TIME: usize = 8;

/// Their files, by class.
pub(crate) struct SiblingFiles([Vec<PathBuf>; 3]);

impl SiblingFiles {
    /// So many of each class.
    pub(crate) fn files_of_classes(&self, counts: [usize; 3]) -> Vec<&Path> {
        let classes = self.0.iter().zip(counts);
        classes.flat_map(|(files, count)| files.iter().take(count).map(PathBuf::as_path)).collect()
    }
}

/// Makes so many models of each class in a folder: of class A with nothing in common, of B with the
/// first half of the stages, of C with the first three quarters.
pub(crate) fn make_siblings(
    architecture: Architecture,
    folder: &Path,
    counts: [usize; 3],
    bar: &tessera_report::output::ProgressBar,
) -> Result<SiblingFiles> {
    std::fs::create_dir_all(folder).map_err(|error| Error::from_io(folder.display(), &error))?;
    let stages = architecture.stage_count();
    let first_stages = |stages| Some(SharedStages { seed: 0, stages });
    let classes =
        [("a", None), ("b", first_stages(stages / 2)), ("c", first_stages(stages * 3 / 4))];
    let mut work: Vec<(PathBuf, Recipe)> = Vec::new();
    let mut siblings = SiblingFiles(Default::default());
    for (class, ((letter, shared_stages), count)) in classes.into_iter().zip(counts).enumerate() {
        for number in 1..=count {
            let path = folder.join(format!("{letter}{number}.onnx"));
            // No two models have a seed in common, and none has that of the shared stages.
            let seed = (1000 * (class + 1) + number) as u64;
            work.push((path.clone(), Recipe { seed, shared_stages, ..Recipe::new(architecture) }));
            siblings.0[class].push(path);
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(AT_A_TIME);
    let next = AtomicUsize::new(0);
    let make_some = || -> Result<()> {
        while let Some((path, recipe)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            write_recipe(recipe, path)?;
            bar.inc(1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let making: Vec<_> = (0..threads).map(|_| scope.spawn(make_some)).collect();
        let ended = |_| Err(Error::engine("making a model failed"));
        making.into_iter().try_for_each(|made| made.join().unwrap_or_else(ended))
    })?;
    Ok(siblings)
}
