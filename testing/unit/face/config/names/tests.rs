use super::*;

#[test]
fn variables_of_kubernetes_and_docker_are_theirs() {
    for name in [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_REDIS",
        "PORT",
        "PORT_6379_TCP",
        "PORT_6379_TCP_PROTO",
        "PORT_6379_TCP_PORT",
        "PORT_6379_TCP_ADDR",
        "PORT_53_UDP_ADDR",
        // Variables of services with the names `rwlock-node` and `rwlock-lease`.
        "NODE_SERVICE_HOST",
        "NODE_PORT",
        "NODE_PORT_6379_TCP_ADDR",
        "LEASE_SERVICE_PORT_HTTP",
        "NAME",
        "FENCING_TOKEN",
        "NAME_1",
        "FENCING_TOKEN_12",
        "CONFIG",
        "MANAGER",
    ] {
        assert_eq!(owner_of(name), VariableOwner::Others, "{name}");
    }
    for field in FIELDS {
        assert!(owner_of(field) == VariableOwner::Config && !is_link(field), "{field}");
    }
}

#[test]
fn misspelt_fields_are_told_from_names_of_others() {
    for (name, field) in [
        ("LEESE", "LEASE"),
        ("LAESE", "LEASE"),
        ("LEASE_", "LEASE"),
        ("lease", "LEASE"),
        ("NODES", "NODE"),
        ("KEYPREFIX", "KEY_PREFIX"),
        ("CLUSTERS", "CLUSTER"),
        ("WAIT_TIMOUT", "WAIT_TIMEOUT"),
        ("SENTINEL_URL", "SENTINEL_URLS"),
    ] {
        assert_eq!(owner_of(name), VariableOwner::Misspelt(field), "{name}");
    }
    for name in ["", "LEVEL", "LOG", "HOME", "ENVIRONMENT", "PORTS", "SERVICE", "NAME_", "NAME_OF_1"] {
        assert_eq!(owner_of(name), VariableOwner::Unknown, "{name}");
    }
}
