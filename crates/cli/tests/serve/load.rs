//! `tessera load` against a server of ours.

use std::fs;
use std::net::TcpListener;

use crate::common::{json, refuse, tessera};
use crate::models::layers;
use crate::server::Place;

#[test]
fn closed_and_open_loops_and_sweeps_are_measured_and_shown() {
    let place = Place::new();
    let chain = place.model("chain", &layers(&[0, 1]));
    let server = place.serve(&[&chain]);
    let url = format!("http://{}", server.http);
    let short = ["--duration", "0.5", "--warm-up", "0.1"];
    let load = |arguments: &[&str]| {
        let fixed = ["load", "chain", "--url", url.as_str()];
        json(place.path(), &[&fixed[..], &short[..], arguments].concat())
    };

    let closed = load(&["--clients", "2", "--html", "closed.html"]);
    assert_eq!((closed["mode"].as_str(), closed["clients"].as_u64()), (Some("closed"), Some(2)));
    let requests = closed["requests"].as_u64().unwrap();
    assert!(requests > 0, "{closed}");
    assert_eq!(closed["outcomes"]["ok"], requests, "{closed}");
    assert!(closed["latency"]["p50_ms"].as_f64().unwrap() > 0.0, "{closed}");
    assert_eq!(closed["target"]["model"], "chain", "{closed}");

    let counted = load(&["--requests", "20"]);
    assert_eq!(counted["outcomes"]["ok"], 20, "{counted}");

    let open = load(&["--rate", "40", "--arrivals", "constant", "--batch", "3"]);
    assert_eq!(open["mode"], "open", "{open}");
    assert_eq!(open["rate_per_second"], 40.0, "{open}");
    assert_eq!(open["outcomes"]["ok"], open["requests"], "{open}");
    assert_eq!(open["target"]["inputs"][0], "x FP32[3,64]", "{open}");

    let sweep = load(&["--sweep", "20,40", "--html", "sweep.html"]);
    let rates: Vec<f64> = sweep["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["rate_per_second"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [20.0, 40.0], "{sweep}");
    for file in ["closed.html", "sweep.html"] {
        let page = fs::read_to_string(place.path().join(file)).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>"), "{file}");
        assert!(page.contains("<svg"), "{file}");
        assert!(page.trim_end().ends_with("</html>"), "{file}");
    }

    let shown = tessera(place.path(), &["load", "chain", "--url", &url, "--requests", "5"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("closed loop") && shown.out.contains("5 ok"), "{}", shown.out);

    // Nothing runs on a GPU: that is said, and the run is as it would be without.
    let metrics = format!("http://{}/metrics", server.metrics);
    let watched = load(&["--requests", "5", "--metrics", &metrics]);
    assert_eq!((&watched["outcomes"]["ok"], watched.get("gpus")), (&5.into(), None), "{watched}");
    assert!(watched["gpu_note"].as_str().unwrap().contains(&metrics), "{watched}");
    let wrong = format!("http://{}/nothing", server.metrics);
    let wrong = ["load", "chain", "--url", &url, "--metrics", &wrong];
    refuse(place.path(), &wrong, &["metrics", "/nothing", "404"]);

    refuse(place.path(), &["load", "nobody", "--url", &url], &["nobody", "404", "chain"]);
    let wrong = ["load", "chain", "--url", &url, "--shape", "z=1,2"];
    refuse(place.path(), &wrong, &["\"z\"", "\"x\""]);
    server.stop();
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let place = Place::new();
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    for how in [&["--clients", "1"][..], &["--rate", "10"], &["--sweep", "10,20"]] {
        let fixed = ["load", "chain", "--url", url.as_str(), "--html", "page.html"];
        let words = [address.to_string(), "refused".to_owned()];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refuse(place.path(), &[&fixed[..], how].concat(), &words);
    }
}
