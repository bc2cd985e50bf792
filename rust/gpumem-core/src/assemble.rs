//! From traces of a few batch sizes to one [`ModelSpec`].

use crate::error::Error;
use crate::poly::Poly;
use crate::spec::{
    About, Allocation, Batches, Category, Event, FormulaCall, LayerSpec, ModelSpec, Origin, Phase, SCHEMA_VERSION,
};

/// What does not change with the batch, from the first trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    /// In words.
    pub about: About,
    /// ATen overloads.
    pub ops: Vec<String>,
    /// `(path, class)` of each module.
    pub layers: Vec<(String, String)>,
    /// Origin of each allocation.
    pub origins: Vec<Origin>,
    /// Categories known at extraction, by allocation.
    pub categories: Vec<Option<Category>>,
    /// Kind and origin of each formula call.
    pub formulas: Vec<(String, Origin)>,
}

/// One traced batch size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The batch size.
    pub batch: u64,
    /// The recorder's tagged events.
    pub events: Vec<u64>,
    /// Bytes of each allocation.
    pub sizes: Vec<i64>,
    /// Integers of each formula call.
    pub arguments: Vec<Vec<i64>>,
    /// Forward and backward FLOPs of each layer in one step.
    pub flops: Vec<(i64, i64)>,
}

/// Checks that the traces tell one story and fits every integer.
///
/// # Errors
/// [`Error::BatchDependent`] or [`Error::NotPolynomial`] when they do not; [`Error::InvalidSpec`] for traces that are
/// damaged.
pub fn assemble(structure: Structure, traces: &[Trace]) -> Result<ModelSpec, Error> {
    let first = traces.first().ok_or_else(|| Error::InvalidSpec { reason: "no trace".to_owned() })?;
    for other in &traces[1..] {
        same_events(&structure, first, other)?;
    }
    let batches: Vec<u64> = traces.iter().map(|trace| trace.batch).collect();
    let fit = |origin: Origin, value: &dyn Fn(&Trace) -> i64| {
        let values: Vec<i64> = traces.iter().map(value).collect();
        Poly::fit(&batches, &values).ok_or_else(|| Error::NotPolynomial {
            op: name(&structure.ops, origin.op),
            layer: layer_path(&structure, origin),
            batches: batches.clone(),
            sizes: values,
        })
    };
    let steps = split_steps(&first.events)?;
    let derived = categories(&steps, &structure);
    let allocations = structure
        .origins
        .iter()
        .zip(derived)
        .enumerate()
        .map(|(index, (&origin, category))| {
            Ok(Allocation { bytes: fit(origin, &|trace| trace.sizes[index])?, origin, category })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let formulas = structure
        .formulas
        .iter()
        .enumerate()
        .map(|(index, (kind, origin))| {
            let arguments = (0..first.arguments[index].len())
                .map(|at| fit(*origin, &|trace| trace.arguments[index][at]))
                .collect::<Result<_, _>>()?;
            Ok(FormulaCall { kind: kind.clone(), arguments, origin: *origin })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let whole_model = Origin { op: 0, layer: 0, phase: Phase::Setup };
    let layers = structure
        .layers
        .iter()
        .enumerate()
        .map(|(index, (path, kind))| {
            Ok(LayerSpec {
                path: path.clone(),
                kind: kind.clone(),
                forward_flops: fit(whole_model, &|trace| trace.flops[index].0)?,
                backward_flops: fit(whole_model, &|trace| trace.flops[index].1)?,
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let carried = carried(&steps, &allocations);
    let spec = ModelSpec {
        schema: SCHEMA_VERSION,
        about: structure.about,
        batches: if traces.len() == 1 { Batches::Only(first.batch) } else { Batches::Any },
        traced_batches: batches,
        ops: structure.ops,
        layers,
        allocations,
        formulas,
        steps,
        carried,
    };
    spec.validate()?;
    Ok(spec)
}

fn name(names: &[String], index: u32) -> String {
    names.get(index as usize).cloned().unwrap_or_default()
}

fn layer_path(structure: &Structure, origin: Origin) -> String {
    structure.layers.get(origin.layer as usize).map(|(path, _)| path.clone()).unwrap_or_default()
}

fn same_events(structure: &Structure, first: &Trace, other: &Trace) -> Result<(), Error> {
    let shapes_differ = first.arguments.iter().map(Vec::len).ne(other.arguments.iter().map(Vec::len));
    let position = first.events.iter().zip(&other.events).position(|(a, b)| a != b);
    let position = match position {
        Some(position) => position,
        None if first.events.len() != other.events.len() || shapes_differ => first.events.len().min(other.events.len()),
        None => return Ok(()),
    };
    let origin = first.events[..position.min(first.events.len())]
        .iter()
        .rev()
        .find_map(|&tagged| match Event::from_tagged(tagged)? {
            Event::Alloc(index) => structure.origins.get(index as usize).copied(),
            _ => None,
        })
        .unwrap_or(Origin { op: 0, layer: 0, phase: Phase::Setup });
    Err(Error::BatchDependent {
        first: first.batch,
        second: other.batch,
        position,
        op: name(&structure.ops, origin.op),
        layer: layer_path(structure, origin),
    })
}

/// Setup, then each step up to and with its `End` mark; what follows the last one is teardown and left out.
fn split_steps(events: &[u64]) -> Result<Vec<Vec<Event>>, Error> {
    let mut steps = vec![Vec::new()];
    let mut in_setup = true;
    for &tagged in events {
        let event = Event::from_tagged(tagged)
            .ok_or_else(|| Error::InvalidSpec { reason: format!("unknown event {tagged}") })?;
        if in_setup && matches!(event, Event::Mark(_)) {
            in_setup = false;
            steps.push(Vec::new());
        }
        let Some(current) = steps.last_mut() else { continue };
        current.push(event);
        if event == Event::Mark(Phase::End) {
            steps.push(Vec::new());
        }
    }
    steps.pop();
    if steps.len() < 2 {
        return Err(Error::InvalidSpec { reason: "the trace holds no complete step".to_owned() });
    }
    Ok(steps)
}

/// The category of each allocation: as tagged, else by how long it lives.
fn categories(steps: &[Vec<Event>], structure: &Structure) -> Vec<Category> {
    let mut found = vec![Category::Temporary; structure.origins.len()];
    let mut phase_now = Phase::Setup;
    let mut born: Vec<(usize, usize)> = vec![(0, 0); structure.origins.len()];
    let mut region = 0;
    for (step, events) in steps.iter().enumerate() {
        for event in events {
            match *event {
                Event::Mark(phase) => {
                    phase_now = phase;
                    region += 1;
                }
                Event::Alloc(index) => {
                    // A user's own step has no marks inside: the engine's requests tell where backward begins.
                    let phase = structure.origins[index as usize].phase;
                    if phase != phase_now {
                        phase_now = phase;
                        region += 1;
                    }
                    born[index as usize] = (region, step);
                    // Alive at the end unless a free says otherwise: a result that is kept.
                    if phase_now == Phase::Forward {
                        found[index as usize] = Category::Activation;
                    }
                }
                Event::Free(index) if born[index as usize].0 == region => found[index as usize] = Category::Temporary,
                Event::Free(_) | Event::Scratch { .. } => {}
            }
        }
    }
    found.iter().zip(&structure.categories).map(|(&by_life, tagged)| tagged.unwrap_or(by_life)).collect()
}

/// Pairs what the last step frees of the step before with what it leaves itself, if the two match one to one.
pub(crate) fn carried(steps: &[Vec<Event>], allocations: &[Allocation]) -> Option<Vec<(u32, u32)>> {
    let last = steps.last()?;
    let mut left: Vec<u32> = Vec::new();
    let mut freed_of_before: Vec<u32> = Vec::new();
    for event in last {
        match *event {
            Event::Alloc(index) => left.push(index),
            Event::Free(index) => match left.iter().rposition(|&own| own == index) {
                Some(at) => {
                    left.remove(at);
                }
                None => freed_of_before.push(index),
            },
            Event::Scratch { .. } | Event::Mark(_) => {}
        }
    }
    freed_of_before.sort_unstable();
    let same = freed_of_before.len() == left.len()
        && freed_of_before.iter().zip(&left).all(|(&freed, &own)| {
            let (freed, own) = (&allocations[freed as usize], &allocations[own as usize]);
            freed.bytes == own.bytes && freed.category == own.category
        });
    same.then(|| freed_of_before.into_iter().zip(left).collect())
}
