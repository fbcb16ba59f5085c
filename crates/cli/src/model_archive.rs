//! A model with the files that belong to it, as it is sent: an ONNX file by itself, or an archive.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::PathBuf;

use tessera_command::Upload;
use tessera_core::{Error, Result};
use tessera_repository::{ModelDescription, ModelFile, manifest_path};

/// Archives are made of records of so many bytes.
const RECORD: u64 = 512;

/// A model on its way to a server.
pub(crate) enum ModelArchive {
    /// A file that is all there is.
    File { path: PathBuf, len: u64 },
    /// Several files, each with its name.
    Files(Vec<(String, ArchivedFile)>),
}

/// A file of an archive.
pub(crate) enum ArchivedFile {
    OnDisk { path: PathBuf, len: u64 },
    InMemory(Vec<u8>),
}

impl ModelArchive {
    /// What belongs to a model.
    pub(crate) fn of_model(model: &ModelFile) -> Result<Self> {
        let (path, len) = measure_file(model.path.clone())?;
        let mut files = Vec::new();
        for (location, path) in model.external_files() {
            let (path, len) = measure_file(path.clone())?;
            files.push((location.clone(), ArchivedFile::OnDisk { path, len }));
        }
        let manifest = manifest_path(&path);
        if manifest.exists() {
            let (path, len) = measure_file(manifest)?;
            files.push(("model.exits.json".to_owned(), ArchivedFile::OnDisk { path, len }));
        }
        let description = model.description()?;
        if description != ModelDescription::default() {
            let text = ArchivedFile::InMemory(description.to_json()?);
            files.push(("description.json".to_owned(), text));
        }
        if files.is_empty() {
            return Ok(Self::File { path, len });
        }
        files.insert(0, ("model.onnx".to_owned(), ArchivedFile::OnDisk { path, len }));
        Ok(Self::Files(files))
    }
}

fn measure_file(path: PathBuf) -> Result<(PathBuf, u64)> {
    let found = path.metadata().map_err(|error| Error::from_io(path.display(), &error))?;
    Ok((path, found.len()))
}

impl ArchivedFile {
    fn len(&self) -> u64 {
        match self {
            Self::OnDisk { len, .. } => *len,
            Self::InMemory(bytes) => bytes.len() as u64,
        }
    }

    fn open(&self) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::OnDisk { path, len } => {
                let file = File::open(path);
                let file = file.map_err(|error| Error::from_io(path.display(), &error))?;
                Ok(Box::new(file.take(*len)))
            }
            Self::InMemory(bytes) => Ok(Box::new(Cursor::new(bytes.clone()))),
        }
    }
}

impl Upload for ModelArchive {
    fn content_type(&self) -> &'static str {
        match self {
            Self::File { .. } => "application/octet-stream",
            Self::Files(_) => "application/x-tar",
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Files(files) => {
                let file =
                    |(_, file): &(_, ArchivedFile)| RECORD + file.len().next_multiple_of(RECORD);
                files.iter().map(file).sum::<u64>() + 2 * RECORD
            }
        }
    }

    fn open(&self) -> Result<Box<dyn Read + Send>> {
        let files = match self {
            Self::File { path, len } => {
                let file = File::open(path);
                let file = file.map_err(|error| Error::from_io(path.display(), &error))?;
                return Ok(Box::new(file.take(*len)));
            }
            Self::Files(files) => files,
        };
        let mut archive: Box<dyn Read + Send> = Box::new(std::io::empty());
        for (name, file) in files {
            let mut header = tar::Header::new_gnu();
            header.set_path(name).map_err(|error| Error::from_io(name, &error))?;
            header.set_size(file.len());
            header.set_mode(0o644);
            header.set_cksum();
            let padding = file.len().next_multiple_of(RECORD) - file.len();
            let rest = std::io::repeat(0).take(padding);
            let header = Cursor::new(header.as_bytes().to_vec());
            archive = Box::new(archive.chain(header).chain(file.open()?).chain(rest));
        }
        Ok(Box::new(archive.chain(std::io::repeat(0).take(2 * RECORD))))
    }
}
