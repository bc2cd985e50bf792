//! Rules for the bytes of cuDNN's first plan, by GPU family, data type and layout.

use super::call::{ConvCall, Direction, InvalidConv};
use crate::target::{Gpu, Range, Stack};
use crate::workspace::{Workspace, WorkspaceSource};

pub(super) fn workspace(call: &ConvCall, _gpu: &Gpu, _stack: &Stack) -> Result<Workspace, InvalidConv> {
    let problem = call.problem()?;
    let copies = [problem.x_bytes, problem.w_bytes, problem.y_bytes]
        .iter()
        .try_fold(0_u64, |total, &bytes| total.checked_add(bytes))
        .ok_or(InvalidConv::SizeOverflow)?;
    let likely = match (call.channels_last, call.direction) {
        (true, Direction::Fwd | Direction::Dgrad) => 0,
        (true, Direction::Wgrad) => problem.w_bytes,
        (false, _) => copies,
    };
    Ok(Workspace {
        bytes: Range { low_bytes: 0, likely_bytes: likely, high_bytes: copies.saturating_mul(2) },
        source: WorkspaceSource::FittedRule,
    })
}
