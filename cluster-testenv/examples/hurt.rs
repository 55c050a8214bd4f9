//! Shows a late reply, and a failover while it is on its way.
//!
//!     cargo run -p cluster-testenv --example hurt
//!
//! A client adds one to a counter. The server does it, but the reply stays in the proxy. Meanwhile a replica takes the
//! primary's place. Does the client still get the answer, is the answer true, and what does the next request of the
//! client return?

use std::time::Duration;

use cluster_testenv::{Client, Cluster, Error, Matcher, Server};

const BOUND: Duration = Duration::from_secs(10);

fn main() -> Result<(), Error> {
    let cluster = Cluster::builder(Server::Redis70).proxied().start()?;
    let slot = cluster.keyslot("counter");
    let old = cluster.primary_of_slot(slot);
    println!("the counter is on {}, which clients reach through {}", old.addr(), old.proxy().addr());

    let mut client = Client::connect_within(old.proxy().addr(), BOUND)?;
    let held = old.proxy().hold_reply(Matcher::command("INCR").and("counter"));
    client.send(&["INCR", "counter"])?;
    held.wait_applied(BOUND)?;
    println!("the server says {:?}, the client has heard nothing", old.command(&["GET", "counter"])?);

    let new = cluster.failover(old)?;
    println!("{} is primary now and says {:?}", new.addr(), new.command(&["GET", "counter"])?);

    held.release();
    println!("the client hears {:?}, from a server that is primary no more", client.receive()?);
    println!("and when it goes on: {:?}", client.command(&["INCR", "counter"])?);

    new.proxy().cut_after_apply("counter");
    let mut client = Client::connect_within(new.proxy().addr(), BOUND)?;
    println!("a reply that is lost: {:?}", client.command(&["INCR", "counter"]).map_err(|error| error.to_string()));
    println!("and yet the server says {:?}", new.command(&["GET", "counter"])?);
    Ok(())
}
