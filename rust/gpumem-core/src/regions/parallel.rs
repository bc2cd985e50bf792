//! The same work on several things, on as many cores as there are.

use std::num::NonZero;
use std::thread;

/// More threads than that wait for each other's memory.
const MOST_THREADS: usize = 8;

/// What `work` makes of each of the items, in their order, whatever the number of threads.
pub(super) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MOST_THREADS).min(items.len());
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let work = &work;
    let part = |first: usize| -> Vec<R> { items.iter().skip(first).step_by(threads).map(work).collect() };
    let part = &part;
    let mut parts: Vec<_> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|first| scope.spawn(move || part(first))).collect();
        let own = part(0);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(others).map(Vec::into_iter).collect()
    });
    (0..items.len()).filter_map(|index| parts[index % threads].next()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn keeps_the_order() {
        for count in [0_usize, 1, 2, 7, 100] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(
                super::map(&items, |&item| item * item),
                items.iter().map(|item| item * item).collect::<Vec<_>>()
            );
        }
    }
}
