//! Among plans that the chain proposes, the cheapest that the allocator agrees to.

use std::collections::BTreeMap;
use std::thread;

use crate::chain::{ParetoFront, Permutations, Solution, in_cost_order, pareto};
use crate::regions::chain::RegionChain;
use crate::regions::neighbours::cheaper_neighbours;
use crate::regions::structured::{every_kth, rows};
use crate::regions::trial::Trials;

/// Actions that may be played for an answer unless the caller says otherwise: some 30 ms on one core.
const ACTIONS_PLAYED: usize = 3 << 17;
/// Up to so many plans (14 regions that are kept or checkpointed; that are kept, checkpointed, or checkpointed
/// selectively), all cheaper ones than what was found near the front are gone through, unless that takes more than so many
/// times the usual plays.
const EXHAUSTIVE: [(usize, usize); 2] = [(1 << 14, 16), (3_usize.pow(14), 4)];
/// Steps from the bytes of the best plan so far to the budget, in which cheaper plans are gone through.
const LEVELS: u64 = 8;
/// Of plans gone through, one in so many at least is expected to be worth playing; the others hold too much at once.
const PLANS_PER_PLAY: usize = 16;
/// After the bisection, equal numbers of plays go to plans on the front, with a pattern, beside the front, and next to the
/// best of them.
const WAYS_TO_LOOK: usize = 4;
/// With fewer plays than that for each, a long loop is left at what the bisection found.
const LEAST_PLAYS_OF_A_WAY: usize = 3;
/// Plans at a row's end that are tried before it is left.
const LAST_OF_A_ROW: usize = 2;
/// Steps of the bisection of the front that are always made.
const LEAST_BISECTIONS: usize = 7;
/// Steps after which a front of [`crate::chain::FRONT_LIMIT`] plans is used up.
const MOST_BISECTIONS: usize = 16;
/// Plans of least peak that are looked at for the smallest budget.
const LEAST_PEAK_PLANS: usize = 4;
/// The chain's bytes and the allocator's are not in step: plans whose sum is above the budget by less than this part of
/// it are tried too. In the models of `benchmarks/results/planner.md` the sum exceeds the live bytes by 2 % at most.
const SLACK_SHARE: u64 = 32;
/// Below so many actions a thread costs more than it saves.
const ACTIONS_OF_A_THREAD: usize = 1 << 12;
/// Plans that are played side by side, one on each of two threads, before the first is asked about.
const SIDE_BY_SIDE: usize = 2;

/// A plan that fits.
#[derive(Clone)]
pub(super) struct Chosen {
    pub(super) choice: Vec<usize>,
    pub(super) cost: u64,
    /// By the chain, no plan within the budget costs less.
    pub(super) bound: u64,
}

/// Finds one plan.
pub(super) struct Chooser<'a> {
    chain: &'a RegionChain,
    /// One for each order of a plan's options.
    trials: [Trials<'a>; 2],
    capacity_bytes: u64,
    /// What came of each plan that was played.
    known: BTreeMap<Vec<usize>, Known>,
    /// Plays of plans that were asked about. Others were played on the chance that they will be, which changes no answer.
    counted: usize,
}

/// What came of a plan.
#[derive(Clone)]
struct Known {
    /// The order in which it fits, if it does.
    fitting: Option<Vec<usize>>,
    /// Plays that are still to be counted.
    plays: usize,
}

/// How a search through plans ended.
enum Ended {
    Found(Chosen),
    AllTried,
    Stopped,
}

impl Ended {
    fn found(self) -> Option<Chosen> {
        if let Self::Found(chosen) = self { Some(chosen) } else { None }
    }
}

impl<'a> Chooser<'a> {
    pub(super) fn new(chain: &'a RegionChain, trials: Trials<'a>) -> Self {
        let capacity_bytes = trials.capacity_bytes();
        Self { chain, trials: [trials.another(), trials], capacity_bytes, known: BTreeMap::new(), counted: 0 }
    }

    /// Plans that were played.
    pub(super) fn played(&self) -> usize {
        self.trials.iter().map(|trials| trials.played).sum()
    }

    /// Plans that may be played by default.
    fn usual_plays(&self) -> usize {
        ACTIONS_PLAYED / self.actions().max(1)
    }

    fn actions(&self) -> usize {
        self.trials[0].prepared().actions()
    }

    /// The budget, and what the chain may be wrong by.
    fn near_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_add(self.capacity_bytes / SLACK_SHARE)
    }

    /// Whether there is enough to play for two threads.
    fn is_parallel(&self) -> bool {
        self.actions() >= ACTIONS_OF_A_THREAD
    }

    /// The choice with which a plan gets through: as it is, or with the options of alike regions mixed evenly, which
    /// costs the same and leaves other gaps between blocks.
    fn fitting(&mut self, solution: &Solution) -> Option<Vec<usize>> {
        if solution.peak_bytes > self.near_bytes() {
            return None;
        }
        let choice = self.chain.choice(solution);
        if !self.known.contains_key(&choice) {
            let known = if self.is_parallel() {
                self.play_orders_side_by_side(&choice)
            } else {
                play_orders(self.chain, &mut self.trials[0], &choice)
            };
            self.known.insert(choice.clone(), known);
        }
        let known = self.known.get_mut(&choice)?;
        self.counted += std::mem::take(&mut known.plays);
        known.fitting.clone()
    }

    /// Plays a plan in both orders of its options, each on a thread of its own.
    fn play_orders_side_by_side(&mut self, choice: &[usize]) -> Known {
        let mixed = self.chain.mixed(choice);
        let [first, second] = &mut self.trials;
        if mixed == choice {
            return Known { fitting: first.fits(choice).then(|| choice.to_vec()), plays: 1 };
        }
        let [fits, mixed_fits] = thread::scope(|scope| {
            let other = scope.spawn(|| second.fits(&mixed));
            [first.fits(choice), other.join().unwrap_or(false)]
        });
        let fitting = if fits { Some(choice.to_vec()) } else { mixed_fits.then_some(mixed) };
        Known { fitting, plays: 2 }
    }

    /// Plays those of some plans that were not played yet, on two threads.
    fn play_side_by_side(&mut self, solutions: &[Solution]) {
        let near_bytes = self.near_bytes();
        let near = solutions.iter().filter(|solution| solution.peak_bytes <= near_bytes);
        let mut choices: Vec<Vec<usize>> = near.map(|solution| self.chain.choice(solution)).collect();
        choices.retain(|choice| !self.known.contains_key(choice));
        if choices.len() < 2 {
            return;
        }
        let chain = self.chain;
        let [first, second] = &mut self.trials;
        let (own, others) = choices.split_at(choices.len() / 2);
        let play = |trials: &mut Trials<'_>, choices: &[Vec<usize>]| -> Vec<Known> {
            choices.iter().map(|choice| play_orders(chain, trials, choice)).collect()
        };
        let [own, others] = thread::scope(|scope| {
            let others = scope.spawn(|| play(second, others));
            [play(first, own), others.join().unwrap_or_default()]
        });
        self.known.extend(choices.into_iter().zip(own.into_iter().chain(others)));
    }

    /// The first of these plans that fits, for so many plays.
    fn first_of(&mut self, mut solutions: impl Iterator<Item = Solution>, plays: usize) -> Ended {
        if plays == 0 {
            return Ended::Stopped;
        }
        let before = self.counted;
        let at_a_time = if self.is_parallel() { SIDE_BY_SIDE } else { 1 };
        let mut seen = 0;
        loop {
            let next: Vec<Solution> = solutions.by_ref().take(at_a_time).collect();
            if next.is_empty() {
                return Ended::AllTried;
            }
            self.play_side_by_side(&next);
            for solution in next {
                if self.counted - before >= plays || seen / PLANS_PER_PLAY >= plays {
                    return Ended::Stopped;
                }
                seen += 1;
                if let Some(chosen) = self.chosen(&solution) {
                    return Ended::Found(chosen);
                }
            }
        }
    }

    /// The cheapest plan that fits.
    pub(super) fn choose(&mut self, plays: Option<usize>) -> Option<Chosen> {
        let chain = &self.chain.chain;
        let front = pareto(chain);
        let within = front.within(self.capacity_bytes).and_then(|index| front.solution(index));
        let bound = within.map_or(0, |solution| solution.cost_lower_bound);
        let usual = self.usual_plays();
        let count = self.chain.plans();
        let few = EXHAUSTIVE.iter().find(|&&(most, _)| count <= most).map(|&(_, factor)| usual.saturating_mul(factor));
        let found = self.on_front(&front, usual);
        let near = if plays.is_none() { self.near_front(&front, found, usual / WAYS_TO_LOOK) } else { found };
        let (found, complete) = match plays.or(few) {
            Some(plays) => self.through(&front, near, plays),
            None => (near, false),
        };
        let found = found?;
        Some(Chosen { bound: if complete { found.cost } else { bound.min(found.cost) }, ..found })
    }

    /// The cheapest of the plans cheaper than the best plan so far, and whether all of them were tried: by their sums, those
    /// that need little more than it come first, since the less a plan needs, the likelier it fits.
    fn through(&mut self, front: &ParetoFront<'_>, best: Option<Chosen>, plays: usize) -> (Option<Chosen>, bool) {
        let most = cost_of(best.as_ref());
        let near_bytes = self.near_bytes();
        let dearer = front.points().take_while(|&(_, point)| point >= most).last();
        let least_bytes = dearer.map_or(0, |(peak_bytes, _)| peak_bytes.min(near_bytes));
        let (mut best, mut complete) = (best, false);
        for level in 1..=LEVELS {
            let bytes = least_bytes + (near_bytes - least_bytes) / LEVELS * level;
            let bytes = if level == LEVELS { near_bytes } else { bytes };
            let share = plays / usize::try_from(LEVELS).unwrap_or(1);
            let (better, all) = self.in_order(bytes, cost_of(best.as_ref()), Permutations::Every, share);
            best = better.or(best);
            complete = all;
        }
        (best, complete)
    }

    /// What is cheaper than the best plan that the bisection found: on the front, with a pattern, beside the front, next to
    /// the best of them, for `share` plays each.
    fn near_front(&mut self, front: &ParetoFront<'_>, found: Option<Chosen>, share: usize) -> Option<Chosen> {
        if share < LEAST_PLAYS_OF_A_WAY {
            return found;
        }
        let best = self.along_rows(cost_of(found.as_ref())).or(found);
        let best = self.scan(front, cost_of(best.as_ref()), share).or(best);
        let best = self.patterned(cost_of(best.as_ref()), share).or(best);
        // Beside the front: what needs no more than the front's next cheaper plan.
        let most = cost_of(best.as_ref());
        let next = front.points().find(|&(_, point)| point < most).map_or(0, |(peak_bytes, _)| peak_bytes);
        let (beside, _) = self.in_order(next, most, Permutations::Canonical, share);
        self.next_to(beside.or(best), share)
    }

    /// Whether any plan fits, as far as [`Chooser::choose`] would find one.
    pub(super) fn any_fits(&mut self) -> bool {
        let front = pareto(&self.chain.chain);
        if least(&front).iter().any(|solution| self.fitting(solution).is_some()) {
            return true;
        }
        let usual = self.usual_plays();
        let few = self.chain.plans() <= usual;
        self.on_front(&front, usual).is_some()
            || (few && self.in_order(self.near_bytes(), u64::MAX, Permutations::Every, usual).0.is_some())
    }

    /// The first of the plans cheaper than `most` that fits, in the order of their costs, and whether all cheaper ones
    /// were tried.
    fn in_order(
        &mut self,
        near_bytes: u64,
        most: u64,
        permutations: Permutations,
        plays: usize,
    ) -> (Option<Chosen>, bool) {
        let cheaper = in_cost_order(&self.chain.chain, near_bytes, permutations);
        match self.first_of(cheaper.take_while(|solution| solution.cost < most), plays) {
            Ended::Found(chosen) => (Some(chosen), true),
            Ended::AllTried => (None, true),
            Ended::Stopped => (None, false),
        }
    }

    /// The cheapest plan of the front that fits, by bisection: along the front costs fall and bytes rise.
    ///
    /// The plans that are asked about form a tree that does not depend on the budget. Were fitting one budget to imply
    /// fitting every larger one, a larger budget would never get a slower plan: where two part, the larger one goes to the
    /// cheaper side.
    fn on_front(&mut self, front: &ParetoFront<'_>, plays: usize) -> Option<Chosen> {
        let mut found = None;
        let (mut fitting, mut failing) = (0, front.len());
        let mut middle = front.len().saturating_sub(1);
        for _ in 0..plays.clamp(LEAST_BISECTIONS, MOST_BISECTIONS) {
            if fitting >= failing {
                break;
            }
            let fits = front.solution(middle).and_then(|solution| self.chosen(&solution));
            if fits.is_some() {
                found = fits;
                fitting = middle + 1;
            } else {
                failing = middle;
            }
            middle = fitting + (failing.saturating_sub(fitting)) / 2;
        }
        found.or_else(|| least(front).iter().find_map(|solution| self.chosen(solution)))
    }

    /// The first of the front's plans cheaper than `most` that fits, from the cheapest on; of many, some at even distances.
    /// Gaps between blocks differ from plan to plan, so one may fit although its neighbours do not.
    fn scan(&mut self, front: &ParetoFront<'_>, most: u64, plays: usize) -> Option<Chosen> {
        let near_bytes = self.near_bytes();
        let open: Vec<usize> = (0..)
            .zip(front.points())
            .filter(|&(_, (peak_bytes, cost))| cost < most && peak_bytes <= near_bytes)
            .map(|(index, _)| index)
            .collect();
        let stride = open.len().div_ceil(plays.max(1)).max(1);
        let solutions = open.into_iter().rev().step_by(stride).filter_map(|index| front.solution(index));
        self.first_of(solutions, usize::MAX).found()
    }

    /// The first of the plans with a pattern cheaper than `most` that fits, from the cheapest on; of many, some.
    fn patterned(&mut self, most: u64, plays: usize) -> Option<Chosen> {
        let near_bytes = self.near_bytes();
        let mut open: Vec<Solution> = every_kth(self.chain)
            .into_iter()
            .filter(|solution| solution.cost < most && solution.peak_bytes <= near_bytes)
            .collect();
        open.sort_by(|a, b| (a.cost, a.peak_bytes, &a.choices).cmp(&(b.cost, b.peak_bytes, &b.choices)));
        open.dedup_by(|a, b| a.choices == b.choices);
        let stride = open.len().div_ceil(plays).max(1);
        self.first_of(open.into_iter().step_by(stride), usize::MAX).found()
    }

    /// The cheapest of the plans of the rows cheaper than `most` that fits, by bisection of each row.
    fn along_rows(&mut self, most: u64) -> Option<Chosen> {
        let mut best: Option<Chosen> = None;
        for plans in rows(self.chain) {
            let most = cost_of(best.as_ref()).min(most);
            let (mut failing, mut fitting) = (0, plans.iter().take_while(|plan| plan.cost < most).count());
            // Of those the last ones need least: where they do not fit, the row is left.
            let last =
                (0..fitting).rev().take(LAST_OF_A_ROW).find_map(|index| Some((index, self.chosen(&plans[index])?)));
            let Some((index, chosen)) = last else { continue };
            (fitting, best) = (index, Some(chosen));
            while failing < fitting {
                let middle = failing.midpoint(fitting);
                if let Some(chosen) = self.chosen(&plans[middle]) {
                    best = Some(chosen);
                    fitting = middle;
                } else {
                    failing = middle + 1;
                }
            }
        }
        best
    }

    /// From neighbour to cheaper neighbour that fits, for so many plays.
    fn next_to(&mut self, found: Option<Chosen>, plays: usize) -> Option<Chosen> {
        let mut here = found?;
        let last = self.counted.saturating_add(plays.saturating_mul(self.trials.len()));
        while let Some(left) = last.checked_sub(self.counted).filter(|&left| left > 0) {
            let neighbours = cheaper_neighbours(self.chain, &here.choice, self.near_bytes());
            let Ended::Found(better) = self.first_of(neighbours.into_iter(), left) else { break };
            here = better;
        }
        Some(here)
    }

    fn chosen(&mut self, solution: &Solution) -> Option<Chosen> {
        self.fitting(solution).map(|choice| Chosen { choice, cost: solution.cost, bound: 0 })
    }

    /// The least bytes within which one of the plans of least peak was seen to get through.
    pub(super) fn smallest_reserved_bytes(&mut self) -> Option<u64> {
        let front = pareto(&self.chain.chain);
        least(&front).iter().map(|solution| self.trials[0].sufficient_bytes(&self.chain.choice(solution))).min()
    }
}

fn cost_of(found: Option<&Chosen>) -> u64 {
    found.map_or(u64::MAX, |found| found.cost)
}

/// Plans of least peak, the cheapest first.
fn least(front: &ParetoFront<'_>) -> Vec<Solution> {
    (0..front.len().min(LEAST_PEAK_PLANS)).rev().filter_map(|index| front.solution(index)).collect()
}

/// Plays a plan as it is and, where it does not fit so, with the options of alike regions mixed.
fn play_orders(chain: &RegionChain, trials: &mut Trials<'_>, choice: &[usize]) -> Known {
    let before = trials.played;
    let fitting = if trials.fits(choice) {
        Some(choice.to_vec())
    } else {
        Some(chain.mixed(choice)).filter(|mixed| mixed != choice && trials.fits(mixed))
    };
    Known { fitting, plays: trials.played - before }
}
