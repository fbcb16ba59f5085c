//! Where an object store is, as users write it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tessera_core::{Error, Result};

/// Where an object store is: `s3://BUCKET/PREFIX`, or `file:///FOLDER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    text: String,
    pub(crate) place: StorePlace,
}

/// What kind of store it is, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    Folder(PathBuf),
    #[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "there is no S3 in this build"))]
    S3 {
        bucket: String,
        /// What all names begin with: nothing, or something that ends in a slash.
        prefix: String,
    },
}

impl FromStr for StoreAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!(
                "\"{text}\" is no address of an object store: expected s3://BUCKET/PREFIX or \
                 file:///FOLDER"
            ))
        };
        let place = if let Some(folder) = text.strip_prefix("file://") {
            // A host between the slashes would be another's folder.
            let folder = PathBuf::from(folder);
            if !folder.is_absolute() {
                return Err(wrong());
            }
            StorePlace::Folder(folder)
        } else if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_end_matches('/');
            let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
            let is_bucket = !bucket.is_empty() && !bucket.contains(['@', ':', '?', '#', ' ']);
            if !is_bucket || (!prefix.is_empty() && !prefix.split('/').all(is_plain)) {
                return Err(wrong());
            }
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
            StorePlace::S3 { bucket: bucket.to_owned(), prefix }
        } else {
            return Err(wrong());
        };
        Ok(Self { text: text.to_owned(), place })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_and_others_refused() {
        let place = |text: &str| text.parse::<StoreAddress>().unwrap().place;
        assert_eq!(place("file:///srv/models"), StorePlace::Folder("/srv/models".into()));
        let s3 = |bucket: &str, prefix: &str| StorePlace::S3 {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        assert_eq!(place("s3://models"), s3("models", ""));
        assert_eq!(place("s3://models/"), s3("models", ""));
        assert_eq!(place("s3://models/a/b/"), s3("models", "a/b/"));
        let wrong = ["", "models", "file://host/x", "file://x", "s3://", "s3:///x", "s3://a:b/c"];
        for text in wrong.into_iter().chain(["s3://a/../b", "s3://a//b", "http://a/b", "gs://a"]) {
            let error = text.parse::<StoreAddress>().unwrap_err().to_string();
            assert!(error.contains("expected s3://BUCKET/PREFIX"), "{error}");
        }
    }
}
