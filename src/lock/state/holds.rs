//! Holds of one lock in this process. Mostly there is one hold, which is stored in the cell itself.

use super::Entry;

#[derive(Clone, Hash, Debug)]
pub(super) struct Holds<H> {
    first: Option<Entry<H>>,
    others: Vec<Entry<H>>,
}

impl<H> Default for Holds<H> {
    fn default() -> Self {
        Self { first: None, others: Vec::new() }
    }
}

impl<H> Holds<H> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<H>> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn listed_mut(&mut self) -> impl Iterator<Item = &mut Entry<H>> {
        self.first.iter_mut().chain(&mut self.others).filter(|entry| entry.is_listed)
    }

    /// Returns the first result of `find`. This function does not chain iterators, because a chain would make joins
    /// slower.
    #[inline]
    pub(super) fn find_map<T>(&mut self, mut find: impl FnMut(&mut Entry<H>) -> Option<T>) -> Option<T> {
        let found = self.first.as_mut().and_then(&mut find);
        found.or_else(|| self.others.iter_mut().find_map(find))
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Entry<H>> {
        match &mut self.first {
            Some(entry) if entry.number == number => Some(entry),
            _ => self.others.iter_mut().find(|entry| entry.number == number),
        }
    }

    pub(super) fn push(&mut self, entry: Entry<H>) {
        match &mut self.first {
            None => self.first = Some(entry),
            Some(_) => self.others.push(entry),
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Entry<H>> {
        if let Some(first) = self.first.take_if(|entry| entry.number == number) {
            return Some(first);
        }
        let at = self.others.iter().position(|entry| entry.number == number)?;
        Some(self.others.swap_remove(at))
    }
}
