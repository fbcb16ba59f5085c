//! What is logged, as Triton's clients set it: a switch per level, which is one level here.

use std::fmt;
use std::sync::{Arc, Mutex};

use tessera_core::{Error, Result, lock};
use tracing::level_filters::LevelFilter;

/// What is logged when the server starts, and how that is changed.
#[derive(Clone)]
pub struct LogControl {
    level: LevelFilter,
    set_level: Arc<dyn Fn(LevelFilter) + Send + Sync>,
}

impl LogControl {
    /// A log that begins with `level`; `set_level` is called with another.
    pub fn new(
        level: LevelFilter,
        set_level: impl Fn(LevelFilter) + Send + Sync + 'static,
    ) -> Self {
        Self { level, set_level: Arc::new(set_level) }
    }
}

impl Default for LogControl {
    fn default() -> Self {
        Self::new(LevelFilter::INFO, |_| {})
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").field("level", &self.level).finish_non_exhaustive()
    }
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogValue {
    /// Whether messages of a level are written.
    Flag(bool),
    /// How much more is written.
    Number(u32),
    /// A file, or a format.
    Text(String),
}

/// The settings as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogSwitches {
    info: bool,
    warning: bool,
    error: bool,
    verbose: u32,
}

impl LogSwitches {
    fn from_level(level: LevelFilter) -> Self {
        let verbose = match level {
            LevelFilter::TRACE => 2,
            LevelFilter::DEBUG => 1,
            _ => 0,
        };
        Self {
            info: level >= LevelFilter::INFO,
            warning: level >= LevelFilter::WARN,
            error: level >= LevelFilter::ERROR,
            verbose,
        }
    }

    /// The level that these switches stand for: the most talkative that is on.
    fn level(&self) -> LevelFilter {
        match self {
            Self { verbose: 2.., .. } => LevelFilter::TRACE,
            Self { verbose: 1, .. } => LevelFilter::DEBUG,
            Self { info: true, .. } => LevelFilter::INFO,
            Self { warning: true, .. } => LevelFilter::WARN,
            Self { error: true, .. } => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        }
    }
}

/// What is logged.
#[derive(Debug)]
pub(crate) struct LogSettings {
    control: LogControl,
    switches: Mutex<LogSwitches>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self::new(LogControl::default())
    }
}

impl LogSettings {
    pub(crate) fn new(control: LogControl) -> Self {
        let switches = Mutex::new(LogSwitches::from_level(control.level));
        Self { control, switches }
    }

    /// Every setting, by the names that clients know.
    pub(crate) fn current_values(&self) -> [(&'static str, LogValue); 6] {
        let LogSwitches { info, warning, error, verbose } = lock(&self.switches).clone();
        [
            ("log_file", LogValue::Text(String::new())),
            ("log_info", LogValue::Flag(info)),
            ("log_warning", LogValue::Flag(warning)),
            ("log_error", LogValue::Flag(error)),
            ("log_verbose_level", LogValue::Number(verbose)),
            ("log_format", LogValue::Text("default".to_owned())),
        ]
    }

    /// Changes all of these settings, or none where one of them is wrong.
    pub(crate) fn change_values(
        &self,
        changes: impl IntoIterator<Item = (String, LogValue)>,
    ) -> Result<()> {
        let mut current = lock(&self.switches);
        let mut changed = current.clone();
        for (name, value) in changes {
            match (name.as_str(), value) {
                ("log_info", LogValue::Flag(on)) => changed.info = on,
                ("log_warning", LogValue::Flag(on)) => changed.warning = on,
                ("log_error", LogValue::Flag(on)) => changed.error = on,
                ("log_verbose_level", LogValue::Number(level)) => changed.verbose = level,
                ("log_format", LogValue::Text(format)) if format == "default" => {}
                ("log_file", LogValue::Text(file)) if file.is_empty() => {}
                ("log_file" | "log_format", LogValue::Text(_)) => {
                    return Err(Error::unsupported(format!(
                        "\"{name}\" can't be set while the server runs"
                    )));
                }
                ("log_info" | "log_warning" | "log_error", _) => {
                    return Err(wrong_value(&name, "true or false"));
                }
                ("log_verbose_level", _) => {
                    return Err(wrong_value(&name, "an integer of 0 or more"));
                }
                ("log_file" | "log_format", _) => return Err(wrong_value(&name, "a string")),
                _ => return Err(Error::invalid(format!("there is no log setting \"{name}\""))),
            }
        }
        if changed.level() != current.level() {
            (self.control.set_level)(changed.level());
        }
        *current = changed;
        Ok(())
    }
}

fn wrong_value(name: &str, expected: &str) -> Error {
    Error::invalid(format!("log setting \"{name}\" must be {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(name: &str, on: bool) -> (String, LogValue) {
        (name.to_owned(), LogValue::Flag(on))
    }

    #[test]
    fn switches_set_the_level_that_is_logged() {
        let levels = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&levels);
        let control = LogControl::new(LevelFilter::WARN, move |level| lock(&seen).push(level));
        let settings = LogSettings::new(control);
        assert_eq!(settings.current_values()[1], ("log_info", LogValue::Flag(false)));
        settings.change_values([flag("log_info", true)]).unwrap();
        let verbose = ("log_verbose_level".to_owned(), LogValue::Number(1));
        settings.change_values([verbose]).unwrap();
        assert_eq!(settings.current_values()[4], ("log_verbose_level", LogValue::Number(1)));
        let off = ["log_info", "log_warning", "log_error"].map(|name| flag(name, false));
        let quiet = ("log_verbose_level".to_owned(), LogValue::Number(0));
        settings.change_values(off.into_iter().chain([quiet])).unwrap();
        assert_eq!(*lock(&levels), [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::OFF]);
    }

    #[test]
    fn where_one_is_wrong_none_is_changed() {
        let settings = LogSettings::default();
        let before = settings.current_values();
        for wrong in [
            ("log_warning".to_owned(), LogValue::Number(1)),
            ("log_file".to_owned(), LogValue::Text("/tmp/log".into())),
            ("nothing".to_owned(), LogValue::Flag(true)),
        ] {
            let name = wrong.0.clone();
            let error = settings.change_values([flag("log_info", false), wrong]).unwrap_err();
            assert!(error.to_string().contains(&name), "{error}");
            assert_eq!(settings.current_values(), before);
        }
    }
}
