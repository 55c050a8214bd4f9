//! Queue of items that are due at moments, the earliest first.

use std::collections::BTreeMap;

use crate::base::lease::Moment;

/// Queue of items by their deadlines. Items with equal deadlines come in the order of their insertion.
#[derive(Debug)]
pub(crate) struct DeadlineQueue<T> {
    items: BTreeMap<Place, T>,
    last_number: u64,
}

/// Place of an item in its queue: the deadline, and a number that no other item of the queue has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub(crate) at: Moment,
    pub(crate) number: u64,
}

impl<T> Default for DeadlineQueue<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), last_number: 0 }
    }
}

impl<T> DeadlineQueue<T> {
    pub(crate) fn insert(&mut self, at: Moment, item: T) -> Place {
        self.last_number += 1;
        let place = Place { at, number: self.last_number };
        self.items.insert(place, item);
        place
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        self.items.get_mut(&place)
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        self.items.remove(&place)
    }

    /// Returns the earliest deadline, or [`Moment::NEVER`] if the queue is empty.
    pub(crate) fn next(&self) -> Moment {
        self.items.first_key_value().map_or(Moment::NEVER, |(place, _)| place.at)
    }

    /// Takes the first item.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        self.items.pop_first().map(|(_, item)| item)
    }

    /// Takes all items that are due by `by`, the earliest first.
    pub(crate) fn take_due(&mut self, by: Moment) -> Vec<T> {
        if self.next() > by {
            return Vec::new();
        }
        let later = self.items.split_off(&Place { at: by, number: u64::MAX });
        std::mem::replace(&mut self.items, later).into_values().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn items_come_by_their_deadlines_and_then_in_the_order_of_their_insertion() {
        let mut queue = DeadlineQueue::default();
        assert_eq!(queue.next(), Moment::NEVER);
        for (moment, item) in [(3, "d"), (1, "a"), (2, "c"), (1, "b")] {
            queue.insert(at(moment), item);
        }
        assert_eq!(queue.next(), at(1));
        assert_eq!(queue.take_due(at(0)), Vec::<&str>::new());
        assert_eq!(queue.take_due(at(2)), ["a", "b", "c"]);
        assert_eq!((queue.pop_first(), queue.pop_first()), (Some("d"), None));
    }

    #[test]
    fn removed_item_leaves_others_with_the_same_deadline() {
        let mut queue = DeadlineQueue::default();
        let (first, second) = (queue.insert(at(1), "a"), queue.insert(at(1), "b"));
        assert_eq!(queue.remove(first), Some("a"));
        assert_eq!(queue.remove(first), None);
        assert_eq!(queue.get_mut(second), Some(&mut "b"));
        assert_eq!(queue.len(), 1);
    }
}
