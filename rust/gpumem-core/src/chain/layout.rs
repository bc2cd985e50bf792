//! Which options count, which regions are alike, and in which order the options of alike regions go.

use super::{ChainOption, Region};

/// An option that no other of its region dominates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    /// Place in the order of the run's options.
    pub(super) rank: usize,
    /// Index in [`Region::options`].
    pub(super) index: usize,
    pub(super) option: ChainOption,
}

/// What can be done at a region.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// By rank.
    pub(super) moves: Vec<Move>,
    /// Ranks in the run: some have no move near the run's end, where a long option does not fit.
    pub(super) ranks: usize,
    /// First region of the run.
    pub(super) run_start: usize,
    /// Region after the run's last.
    pub(super) run_end: usize,
}

impl Position {
    /// The least rank that may follow a move of `rank` from here to `target`.
    pub(super) const fn rank_after(&self, rank: usize, target: usize) -> usize {
        if target < self.run_end { rank } else { 0 }
    }
}

/// Every position of a chain.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) positions: Vec<Position>,
}

impl Layout {
    pub(super) fn new(regions: &[Region]) -> Self {
        let moves: Vec<Vec<Move>> = regions.iter().map(useful_moves).collect();
        let mut positions = Vec::with_capacity(regions.len());
        while positions.len() < regions.len() {
            let start = positions.len();
            let (length, step) = run_from(&moves[start..]);
            let mut ranked: Vec<ChainOption> = moves[start].iter().map(|kept| kept.option).collect();
            ranked.sort_by_key(|option| (place(option, step), *option));
            for (offset, kept) in moves[start..start + length].iter().enumerate() {
                let mut kept = kept.clone();
                for one in &mut kept {
                    one.rank = ranked.iter().position(|option| alike(option, &one.option)).unwrap_or(0);
                }
                kept.sort_by_key(|one| one.rank);
                debug_assert!(offset == 0 || kept.len() <= ranked.len());
                let run_end = start + length;
                positions.push(Position { moves: kept, ranks: ranked.len(), run_start: start, run_end });
            }
        }
        Self { positions }
    }
}

/// The options that no other of equal span dominates, one of each; by span, left bytes and cost, which tell them apart.
fn useful_moves(region: &Region) -> Vec<Move> {
    let options = &region.options;
    let dominates = |(other, a): (usize, &ChainOption), (index, b): (usize, &ChainOption)| {
        a.span == b.span
            && a.left_bytes <= b.left_bytes
            && a.extra_bytes <= b.extra_bytes
            && a.cost <= b.cost
            && (a != b || other < index)
    };
    let mut moves: Vec<Move> = options
        .iter()
        .enumerate()
        .filter(|&this| !options.iter().enumerate().any(|other| other.0 != this.0 && dominates(other, this)))
        .map(|(index, &option)| Move { rank: 0, index, option })
        .collect();
    moves.sort_by_key(|kept| (kept.option.span, kept.option.left_bytes, kept.option.cost));
    moves
}

fn alike(a: &ChainOption, b: &ChainOption) -> bool {
    (a.span, a.left_bytes, a.cost) == (b.span, b.left_bytes, b.cost)
}

/// Length of the run that begins here and by how many bytes its extra bytes fall from one region to the next.
///
/// At offset `p` of a run of length `k`, the options are those of the first region that cover at most `k - p` regions,
/// with `p * step` extra bytes less.
fn run_from(moves: &[Vec<Move>]) -> (usize, i128) {
    let [first, second, ..] = moves else { return (1, 0) };
    let longest = first.iter().map(|kept| kept.option.span).max().unwrap_or(1);
    let extra = |moves: &[Move]| moves.first().map_or(0, |kept| i128::from(kept.option.extra_bytes));
    let step = extra(first) - extra(second);
    let continues = |(offset, here): (i128, &Vec<Move>), longest: usize| {
        let mut expected = first.iter().filter(|kept| kept.option.span <= longest);
        here.iter().all(|kept| {
            expected.next().is_some_and(|template| {
                alike(&template.option, &kept.option)
                    && i128::from(template.option.extra_bytes) - i128::from(kept.option.extra_bytes) == offset * step
            })
        }) && expected.next().is_none()
    };
    let whole = (0_i128..).zip(moves).take_while(|&at| continues(at, longest)).count();
    let length = whole + longest - 1;
    let tail_fits = length <= moves.len()
        && (0_i128..).zip(moves).zip(0..length).skip(whole).all(|(at, offset)| continues(at, length - offset));
    if length > 1 && tail_fits { (length, step) } else { (1, 0) }
}

/// Where an option goes among the others of its run for the least peak, whatever their numbers.
///
/// Neighbours `a, b` need `max(e_a, d_a + e_b)` beyond what is there, with `e` the extra bytes and `d` the change of
/// what is there (left bytes less the fall of the extra bytes). Options that shrink it go first, the least `e` ahead;
/// then those that grow it, the largest `e - d` ahead: no exchange of neighbours improves on it.
fn place(option: &ChainOption, step: i128) -> (bool, i128) {
    let extra = i128::from(option.extra_bytes);
    let span = i128::try_from(option.span).unwrap_or(i128::MAX);
    let change = i128::from(option.left_bytes).saturating_sub(span.saturating_mul(step));
    if change <= 0 { (false, extra) } else { (true, change.saturating_sub(extra)) }
}
