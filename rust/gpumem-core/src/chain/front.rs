//! Pareto fronts of what the rest of a chain needs and costs.

use super::layout::Move;

/// One way through the rest of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    /// Peak bytes beyond what is there at its beginning.
    pub(super) peak_bytes: u64,
    pub(super) cost: u64,
}

/// Labels of which none is as good as another in both: bytes rise, costs fall.
#[derive(Debug, Clone, Default)]
pub(super) struct Front {
    pub(super) labels: Vec<Label>,
}

impl Front {
    /// The front at the end of the chain.
    pub(super) fn end(tail_bytes: u64) -> Self {
        Self { labels: vec![Label { peak_bytes: tail_bytes, cost: 0 }] }
    }

    /// The cheapest label that needs at most `room_bytes`.
    pub(super) fn within(&self, room_bytes: u64) -> Option<Label> {
        let fitting = self.labels.partition_point(|label| label.peak_bytes <= room_bytes);
        fitting.checked_sub(1).map(|last| self.labels[last])
    }

    /// These labels with `step` before them, as far as they need at most `cap_bytes`.
    pub(super) fn after<'a>(&'a self, step: &'a Move, cap_bytes: u64) -> impl Iterator<Item = Label> + 'a {
        let option = step.option;
        // What needs no more than the step itself needs: only the cheapest of it counts.
        let within = option.extra_bytes.checked_sub(option.left_bytes);
        let covered = within.map_or(0, |room| self.labels.partition_point(|label| label.peak_bytes <= room));
        self.labels[covered.saturating_sub(1)..].iter().map_while(move |label| {
            let peak_bytes = option.extra_bytes.max(option.left_bytes.checked_add(label.peak_bytes)?);
            let cost = option.cost.checked_add(label.cost)?;
            (peak_bytes <= cap_bytes).then_some(Label { peak_bytes, cost })
        })
    }

    /// The best of these labels and `others`, which are in order as well.
    pub(super) fn merged(&self, others: impl Iterator<Item = Label>) -> Self {
        let mut labels: Vec<Label> = Vec::with_capacity(self.labels.len() + 16);
        let mut push = |label: Label| {
            if labels.last().is_none_or(|last| label.cost < last.cost) {
                labels.push(label);
            }
        };
        let mut ours = self.labels.iter().copied().peekable();
        for other in others {
            while let Some(own) = ours.next_if(|own| (own.peak_bytes, own.cost) <= (other.peak_bytes, other.cost)) {
                push(own);
            }
            push(other);
        }
        ours.for_each(push);
        Self { labels }
    }

    /// Thins to about `limit` labels, spaced evenly in cost. Returns by how much a label that is left may exceed one
    /// that needs as many bytes and was dropped.
    ///
    /// Of neighbours that differ by less than that, the one with the fewest bytes stays; with `relaxed`, at the cost of
    /// their cheapest, so that the front bounds every label from below and nothing is exceeded.
    pub(super) fn thin(&mut self, limit: usize, relaxed: bool) -> u64 {
        let [first, .., last] = self.labels[..] else { return 0 };
        if self.labels.len() <= limit {
            return 0;
        }
        let width = (first.cost - last.cost) / u64::try_from(limit).unwrap_or(u64::MAX) + 1;
        let mut kept: Vec<Label> = Vec::with_capacity(limit + 2);
        let mut bucket = u64::MAX;
        for &label in &self.labels {
            let its_bucket = (label.cost - last.cost) / width;
            if its_bucket != bucket {
                kept.push(label);
                bucket = its_bucket;
            } else if let (true, Some(group)) = (relaxed, kept.last_mut()) {
                group.cost = label.cost;
            }
        }
        if kept.last().is_some_and(|group| group.cost > last.cost) {
            kept.push(last);
        }
        self.labels = kept;
        if relaxed { 0 } else { width - 1 }
    }
}
