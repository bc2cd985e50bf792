//! A training loop of a few blocks, written down as a recorder would, with each block run in its own way.
//!
//! What dies when follows from counting who holds what, so the same program with different ways is the truth that joined
//! traces are compared with.

use gpumem_core::assemble::{Structure, Trace, assemble};
use gpumem_core::poly::Poly;
use gpumem_core::regions::{OpCost, RegionSpace, RegionTrace, Variant};
use gpumem_core::spec::{About, Category, Event, ModelSpec, Origin, Phase};
use gpumem_core::target::Unit;

/// How a block runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Both inner results are saved.
    Keep,
    /// Only what it is given is.
    Checkpoint,
    /// One inner result is saved, the other computed again.
    Half,
    /// Part of a segment, which is run again as a whole.
    Segment,
}

pub(crate) const WAYS: [Way; 3] = [Way::Keep, Way::Checkpoint, Way::Half];

/// A block; sizes in bytes for each sample.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) inner: [u32; 2],
    pub(crate) output: u32,
    /// Bytes of its parameter's gradient.
    pub(crate) gradient: u32,
    /// Whether it saves what the first block made for all.
    pub(crate) saves_bias: bool,
    /// Whether a kernel replaces the gradient it had requested.
    pub(crate) renews: bool,
    /// Whether it does nothing at all.
    pub(crate) idle: bool,
}

impl Block {
    pub(crate) const PLAIN: Self = Self {
        inner: [3_000_000, 1_000_000],
        output: 700_000,
        gradient: 5_000_000,
        saves_bias: false,
        renews: false,
        idle: false,
    };
}

/// Blocks, and the order in which they are called.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) blocks: Vec<Block>,
    pub(crate) calls: Vec<usize>,
    pub(crate) keeps_output: bool,
}

impl Program {
    pub(crate) fn new(blocks: Vec<Block>) -> Self {
        Self { calls: (0..blocks.len()).collect(), blocks, keeps_output: true }
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        (0..self.blocks.len()).map(|block| format!("block{block}")).collect()
    }

    /// The loop as it runs.
    pub(crate) fn run(&self, ways: &[Way]) -> ModelSpec {
        self.run_with(ways, &[])
    }

    /// The same with segments: blocks whose way is [`Way::Segment`].
    pub(crate) fn run_with(&self, ways: &[Way], segments: &[(usize, usize)]) -> ModelSpec {
        self.written(ways, segments, false).0
    }

    /// The spec of the loop and what is noted beside it; every call asks for the handle's workspace.
    pub(crate) fn traced(&self, ways: &[Way]) -> (ModelSpec, RegionTrace) {
        self.written(ways, &[], true)
    }

    /// The variant in which these segments are checkpointed and all other blocks keep.
    pub(crate) fn segments_variant(&self, segments: &[(usize, usize)]) -> Variant {
        let is_within = |block: usize| segments.iter().any(|&(first, count)| (first..first + count).contains(&block));
        let way = |block| if is_within(block) { Way::Segment } else { Way::Keep };
        let ways: Vec<Way> = (0..self.blocks.len()).map(way).collect();
        let (spec, trace) = self.written(&ways, segments, true);
        Variant::cut(spec, trace).unwrap()
    }

    fn written(&self, ways: &[Way], segments: &[(usize, usize)], every_workspace: bool) -> (ModelSpec, RegionTrace) {
        let run = |batch| Writer::run(self, ways, segments, batch, every_workspace);
        let runs: Vec<Writer> = [2, 5].into_iter().map(run).collect();
        let structure = Structure {
            about: about(),
            ops: vec!["aten::op".to_owned()],
            layers: std::iter::once(String::new()).chain(self.paths()).map(|path| (path, "Block".to_owned())).collect(),
            origins: runs[0].origins.clone(),
            categories: runs[0].categories.clone(),
            formulas: runs[0].formulas.iter().map(|(kind, _)| ((*kind).to_owned(), ORIGIN)).collect(),
        };
        let traces: Vec<Trace> = runs.iter().map(|writer| writer.trace(self.blocks.len() + 1)).collect();
        let spec = assemble(structure, &traces).unwrap();
        let first = runs.into_iter().next().unwrap();
        (
            spec,
            RegionTrace {
                borders: first.borders,
                touches: first.touches,
                costs: first.costs,
                segments: segments.to_vec(),
            },
        )
    }

    pub(crate) fn variant(&self, way: Way) -> Variant {
        let (spec, trace) = self.traced(&vec![way; self.blocks.len()]);
        Variant::cut(spec, trace).unwrap()
    }

    pub(crate) fn space(&self) -> RegionSpace {
        RegionSpace::new(self.paths(), WAYS.into_iter().map(|way| self.variant(way)).collect()).unwrap()
    }
}

const ORIGIN: Origin = Origin { op: 0, layer: 0, phase: Phase::Forward };
/// Rows and columns for which the backward pass of a layer norm replaces a gradient.
const NORM: [i64; 3] = [100_000, 96, 4];

fn about() -> About {
    About {
        model: "program".to_owned(),
        input: String::new(),
        mode: "train".to_owned(),
        precision: "fp32".to_owned(),
        optimizer: "sgd".to_owned(),
        criterion: String::new(),
        torch: "2.14.1".to_owned(),
        capability: "8.6".to_owned(),
        depends_on_capability: false,
        assumptions: Vec::new(),
        unverified_ops: Vec::new(),
        host_reads: Vec::new(),
    }
}

/// What a call of a block saved for its backward pass.
struct Saved {
    block: usize,
    input: Option<u32>,
    input_bytes: u64,
    inner: Vec<u32>,
    bias: Option<u32>,
}

struct Writer {
    batch: u64,
    every_workspace: bool,
    events: Vec<u64>,
    sizes: Vec<i64>,
    origins: Vec<Origin>,
    categories: Vec<Option<Category>>,
    formulas: Vec<(&'static str, Vec<i64>)>,
    holds: Vec<u32>,
    borders: Vec<(usize, u32)>,
    touches: Vec<(usize, u32, usize)>,
    costs: Vec<OpCost>,
    code: u32,
}

impl Writer {
    fn run(program: &Program, ways: &[Way], segments: &[(usize, usize)], batch: u64, every_workspace: bool) -> Self {
        let mut writer = Self {
            batch,
            every_workspace,
            events: vec![],
            sizes: vec![],
            origins: vec![],
            categories: vec![],
            formulas: vec![],
            holds: vec![],
            borders: vec![],
            touches: vec![],
            costs: vec![],
            code: 0,
        };
        writer.alloc(40_000_000, Some(Category::Param));
        let mut before = Vec::new();
        for _ in 0..2 {
            before = writer.step(program, ways, segments, before);
        }
        writer
    }

    fn trace(&self, layers: usize) -> Trace {
        Trace {
            batch: self.batch,
            events: self.events.clone(),
            sizes: self.sizes.clone(),
            arguments: self.formulas.iter().map(|(_, arguments)| arguments.clone()).collect(),
            flops: vec![(0, 0); layers],
        }
    }

    fn pass_to(&mut self, owner: usize, in_engine: bool) {
        let code = u32::try_from(owner).unwrap() << 1 | u32::from(in_engine);
        if code != self.code {
            self.code = code;
            self.borders.push((self.events.len(), code));
        }
    }

    fn mark(&mut self, phase: Phase) {
        self.pass_to(0, false);
        if phase == Phase::Forward {
            self.costs.clear();
        }
        self.events.push(Event::Mark(phase).to_tagged());
    }

    fn alloc(&mut self, bytes: u64, category: Option<Category>) -> u32 {
        let index = u32::try_from(self.sizes.len()).unwrap();
        self.sizes.push(i64::try_from(bytes).unwrap());
        self.origins.push(ORIGIN);
        self.categories.push(category);
        self.holds.push(1);
        self.events.push(Event::Alloc(index).to_tagged());
        let amount = |value: u64| Poly::constant(i64::try_from(value).unwrap()).unwrap();
        let (flops, moved_bytes) = (amount(1000), amount(bytes));
        self.costs.push(OpCost { code: self.code, flops, moved_bytes, unit: Unit::Fp32 });
        index
    }

    fn hold(&mut self, index: u32) -> u32 {
        self.holds[index as usize] += 1;
        index
    }

    fn release(&mut self, index: u32) {
        self.touches.push((self.events.len(), index, self.borders.len()));
        self.holds[index as usize] -= 1;
        if self.holds[index as usize] == 0 {
            self.events.push(Event::Free(index).to_tagged());
        }
    }

    fn release_all(&mut self, indices: impl IntoIterator<Item = u32>) {
        for index in indices {
            self.release(index);
        }
    }

    fn scratch(&mut self, kind: &'static str, arguments: Vec<i64>) {
        let again = kind == "cublas_workspace" && self.formulas.contains(&(kind, arguments.clone()));
        if again && !self.every_workspace {
            return;
        }
        let call = u32::try_from(self.formulas.len()).unwrap();
        self.formulas.push((kind, arguments));
        self.events.push(Event::Scratch { call, stage: 0 }.to_tagged());
    }

    /// One step; takes and returns what is still referenced from the step before.
    fn step(&mut self, program: &Program, ways: &[Way], segments: &[(usize, usize)], before: Vec<u32>) -> Vec<u32> {
        self.mark(Phase::Forward);
        let mut x_bytes = 600_000 * self.batch;
        let mut x = self.alloc(x_bytes, None);
        let batch = self.hold(x);
        self.release_all(before);
        let mut bias = None;
        let mut saved = Vec::new();
        for &block in &program.calls {
            self.pass_to(block + 1, false);
            let shape = &program.blocks[block];
            if shape.idle {
                self.pass_to(0, false);
                continue;
            }
            let is_later = segments.iter().any(|&(first, count)| (first + 1..first + count).contains(&block));
            let (out, one) = self.forward(shape, ways[block], block, (x, x_bytes, !is_later), &mut bias);
            saved.push(one);
            self.pass_to(0, false);
            self.release(x);
            (x, x_bytes) = (out, u64::from(shape.output) * self.batch);
        }
        if let Some(bias) = bias {
            self.release(bias);
        }
        let loss = self.alloc(4, None);
        self.mark(Phase::Backward);
        self.pass_to(0, true);
        let mut grad = self.alloc(x_bytes, None);
        let mut gradients = Vec::new();
        while let Some(last) = saved.len().checked_sub(1) {
            let block = saved[last].block;
            self.pass_to(block + 1, true);
            if let Some(&(_, count)) = segments.iter().find(|&&(first, count)| first + count == block + 1) {
                self.run_again(program, &mut saved[last + 1 - count..]);
            }
            let one = saved.remove(last);
            grad = self.backward(program, ways[block], one, grad, &mut gradients);
        }
        self.pass_to(0, true);
        self.release(grad);
        self.mark(Phase::Optimizer);
        self.release_all(gradients);
        self.mark(Phase::End);
        if program.keeps_output {
            return vec![batch, loss, x];
        }
        self.release(x);
        vec![batch, loss]
    }

    fn forward(
        &mut self,
        shape: &Block,
        way: Way,
        block: usize,
        (x, input_bytes, is_held): (u32, u64, bool),
        bias: &mut Option<u32>,
    ) -> (u32, Saved) {
        self.scratch("cublas_workspace", vec![0]);
        if bias.is_none() {
            *bias = Some(self.alloc(2_000_000, None));
        }
        let inner = shape.inner.map(|bytes| self.alloc(u64::from(bytes) * self.batch, None));
        let out = self.alloc(u64::from(shape.output) * self.batch, None);
        let input = is_held.then(|| self.hold(x));
        let bias = bias.filter(|_| shape.saves_bias).map(|bias| self.hold(bias));
        let inner = match way {
            Way::Keep => inner.to_vec(),
            Way::Half => {
                self.release(inner[0]);
                vec![inner[1]]
            }
            Way::Checkpoint | Way::Segment => {
                self.release(inner[1]);
                self.release(inner[0]);
                vec![]
            }
        };
        (out, Saved { block, input, input_bytes, inner, bias })
    }

    /// All blocks of a segment once more, for the backward pass of its last; its own output is not needed.
    fn run_again(&mut self, program: &Program, saved: &mut [Saved]) {
        let mut before = None;
        for one in saved {
            self.scratch("cublas_workspace", vec![1]);
            let shape = &program.blocks[one.block];
            one.input = one.input.or(before);
            one.inner = shape.inner.map(|bytes| self.alloc(u64::from(bytes) * self.batch, None)).to_vec();
            before = Some(self.alloc(u64::from(shape.output) * self.batch, None));
        }
        self.release_all(before);
    }

    fn backward(&mut self, program: &Program, way: Way, saved: Saved, grad: u32, gradients: &mut Vec<u32>) -> u32 {
        let shape = &program.blocks[saved.block];
        let mut inner = saved.inner;
        let again = match way {
            Way::Keep | Way::Segment => &shape.inner[..0],
            Way::Half => &shape.inner[..1],
            Way::Checkpoint => &shape.inner[..],
        };
        for &bytes in again {
            inner.push(self.alloc(u64::from(bytes) * self.batch, None));
        }
        self.scratch("cublas_workspace", vec![1]);
        let gradient = self.alloc(shape.gradient.into(), Some(Category::Grad));
        gradients.push(gradient);
        if shape.renews {
            self.scratch("layer_norm_backward", [&NORM[..], &[gradient.into(), -1]].concat());
        }
        let next = self.alloc(saved.input_bytes, None);
        self.release(grad);
        self.release_all(inner);
        self.release_all(saved.bias);
        self.release_all(saved.input);
        next
    }
}
