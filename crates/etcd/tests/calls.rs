//! Calls of etcd: by whichever member answers, with and without TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{client_of, start_members, wait_until_ready};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tessera_core::ErrorKind;
use tessera_etcd::{EtcdClient, EtcdConfig, EtcdIdentityFiles, EtcdTlsFiles, Transaction};
use tessera_lab::{EtcdMembers, EtcdServerFiles};

#[tokio::test]
async fn a_member_that_is_away_is_passed_over() {
    let Some(mut members) = start_members(3) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    client.commit(Transaction::new().put("row", "1")).await.unwrap();
    for place in 0..3 {
        members.kill_member(place).unwrap();
        assert_eq!(client.read_key("row").await.unwrap().unwrap().value, "1");
        members.restart_member(place).unwrap();
        wait_until_ready(&client).await;
    }
    // One that has its connections open, and answers nothing.
    for place in 0..3 {
        members.pause_member(place).unwrap();
        let asked = Instant::now();
        assert_eq!(client.read_key("row").await.unwrap().unwrap().value, "1");
        assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
        members.resume_member(place).unwrap();
        wait_until_ready(&client).await;
    }
}

#[tokio::test]
async fn a_transaction_is_carried_out_where_what_it_compares_holds() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let mut make = Transaction::new();
    make.if_created_at("row", 0).put("row", "1").otherwise_read("row");
    let made = client.commit(&make).await.unwrap();
    assert!(made.is_done);
    let refused = client.commit(&make).await.unwrap();
    assert!(!refused.is_done);
    let row = &refused.reads[0].records[0];
    assert_eq!((&row.value[..], row.mod_revision), (&b"1"[..], made.revision));
    let mut change = Transaction::new();
    change.if_changed_at("row", made.revision).put("row", "2").read("row");
    assert_eq!(client.commit(&change).await.unwrap().reads[0].records[0].value, "2");
    assert!(!client.commit(&change).await.unwrap().is_done);
}

#[tokio::test]
async fn pages_of_keys_are_all_of_one_revision() {
    let Some(members) = start_members(1) else { return };
    let client = client_of(&members);
    wait_until_ready(&client).await;
    let mut revision = 0;
    for part in 0..3 {
        let mut write = Transaction::new();
        for number in 0..100 {
            write.put(&format!("rows/{part}{number:02}"), format!("{number}"));
        }
        revision = client.commit(&write).await.unwrap().revision;
    }
    client.commit(Transaction::new().remove_prefix("rows/").put("rows0", "")).await.unwrap();
    let kept = client.read_prefix_at("rows/", revision).await.unwrap();
    assert_eq!(kept.len(), 300);
    assert!(kept.is_sorted_by_key(|record| record.key.clone()));
    assert_eq!(kept[299].value, "99");
    assert_eq!(client.read_prefix_at("rows/", revision + 1).await.unwrap(), []);
}

#[tokio::test]
async fn members_that_are_not_there_are_named() {
    let endpoints = vec!["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()];
    let client = EtcdClient::new(&EtcdConfig { endpoints, tls: None }).unwrap();
    let asked = Instant::now();
    let error = client.read_key("row").await.unwrap_err();
    assert!(asked.elapsed() < Duration::from_secs(7), "{:?}", asked.elapsed());
    assert_eq!(error.kind(), ErrorKind::Lost);
    let message = error.to_string();
    assert!(message.starts_with("etcd at http://127.0.0.1:"), "{message}");
    assert!(message.contains("Connection refused"), "{message}");
}

/// Writes an authority and a certificate of it, for this machine.
fn write_certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap();
    for (name, content) in
        [("ca.pem", own.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())]
    {
        std::fs::write(folder.join(name), content).unwrap();
    }
}

#[tokio::test]
async fn with_tls_both_ends_show_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
    write_certificates(&ours);
    write_certificates(&others);
    let files = EtcdServerFiles {
        certificate: ours.join("cert.pem"),
        key: ours.join("key.pem"),
        client_authority: ours.join("ca.pem"),
    };
    let members = match EtcdMembers::start_with_tls(1, files) {
        Ok(members) => members,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return eprintln!("SKIPPED: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let connect = |authority: &Path, identity: Option<&Path>| {
        let identity = identity.map(|folder| EtcdIdentityFiles {
            certificate: folder.join("cert.pem"),
            key: folder.join("key.pem"),
        });
        let tls = EtcdTlsFiles { authority: authority.join("ca.pem"), identity };
        EtcdClient::new(&EtcdConfig { endpoints: members.urls(), tls: Some(tls) })
    };
    let client = connect(&ours, Some(&ours)).unwrap();
    wait_until_ready(&client).await;
    // Each is tried for as long as any other call.
    let refuse = async |authority: &Path, identity: Option<&Path>| {
        let client = connect(authority, identity).unwrap();
        let error = client.read_key("row").await.unwrap_err().to_string();
        assert!(error.starts_with("etcd at https://127.0.0.1:"), "{error}");
        error
    };
    // Members that refuse a certificate close the connection, and may do so without a reason.
    let (theirs, _, _) = tokio::join!(
        refuse(&others, Some(&ours)),
        refuse(&ours, Some(&others)),
        refuse(&ours, None)
    );
    assert!(theirs.contains("invalid peer certificate"), "{theirs}");
    let error = connect(&folder.path().join("none"), None).unwrap_err().to_string();
    assert!(error.contains("etcd's authority") && error.contains("none/ca.pem"), "{error}");
}
