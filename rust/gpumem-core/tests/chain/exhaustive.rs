//! Every plan of a small chain, written down from the definition of a plan's peak.

use gpumem_core::chain::{Chain, Choice, Solution};

/// All plans whose peak fits 64 bits.
pub(crate) fn all_plans(chain: &Chain) -> Vec<Solution> {
    let mut plans = Vec::new();
    extend(chain, &mut Vec::new(), 0, &mut plans);
    plans
}

fn extend(chain: &Chain, choices: &mut Vec<Choice>, region: usize, plans: &mut Vec<Solution>) {
    if region == chain.regions().len() {
        plans.extend(value(chain, choices));
        return;
    }
    for (option, content) in chain.regions()[region].options.iter().enumerate() {
        choices.push(Choice { region, option });
        extend(chain, choices, region + content.span, plans);
        choices.pop();
    }
}

fn value(chain: &Chain, choices: &[Choice]) -> Option<Solution> {
    let options: Vec<_> = choices.iter().map(|at| chain.regions()[at.region].options[at.option]).collect();
    let before = |index: usize| options[..index].iter().map(|option| u128::from(option.left_bytes)).sum::<u128>();
    let moments = (0..options.len()).map(|index| before(index) + u128::from(options[index].extra_bytes));
    let peak = moments.chain([before(options.len()) + u128::from(chain.tail_bytes())]).max()?;
    let cost = options.iter().map(|option| option.cost).sum();
    let peak_bytes = u64::try_from(peak).ok()?;
    Some(Solution { choices: choices.to_vec(), peak_bytes, cost, cost_lower_bound: cost })
}

/// Plans that differ only in the order of options within a run.
pub(crate) mod canonical_key {
    use std::collections::BTreeMap;

    use gpumem_core::chain::{Chain, ChainOption, Solution};

    /// An option without what a constant step changes.
    type Kind = (usize, u64, u64);

    fn kind(option: &ChainOption) -> Kind {
        (option.span, option.left_bytes, option.cost)
    }

    /// Options that nothing of the same span dominates, by kind.
    fn useful(options: &[ChainOption]) -> BTreeMap<Kind, u64> {
        let better = |a: &ChainOption, b: &ChainOption| {
            a != b
                && a.span == b.span
                && a.left_bytes <= b.left_bytes
                && a.extra_bytes <= b.extra_bytes
                && a.cost <= b.cost
        };
        let kept = options.iter().filter(|option| !options.iter().any(|other| better(other, option)));
        kept.map(|option| (kind(option), option.extra_bytes)).collect()
    }

    /// Ends of the runs, found by trying every length from the longest.
    fn runs(chain: &Chain) -> Vec<usize> {
        let tables: Vec<_> = chain.regions().iter().map(|region| useful(&region.options)).collect();
        let mut ends = Vec::new();
        let mut start = 0;
        while start < tables.len() {
            let lengths = (2..=tables.len() - start).rev();
            let length = lengths.into_iter().find(|&length| is_run(&tables[start..start + length])).unwrap_or(1);
            start += length;
            ends.push(start);
        }
        ends
    }

    fn is_run(tables: &[BTreeMap<Kind, u64>]) -> bool {
        let first = &tables[0];
        let steps: Vec<i128> = (1..)
            .zip(&tables[1..])
            .flat_map(|(offset, table)| {
                table.iter().filter_map(move |(kind, &extra)| {
                    Some((i128::from(extra) - i128::from(*first.get(kind)?)) * 5040 / offset)
                })
            })
            .collect();
        let shapes = tables.iter().enumerate().all(|(offset, table)| {
            let expected = first.keys().filter(|kind| kind.0 <= tables.len() - offset);
            table.keys().eq(expected)
        });
        shapes && first.keys().all(|kind| kind.0 <= tables.len()) && steps.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Best (cost, peak bytes) of every group of plans of useful options.
    pub(crate) fn groups(chain: &Chain, plans: &[Solution]) -> BTreeMap<Vec<(usize, Kind)>, (u64, u64)> {
        let ends = runs(chain);
        let mut groups: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for plan in plans {
            let mut key: Option<Vec<(usize, Kind)>> = Some(Vec::new());
            for at in &plan.choices {
                let options = &chain.regions()[at.region].options;
                let option = &options[at.option];
                let dominated = useful(options).get(&kind(option)) != Some(&option.extra_bytes);
                let run = ends.partition_point(|&end| end <= at.region);
                // A segment may begin a run in its middle: what is left of it is a run of its own.
                key = key.filter(|_| !dominated);
                if let Some(key) = &mut key {
                    key.push((run, kind(option)));
                }
            }
            if let Some(mut key) = key {
                key.sort_unstable();
                let value = (plan.cost, plan.peak_bytes);
                groups.entry(key).and_modify(|best| *best = value.min(*best)).or_insert(value);
            }
        }
        groups
    }
}
