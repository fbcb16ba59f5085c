//! `tessera bench gpu` on the CPU: what it reports, and its page.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs;

use common::{has_onnxruntime, json, listing, refuse, text};
use tempfile::tempdir;

const SMALL: [&str; 26] = [
    "bench",
    "gpu",
    "--model",
    "resnet18",
    "--device",
    "cpu",
    "--blocks",
    "4",
    "--batches",
    "1,2",
    "--runs",
    "2",
    "--seconds",
    "0.3",
    "--most-clients",
    "2",
    "--throughput-clients",
    "2,3",
    "--most-rows",
    "2",
    "--rounds",
    "1",
    "--only",
    "latency,clients,throughput",
    "--html",
    "page.html",
];

#[test]
fn it_reports_ratios_and_writes_a_page_with_a_section_for_each_experiment() {
    if !has_onnxruntime() {
        return;
    }
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &SMALL);
    assert_eq!((report["blocks"].as_u64(), report["machine"]["gpu"].as_str()), (Some(4), None));
    let batches = report["latency"]["batches"].as_array().unwrap();
    assert_eq!(batches.len(), 2);
    for batch in batches {
        let arms = batch["pipelines"].as_array().unwrap();
        assert_eq!(arms.len(), if cfg!(feature = "zeromq") { 4 } else { 3 });
        for arm in arms {
            assert!(arm["ratio"].as_f64().unwrap() > 0.0, "{arm}");
            assert_eq!(arm["equal"], true, "{arm}");
        }
        // It is there even where it is no number.
        let times = &batch["zmq_overhead_over_tensormq"];
        assert!(batch.as_object().unwrap().contains_key("zmq_overhead_over_tensormq"));
        assert!(times.is_null() || times.is_number(), "{times}");
    }
    for arm in report["clients"].as_array().unwrap() {
        let steps = arm["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2);
        assert!(steps.iter().all(|step| step["answers_per_second"].as_f64().unwrap() > 0.0));
        assert!(steps.iter().all(|step| step["mean_ms"].as_f64().unwrap() > 0.0));
    }
    let pipelines = report["throughput"]["pipelines"].as_array().unwrap();
    let names: Vec<&str> = pipelines.iter().map(|arm| arm["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["threads", "processes"]);
    assert!(pipelines.iter().all(|arm| arm["over_best_whole"].as_f64().unwrap() > 0.0));
    for missing in ["energy", "arrivals", "memory", "scenarios"] {
        assert!(report[missing].is_null(), "{missing} was not asked for");
    }
    let page = folder.path().join("page.html");
    let html = fs::read_to_string(&page).unwrap();
    for title in [
        "Latency of one client",
        "Time of each block",
        "Copies between host and device",
        "Clients that wait for their answers",
        "Throughput",
    ] {
        assert!(html.contains(&format!("<h2>{title}</h2>")), "{title} in {}", text(&page));
    }
    assert_eq!(html.matches("<section>").count(), 5);
    assert_eq!(listing(folder.path()).len(), 1, "nothing but the page");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempdir().unwrap();
    let refused = |more: &[&str], words: &[&str]| {
        let mut all = vec!["bench", "gpu"];
        all.extend(more);
        refuse(folder.path(), &all, words);
    };
    refused(&["--seconds", "0"], &["--seconds 0", "more than 0"]);
    refused(&["--batches", "0"], &["--batches"]);
    refused(&["--model", "nothing"], &["\"nothing\" is no file"]);
}
