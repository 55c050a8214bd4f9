use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef.0.web:1";

fn ticket(name: &str) -> (Key, Ticket) {
    let key = Key::new("rwlock", name).expect("valid");
    let id = AcquisitionId::of_ticket(ID).expect("that of a ticket");
    let ticket = Ticket::new(&key, Mode::Write, (&id, FencingToken::ZERO), Duration::from_secs(60));
    (key, ticket)
}

#[test]
fn debug_output_has_no_secret() {
    let (_, ticket) = ticket("cfg");
    let text = format!("{ticket:?}");
    assert!(text.contains("cfg") && !text.contains(&ID[..32]), "{text}");
}

#[test]
fn ids_that_are_none_of_a_ticket_are_refused() {
    for id in ["", "0", ID.split_at(31).1, &ID.replace(".0.", ".1."), &ID.replace("web", "w b"), &ID[1..]] {
        let (key, ticket) = ticket("cfg");
        let forged = Ticket { id: id.to_owned(), ..ticket };
        let refused = forged.id_for(&key, Mode::Write).expect_err(id);
        assert!(matches!(refused, Error::InvalidOption { option: "ticket", .. }), "{refused:?}");
    }
}

#[test]
fn ticket_opens_no_other_lock_and_no_other_version() {
    let (key, good) = ticket("cfg");
    let (other, _) = ticket("other");
    assert!(good.id_for(&key, Mode::Write).is_ok());
    let named = Ticket { name: "other".to_owned(), ..good.clone() };
    let newer = Ticket { version: VERSION + 1, ..good.clone() };
    for (ticket, key) in [(&good, &other), (&named, &other), (&newer, &key)] {
        let refused = ticket.id_for(key, Mode::Write).expect_err("it is for something else");
        assert!(matches!(refused, Error::InvalidOption { option: "ticket", .. }), "{refused:?}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn ticket_survives_json_and_a_damaged_one_is_refused() {
    let (_, ticket) = ticket("cfg");
    let json = serde_json::to_string(&ticket).expect("JSON");
    assert_eq!(serde_json::from_str::<Ticket>(&json).expect("the same"), ticket);
    for (part, damaged) in [("\"write\"", "\"all\""), ("\"token\":0", "\"token\":-1"), ("\"version\":1,", "")] {
        assert!(json.contains(part), "{json}");
        assert!(serde_json::from_str::<Ticket>(&json.replace(part, damaged)).is_err(), "{damaged}");
    }
}
