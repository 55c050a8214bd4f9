use super::*;

#[cfg(feature = "serde")]
#[test]
fn configurations_read_as_documented() {
    use serde::Deserialize;
    use serde::de::value::{Error, MapAccessDeserializer, MapDeserializer};

    let node = MapDeserializer::<_, Error>::new([("node", "redis://a")].into_iter());
    let node = Topology::deserialize(MapAccessDeserializer::new(node)).expect("a node");
    assert_eq!(node, Topology::node("redis://a"));
    let cluster = MapDeserializer::<_, Error>::new([("cluster", vec!["redis://a", "redis://b"])].into_iter());
    let cluster = Topology::deserialize(MapAccessDeserializer::new(cluster)).expect("a cluster");
    assert_eq!(cluster, Topology::cluster(["redis://a", "redis://b"]));
    assert_ne!(cluster.clone().tls(Tls::new().ca_pem("x")), cluster);
    let proxy = MapDeserializer::<_, Error>::new([("proxy", "redis://a")].into_iter());
    let proxy = Topology::deserialize(MapAccessDeserializer::new(proxy)).expect("a proxy");
    assert_eq!(proxy, Topology::proxy("redis://a"));
}

#[test]
fn list_of_any_kind_is_a_cluster() {
    let cluster = Topology::cluster(["redis://a", "redis://b"]);
    let (texts, strings) = (["redis://a", "redis://b"], ["redis://a".to_owned(), "redis://b".to_owned()]);
    let lists: [Topology; 7] = [
        texts.into(),
        texts.as_slice().into(),
        texts.to_vec().into(),
        strings.clone().into(),
        strings.as_slice().into(),
        strings.to_vec().into(),
        (&strings.to_vec()).into(),
    ];
    for list in lists {
        assert_eq!(list, cluster);
    }
}

#[test]
fn debug_shows_no_secrets() {
    let secret = "s3cr@t";
    let urls = [
        format!("redis://user:{secret}@host:1/2"),
        format!("redis://:{secret}@host:1"),
        format!("rediss://host:1/?password={secret}"),
        format!("redis+unix:///s?user=u&pass=abc@{secret}"),
        secret.to_owned(),
    ];
    for url in urls {
        let shown = format!("{:?} {:?}", Topology::node(&*url), Topology::cluster([&*url]));
        let sentinel = Topology::sentinel("main", [&*url]);
        let shown = format!(
            "{shown} {:?} {sentinel:?} {:?}",
            Topology::proxy(&*url),
            sentinel.clone().primary_credentials(secret, secret)
        );
        assert!(!shown.contains("s3cr"), "{shown}");
    }
}
