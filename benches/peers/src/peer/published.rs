//! The hash scheme as it was published. A client that waits repeats its request again and again, as in the articles.

use std::time::SystemTime;

use redis::Script;

use super::*;

const PAUSE: Duration = Duration::from_millis(10);

struct Published {
    connection: MultiplexedConnection,
    scripts: [Script; 4],
}

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    let scripts = [
        include_str!("../../../../tests/lua/published/read_lock.lua"),
        include_str!("../../../../tests/lua/published/write_lock.lua"),
        include_str!("../../../../tests/lua/published/read_unlock.lua"),
        include_str!("../../../../tests/lua/published/write_unlock.lua"),
    ];
    Box::new(Published { connection: bare_connection(url).await, scripts: scripts.map(Script::new) })
}

impl Client for Published {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        let (lock, unlock) = match mode {
            Mode::Read => (&self.scripts[0], &self.scripts[2]),
            Mode::Write => (&self.scripts[1], &self.scripts[3]),
        };
        let mut connection = self.connection.clone();
        loop {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            let now_ms = u64::try_from(now.as_millis()).expect("not so late");
            let mut ask = lock.key(name);
            ask.arg(10_000).arg(1_000).arg(3_000).arg(now_ms);
            if ask.invoke_async::<bool>(&mut connection).await.expect("an answer") {
                let (unlock, name) = (unlock.clone(), name.to_owned());
                return Held::new(async move || {
                    let mut ask = unlock.key(&name);
                    ask.arg(now_ms).invoke_async::<()>(&mut connection).await.expect("an answer");
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
