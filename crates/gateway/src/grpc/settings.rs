//! What is logged and traced, as the messages of gRPC.

use tessera_core::{Error, Result};

use super::generated as message;
use crate::front_end::FrontEnd;
use crate::settings::LogValue;

/// Changes what a client wants changed, and returns what is set then.
pub(super) fn change_log_settings(
    front: &FrontEnd,
    request: message::LogSettingsRequest,
) -> Result<message::LogSettingsResponse> {
    use message::log_settings_request::setting_value::ParameterChoice as Given;
    use message::log_settings_response::SettingValue;
    use message::log_settings_response::setting_value::ParameterChoice;

    let changes: Result<Vec<_>> = request
        .settings
        .into_iter()
        .map(|(name, setting)| {
            let value = match setting.parameter_choice {
                Some(Given::BoolParam(on)) => LogValue::Flag(on),
                Some(Given::Uint32Param(number)) => LogValue::Number(number),
                Some(Given::StringParam(text)) => LogValue::Text(text),
                None => return Err(Error::invalid(format!("log setting \"{name}\" has no value"))),
            };
            Ok((name, value))
        })
        .collect();
    let log = &front.options.settings.log;
    log.change_values(changes?)?;
    let settings = log.current_values().into_iter().map(|(name, value)| {
        let choice = match value {
            LogValue::Flag(on) => ParameterChoice::BoolParam(on),
            LogValue::Number(number) => ParameterChoice::Uint32Param(number),
            LogValue::Text(text) => ParameterChoice::StringParam(text),
        };
        (name.to_owned(), SettingValue { parameter_choice: Some(choice) })
    });
    Ok(message::LogSettingsResponse { settings: settings.collect() })
}

/// The same for traces, of a task or of all. A setting without a value is taken back.
pub(super) fn change_trace_settings(
    front: &FrontEnd,
    request: message::TraceSettingRequest,
) -> Result<message::TraceSettingResponse> {
    use message::trace_setting_response::SettingValue;

    let message::TraceSettingRequest { settings, model_name } = request;
    if !model_name.is_empty() {
        front.find_task(&model_name, "")?;
    }
    let changes = settings
        .into_iter()
        .map(|(name, setting)| (name, (!setting.value.is_empty()).then_some(setting.value)));
    let trace = &front.options.settings.trace;
    trace.change_values(&model_name, changes)?;
    let settings = trace.current_values(&model_name).into_iter();
    let settings = settings.map(|(name, value)| (name.to_owned(), SettingValue { value }));
    Ok(message::TraceSettingResponse { settings: settings.collect() })
}
