//! Hosts of a lab, and what their links do to what they send.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tessera_core::ErrorKind;
use tessera_lab::{Lab, LabHost, LinkShape, SlowGroup};

/// A lab with two hosts; `None`, said out loud, where this machine can't have one.
fn two_hosts() -> Option<(Lab, LabHost, LabHost)> {
    let made = Lab::new().and_then(|mut lab| {
        let (a, b) = (lab.add_host("a")?, lab.add_host("b")?);
        Ok((lab, a, b))
    });
    match made {
        Ok(made) => Some(made),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Python, which every machine of ours has.
fn python(host: &LabHost, script: &str, arguments: &[String]) -> Command {
    let mut command = host.command("python3");
    command.args(["-c", script]).args(arguments).stdout(Stdio::piped());
    command
}

const ECHO: &str = "
import socket, sys
s = socket.create_server((sys.argv[1], 7000))
print('up', flush=True)
while True:
    c, _ = s.accept()
    while data := c.recv(1 << 20):
        if len(data) == 1: c.sendall(data)
    c.close()
";

const ROUND_TRIPS: &str = "
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7000)); c.setsockopt(6, 1, 1)
for _ in range(int(sys.argv[2])):
    t = time.perf_counter(); c.sendall(b'x'); c.recv(1)
    print((time.perf_counter() - t) * 1e3, flush=True)
";

const SEND: &str = "
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7000))
t = time.perf_counter()
c.sendall(b'y' * int(sys.argv[2])); c.shutdown(1); c.recv(1)
print(time.perf_counter() - t)
";

struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start_echo(host: &LabHost) -> Ended {
    let mut child = python(host, ECHO, &[host.address().to_string()]).spawn().unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    Ended(child)
}

fn numbers(output: &std::process::Output) -> Vec<f64> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn delay_rate_and_cuts_are_as_they_are_set_while_a_link_is_used() {
    let Some((lab, a, b)) = two_hosts() else { return };
    let _echo = start_echo(&b);
    let to = b.address().to_string();
    let round_trip = || {
        let ran = python(&a, ROUND_TRIPS, &[to.clone(), "15".to_owned()]).output().unwrap();
        median(numbers(&ran))
    };
    assert!(round_trip() < 5.0);
    for delay in [5, 50] {
        lab.set_link(&a, &b, LinkShape::default().with_delay(Duration::from_millis(delay)));
        let (found, expected) = (round_trip(), 2.0 * delay as f64);
        assert!((expected..expected + 4.0).contains(&found), "{found} ms where {expected} are set");
    }
    // 1.25 MB at 10 Mbit/s take a second.
    lab.set_link(&a, &b, LinkShape::default().with_megabits(10));
    let before = lab.traffic(&a, &b).bytes;
    let ran = python(&a, SEND, &[to.clone(), "1250000".to_owned()]).output().unwrap();
    let seconds = numbers(&ran)[0];
    assert!((0.9..1.5).contains(&seconds), "{seconds} s");
    let carried = lab.traffic(&a, &b).bytes - before;
    assert!((1_250_000..1_500_000).contains(&carried), "{carried}");
    // A cut stops what is under way, and what was sent meanwhile comes when it is healed.
    lab.set_link(&a, &b, LinkShape::default().cut());
    let mut asking = python(&a, ROUND_TRIPS, &[to, "1".to_owned()]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(asking.try_wait().unwrap().is_none());
    lab.set_link(&a, &b, LinkShape::default());
    let healed = Instant::now();
    assert!(asking.wait().unwrap().success());
    assert!(healed.elapsed() < Duration::from_secs(3), "{:?}", healed.elapsed());
}

#[test]
fn what_is_carried_can_be_searched_and_nothing_is_left_behind() {
    let Some((lab, a, b)) = two_hosts() else { return };
    let _echo = start_echo(&b);
    lab.start_capture();
    let to = b.address().to_string();
    numbers(&python(&a, SEND, &[to, "2000".to_owned()]).output().unwrap());
    let captured = lab.take_capture();
    assert!(captured.windows(64).any(|window| window.iter().all(|byte| *byte == b'y')));
    let own = format!("tessera-{}-", std::process::id());
    let namespaces = || {
        let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    assert!(namespaces().contains(&own));
    let name = |host: &LabHost| format!("{:?}", host.command("x"));
    let mine = name(&a);
    let mine = mine.split('"').find(|word| word.starts_with(&own)).unwrap().to_owned();
    drop(lab);
    assert!(!namespaces().contains(&mine));
}

#[test]
fn a_token_bucket_and_a_slow_group_bound_what_a_host_gets() {
    let Some((_lab, a, b)) = two_hosts() else { return };
    let _echo = start_echo(&b);
    a.set_token_bucket(10_000_000, 20_000).unwrap();
    let to = b.address().to_string();
    let ran = python(&a, SEND, &[to, "1250000".to_owned()]).output().unwrap();
    let seconds = numbers(&ran)[0];
    assert!((0.9..1.6).contains(&seconds), "{seconds} s at 10 Mbit/s");
    let group = match SlowGroup::new(0.25) {
        Ok(group) => group,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let busy = "
import time
t, c = time.time(), time.process_time()
while time.time() - t < 1: pass
print(time.process_time() - c)
";
    let ran = group.limit_command(&python(&a, busy, &[])).output().unwrap();
    let cores = numbers(&ran)[0];
    assert!((0.1..0.45).contains(&cores), "{cores} of a core where 0.25 are given");
}

#[test]
fn what_goes_through_a_cable_does_not_take_the_relay() {
    let Some((lab, a, b)) = two_hosts() else { return };
    let slow = LinkShape::default().with_delay(Duration::from_millis(200));
    lab.set_link(&a, &b, slow);
    lab.lay_cable(&a, &b).unwrap();
    let _echo = start_echo(&b);
    let asked = python(&a, ROUND_TRIPS, &[b.address().to_string(), "5".to_owned()]).output();
    let times = numbers(&asked.unwrap());
    assert_eq!(times.len(), 5);
    assert!(times.iter().all(|time| *time < 100.0), "{times:?}");
    assert_eq!(lab.traffic(&a, &b).packets, 0);
}
