//! Graphs of a captured stream: they hold nothing, since nothing was run into them.

use super::RUNTIME;
use crate::arguments::Out;
use crate::counts::count_launch;
use crate::entry::entry_points;
use crate::handles::{Handle, Registry};

static GRAPHS: Registry<()> = Registry::new();
static EXECUTABLES: Registry<()> = Registry::new();

/// A graph.
pub(super) fn new() -> Handle {
    GRAPHS.add(())
}

entry_points! { RUNTIME;

fn cudaGraphInstantiate(executable: Out<Handle>, graph: Handle, _flags: u64) {
    GRAPHS.get(graph)?;
    executable.set(EXECUTABLES.add(()))
}

fn cudaGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: u64) {
    GRAPHS.get(graph)?;
    executable.set(EXECUTABLES.add(()))
}

// One node: PyTorch warns of a graph that has none.
fn cudaGraphGetNodes(graph: Handle, _nodes: usize, count: Out<usize>) {
    GRAPHS.get(graph)?;
    count.set(1)
}

fn cudaGraphLaunch(executable: Handle, _stream: Handle) {
    EXECUTABLES.get(executable)?;
    count_launch();
    Ok(())
}

fn cudaGraphDestroy(graph: Handle) {
    GRAPHS.remove(graph)
}

fn cudaGraphExecDestroy(executable: Handle) {
    EXECUTABLES.remove(executable)
}

}
