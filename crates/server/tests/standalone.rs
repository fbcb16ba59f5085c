//! A server as a library: built from a Config, ended by a shutdown that is handed in.

use std::net::TcpListener;
use std::path::PathBuf;

use tessera_repository::name_files;
use tessera_server::{run_role, shutdown_channel};

mod common;

use common::empty_server;

#[test]
fn a_server_that_is_built_answers_until_the_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let (trigger, mut shutdown) = shutdown_channel();
    let served = run_role(async {
        let server = empty_server(&folder.path().join("repository")).build().await?;
        let server = server.start_tasks(&mut shutdown).await?.expect("nobody has ended it");
        let status = server.server_status();
        // It listens, and serves nothing.
        let listens = tokio::net::TcpStream::connect(status.addresses.http).await.is_ok();
        trigger.request_shutdown();
        server.run_until(&mut shutdown).await;
        Ok((status, listens))
    });
    let (status, listens) = served.unwrap();
    assert!(listens);
    assert!(status.tasks.is_empty() && status.units.is_empty());
    assert_eq!(status.cores, 1);
    assert!(std::net::TcpStream::connect(status.addresses.http).is_err());
}

#[test]
fn a_shutdown_before_the_tasks_are_there_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (trigger, mut shutdown) = shutdown_channel();
    trigger.request_shutdown();
    let ready = run_role(async {
        let mut config = empty_server(&folder.path().join("repository"));
        // One that takes a moment to find out that it is no model.
        let model = folder.path().join("model.onnx");
        std::fs::write(&model, b"").map_err(|error| tessera_core::Error::from_io("", &error))?;
        config.models.files = name_files(&[model]).unwrap();
        Ok(config.build().await?.start_tasks(&mut shutdown).await.is_ok_and(|it| it.is_some()))
    });
    assert!(!ready.unwrap());
}

#[test]
fn all_settings_that_are_wrong_are_told_at_once_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut config = empty_server(&repository);
    config.gateway.grpc.address = taken.local_addr().unwrap();
    config.rest.address = taken.local_addr().unwrap();
    let missing = ["missing.onnx", "gone.onnx"].map(PathBuf::from);
    config.models.files = name_files(&missing).unwrap();
    let error = run_role(config.build()).err().expect("two ports are taken").to_string();
    for word in ["grpc: ", "control: ", "missing.onnx", "gone.onnx"] {
        assert!(error.contains(word), "no {word} in: {error}");
    }
    assert!(!error.contains("http: "), "{error}");
    assert!(!repository.exists());
}
