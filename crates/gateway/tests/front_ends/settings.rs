//! What is logged and traced: read and written over HTTP and gRPC.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tessera_gateway::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tessera_gateway::inference::log_settings_request::SettingValue as LogValue;
use tessera_gateway::inference::log_settings_request::setting_value::ParameterChoice;
use tessera_gateway::inference::log_settings_response::setting_value::ParameterChoice as Reported;
use tessera_gateway::inference::trace_setting_request::SettingValue as TraceValue;
use tessera_gateway::inference::{LogSettingsRequest, TraceSettingRequest};
use tessera_gateway::{FrontEndOptions, LogControl, ServerSettings};
use tonic::Code;
use tracing::level_filters::LevelFilter;

use crate::fake::Server;
use crate::grpc::open_channel;

#[tokio::test]
async fn what_is_logged_is_read_and_written() {
    let levels = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&levels);
    let control = LogControl::new(LevelFilter::INFO, move |level| seen.lock().unwrap().push(level));
    let settings = Arc::new(ServerSettings::new(control));
    let server = Server::with(FrontEndOptions { settings, ..FrontEndOptions::default() });
    let expected = json!({
        "log_file": "", "log_info": true, "log_warning": true, "log_error": true,
        "log_verbose_level": 0, "log_format": "default",
    });
    assert_eq!(server.get("/v2/logging").await.json(), expected);
    let body = json!({"log_info": false, "log_verbose_level": 0});
    let changed = server.post("/v2/logging", body.to_string()).await.json();
    assert_eq!(changed["log_info"], false);
    assert_eq!(server.get("/v2/logging").await.json(), changed);
    assert_eq!(*levels.lock().unwrap(), [LevelFilter::WARN]);
    for (body, expected) in [
        (json!({"log_info": "yes"}), "true or false"),
        (json!({"log_verbose_level": -1}), "can't be -1"),
        (json!({"loud": true}), "no log setting \"loud\""),
    ] {
        let error = server.post("/v2/logging", body.to_string()).await.error();
        assert!(error.contains(expected), "{error}");
    }
    let file = server.post("/v2/logging", "{\"log_file\": \"/tmp/here\"}").await;
    assert_eq!(file.status, 501);
}

#[tokio::test]
async fn what_is_traced_is_read_and_written() {
    let server = Server::new();
    let all = server.get("/v2/trace/setting").await.json();
    let expected = json!({
        "trace_file": "", "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1",
        "log_frequency": "0", "trace_mode": "triton",
    });
    assert_eq!(all, expected);
    let body = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "5", "trace_count": 3});
    let changed = server.post("/v2/trace/setting", body.to_string()).await.json();
    assert_eq!((&changed["trace_rate"], &changed["trace_count"]), (&json!("5"), &json!("3")));
    let path = "/v2/models/add/trace/setting";
    assert_eq!(server.get(path).await.json(), changed);
    server.post(path, "{\"trace_rate\": \"9\"}").await.json();
    assert_eq!(server.get(path).await.json()["trace_rate"], "9");
    assert_eq!(server.get("/v2/trace/setting").await.json()["trace_rate"], "5");
    let cleared = server.post(path, "{\"trace_rate\": null}").await.json();
    assert_eq!(cleared["trace_rate"], "5");
    assert!(server.post(path, "{\"trace_level\": \"LOUD\"}").await.error().contains("LOUD"));
}

#[tokio::test]
async fn both_are_set_over_grpc() {
    let (channel, _) = open_channel().await;
    let mut client = GrpcInferenceServiceClient::new(channel);
    let value = LogValue { parameter_choice: Some(ParameterChoice::Uint32Param(2)) };
    let settings = HashMap::from([("log_verbose_level".to_owned(), value)]);
    let changed = client.log_settings(LogSettingsRequest { settings }).await.unwrap().into_inner();
    let verbose = changed.settings["log_verbose_level"].parameter_choice.clone();
    assert_eq!(verbose, Some(Reported::Uint32Param(2)));
    assert_eq!(changed.settings["log_info"].parameter_choice, Some(Reported::BoolParam(true)));

    let one = |value: &[&str]| {
        let value = value.iter().map(|&text| text.to_owned()).collect();
        HashMap::from([("trace_rate".to_owned(), TraceValue { value })])
    };
    let model_name = "add".to_owned();
    let request = TraceSettingRequest { settings: one(&["4"]), model_name: model_name.clone() };
    let changed = client.trace_setting(request).await.unwrap().into_inner();
    assert_eq!(changed.settings["trace_rate"].value, ["4"]);
    // Without a value it is taken back.
    let request = TraceSettingRequest { settings: one(&[]), model_name };
    let changed = client.trace_setting(request).await.unwrap().into_inner();
    assert_eq!(changed.settings["trace_rate"].value, ["1000"]);
    let request = TraceSettingRequest { settings: one(&["x"]), model_name: String::new() };
    assert_eq!(client.trace_setting(request).await.unwrap_err().code(), Code::InvalidArgument);
    let request = TraceSettingRequest { model_name: "nobody".into(), ..Default::default() };
    assert_eq!(client.trace_setting(request).await.unwrap_err().code(), Code::NotFound);
}
