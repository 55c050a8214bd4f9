//! Servers behind TLS: each step on the way to them has a time of its own, and an error names it.

use std::net::SocketAddr;

use cluster_testenv::Certificates;

use super::tests::{AT_ONCE, RESPONSE_TIMEOUT, call};
use super::*;
use crate::base::error::Refusal;
use crate::base::topology::{Access, Tls};
use crate::net::address::parse_one;
use crate::net::fake::{self, Fake, Pace};
use crate::net::sentinels::Sentinels;

fn secrets(tls: &Tls) -> Arc<Secrets> {
    Arc::new(Secrets::new(tls, &Access::default(), &BackgroundRuntime::Process).expect("no files"))
}

fn node(addr: SocketAddr, tls: &Tls) -> Node {
    let info = parse_one(&format!("rediss://{addr}"), tls).expect("a URL");
    let options = Options { response_timeout: RESPONSE_TIMEOUT, ..Options::default() };
    let limits = Limits::new(&options, Role::Standalone);
    let setup = NodeSetup { limits, secrets: secrets(tls), ..NodeSetup::for_test() };
    Node::new(&addr.to_string(), info, setup)
}

/// Returns the words of a fault and of all its sources.
fn words(fault: Fault) -> String {
    let Fault::NotSent(Some(source)) = fault else { panic!("{fault:?}") };
    let sources = iter::successors(Some(&*source as &dyn std::error::Error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn slow_name_is_waited_for_with_tls() {
    let (fake, certificates) = (Fake::start(AT_ONCE).await, Certificates::make());
    for config in [fake::tls::config(&certificates), fake::tls::old_config(&certificates)] {
        let addr = fake::tls::before(fake.addr, config).await;
        let node = node(addr, &fake::tls::trusting(&certificates));
        names::set(node.address(), vec![addr], RESPONSE_TIMEOUT * 6 / 5);
        node.ready().await.expect("600 ms are not too many");
        call(&node).await.expect("answered");
    }
}

#[tokio::test]
async fn step_that_takes_too_long_with_tls_is_named() {
    let (silent, tls) = (Fake::start(Pace::Never).await, fake::tls::trusting(&Certificates::make()));
    let addr = silent.addr;
    let slow = node(addr, &tls);
    names::set(slow.address(), vec![addr], RESPONSE_TIMEOUT * 20);
    let said = words(call(&slow).await.expect_err("no name is found"));
    assert!(said.contains("name resolution: no answer within") && said.contains("`response_timeout`"), "{said}");
    names::set(slow.address(), vec![addr], Duration::ZERO);
    let said = words(call(&node(addr, &tls)).await.expect_err("nobody shakes hands"));
    assert!(said.contains("TLS handshake: no answer within 1s") && said.contains("`response_timeout`"), "{said}");
    let (fake, certificates) = (Fake::start(Pace::Never).await, Certificates::make());
    let addr = fake::tls::before(fake.addr, fake::tls::config(&certificates)).await;
    let said = words(call(&node(addr, &fake::tls::trusting(&certificates))).await.expect_err("it says nothing"));
    assert!(said.starts_with("greeting: no answer within 500ms") && said.contains("`response_timeout`"), "{said}");
}

/// A Sentinel is reached like any server.
#[tokio::test]
async fn step_on_the_way_to_a_sentinel_is_named() {
    let (silent, tls) = (Fake::start(Pace::Never).await, fake::tls::trusting(&Certificates::make()));
    let addr = silent.addr;
    for (scheme, step) in
        [("redis", "greeting: no answer within 500ms"), ("rediss", "TLS handshake: no answer within 1s")]
    {
        let tls = if scheme == "redis" { Tls::new() } else { tls.clone() };
        let info = parse_one(&format!("{scheme}://{addr}"), &tls).expect("a URL");
        let sentinels = Sentinels::new("main", vec![info], secrets(&tls), RESPONSE_TIMEOUT);
        let said = words(sentinels.primary().await.expect_err("it says nothing"));
        assert!(
            said.contains(step) && said.contains("`response_timeout`") && said.contains(&addr.to_string()),
            "{said}"
        );
    }
}

#[tokio::test]
async fn certificate_is_checked_for_the_name_that_was_given() {
    let (fake, certificates) = (Fake::start(AT_ONCE).await, Certificates::make());
    let addr = fake::tls::before(fake.addr, fake::tls::config(&certificates)).await;
    let tls = fake::tls::trusting(&certificates);
    call(&node(addr, &tls.clone().server_name("localhost"))).await.expect("one of its names");
    let strange = call(&node(addr, &tls.server_name("locks.example.com"))).await;
    let Err(Fault::Refused { refusal: Refusal::Untrusted, message }) = strange else { panic!("{strange:?}") };
    assert!(message.contains("locks.example.com"), "{message}");
}
