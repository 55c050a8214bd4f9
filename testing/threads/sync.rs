//! Mutexes and atomic variables for tests. A thread that belongs to no scene uses them as it would use those that ship.
#![allow(unreachable_pub)] // the module is private to the tests

use std::any::type_name;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{self, Ordering};

use super::scheduler::{self, SharedAccess};

/// Mutex whose accesses are points of the scheduler.
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// Right to use the value of a mutex. The end of the right is a point of the scheduler, too.
pub struct MutexGuard<'a, T> {
    /// Present until the drop.
    value: Option<parking_lot::MutexGuard<'a, T>>,
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        scheduler::access(SharedAccess::Lock, type_name::<T>());
        loop {
            if let Some(guard) = self.guard(self.0.try_lock()) {
                return guard;
            }
            if !scheduler::await_free(self.address(), type_name::<T>()) {
                return self.guard(Some(self.0.lock())).expect("it is locked");
            }
        }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        scheduler::access(SharedAccess::TryLock, type_name::<T>());
        self.guard(self.0.try_lock())
    }

    fn guard<'a>(&'a self, value: Option<parking_lot::MutexGuard<'a, T>>) -> Option<MutexGuard<'a, T>> {
        let value = value?;
        scheduler::on_lock();
        Some(MutexGuard { value: Some(value), mutex: self })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        scheduler::on_unlock(self.mutex.address(), type_name::<T>());
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is locked")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines a wrapper of an atomic type, with these methods that change its value.
macro_rules! atomic {
    ($name:ident, $value:ty, $($change:ident),*) => {
        /// Atomic variable whose accesses are points of the scheduler.
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn load(&self, ordering: Ordering) -> $value {
                scheduler::access(SharedAccess::Load, stringify!($name));
                self.0.load(ordering)
            }

            pub fn store(&self, value: $value, ordering: Ordering) {
                scheduler::access(SharedAccess::Store, stringify!($name));
                self.0.store(value, ordering);
            }

            $(
                pub fn $change(&self, value: $value, ordering: Ordering) -> $value {
                    scheduler::access(SharedAccess::Swap, stringify!($name));
                    self.0.$change(value, ordering)
                }
            )*
        }
    };
}

atomic!(AtomicBool, bool, swap);
atomic!(AtomicU64, u64, fetch_add);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub);
