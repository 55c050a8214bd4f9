//! Published messages that the proxy drops.

use super::wire;

/// Messages that the proxy still has to drop.
#[derive(Default)]
pub struct LostMessages {
    of: Vec<Loss>,
}

struct Loss {
    /// Text that the channel's name contains.
    channel: Vec<u8>,
    left: usize,
    lost: usize,
}

impl LostMessages {
    pub fn lose(&mut self, channel: Vec<u8>, count: usize) {
        self.of.push(Loss { channel, left: count, lost: 0 });
    }

    pub fn count(&self, channel: &[u8]) -> usize {
        self.of.iter().filter(|loss| loss.channel == channel).map(|loss| loss.lost).sum()
    }

    /// Returns true if the proxy must drop this frame from a server. Only a push of version 3 is certainly a message.
    pub fn takes(&mut self, frame: &[u8]) -> bool {
        let (kind, [word, channel]) = wire::head(frame);
        if kind != b'>' || !matches!(word, b"message" | b"smessage") {
            return false;
        }
        let is_in = |part: &[u8]| part.is_empty() || channel.windows(part.len()).any(|window| window == part);
        let Some(loss) = self.of.iter_mut().find(|loss| loss.left > 0 && is_in(&loss.channel)) else {
            return false;
        };
        loss.left -= 1;
        loss.lost += 1;
        true
    }
}
