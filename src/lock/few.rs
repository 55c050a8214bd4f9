//! Collection for the effects of an event. Most events have at most one effect, and then the collection allocates no
//! memory.

use std::ops::Deref;

#[derive(Debug, Default)]
pub(crate) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(item),
            Self::One(first) => Self::Many(vec![first, item]),
            Self::Many(mut items) => {
                items.push(item);
                Self::Many(items)
            }
        };
    }

    /// Calls `does` for each item, in the order of insertion.
    #[inline]
    pub(crate) fn each(self, does: impl FnMut(T)) {
        match self {
            Self::None => {}
            Self::One(item) => std::iter::once(item).for_each(does),
            Self::Many(items) => items.into_iter().for_each(does),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_there_in_the_order_in_which_they_came() {
        for count in 0..4 {
            let mut few = Few::None;
            (0..count).for_each(|item| few.push(item));
            assert_eq!(*few, Vec::from_iter(0..count));
            let mut seen = Vec::new();
            few.each(|item| seen.push(item));
            assert_eq!(seen, Vec::from_iter(0..count));
        }
    }
}
