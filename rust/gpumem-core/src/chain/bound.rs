//! What the regions before a point cost at least, given the bytes that they may leave behind.

use super::layout::Layout;

/// A corner of a convex lower bound: left bytes and cost.
type Corner = (u64, u64);

/// For every region, the lower convex hull of left bytes and cost of all ways to it. Their peaks are ignored, so it is
/// a bound.
#[derive(Debug, Clone)]
pub(super) struct PrefixBounds {
    hulls: Vec<Vec<Corner>>,
}

impl PrefixBounds {
    pub(super) fn new(layout: &Layout) -> Self {
        let mut points: Vec<Vec<Corner>> = vec![Vec::new(); layout.positions.len() + 1];
        points[0].push((0, 0));
        for (region, position) in layout.positions.iter().enumerate() {
            let hull = lower_hull(std::mem::take(&mut points[region]));
            for step in &position.moves {
                let option = step.option;
                points[region + option.span].extend(hull.iter().filter_map(|&(left_bytes, cost)| {
                    Some((left_bytes.checked_add(option.left_bytes)?, cost.checked_add(option.cost)?))
                }));
            }
            points[region] = hull;
        }
        // Nothing is asked about the end.
        points.pop();
        Self { hulls: points }
    }

    /// The least bytes that are left behind before `region`; `None` when nothing leads there.
    pub(super) fn least_left_bytes(&self, region: usize) -> Option<u64> {
        self.hulls[region].first().map(|corner| corner.0)
    }

    /// A lower bound of the cost before `region` when at most `room_bytes` may be left behind; `None` when less is not
    /// possible.
    pub(super) fn least_cost(&self, region: usize, room_bytes: u64) -> Option<u64> {
        let hull = &self.hulls[region];
        let next = hull.partition_point(|corner| corner.0 <= room_bytes);
        let (from_bytes, from_cost) = hull[next.checked_sub(1)?];
        let Some(&(to_bytes, to_cost)) = hull.get(next) else { return Some(from_cost) };
        let saved = u128::from(from_cost - to_cost) * u128::from(room_bytes - from_bytes);
        // The cost is an integer, so the bound is rounded up.
        let saved = saved / u128::from(to_bytes - from_bytes);
        u64::try_from(saved).ok().map(|saved| from_cost - saved)
    }
}

/// Corners of the lower convex hull, from the fewest bytes to the least cost.
fn lower_hull(mut points: Vec<Corner>) -> Vec<Corner> {
    points.sort_unstable();
    let mut hull: Vec<Corner> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point.1 >= last.1) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if steeper(before, last, point) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Whether cost falls faster per byte from `a` to `b` than from `b` to `c`.
fn steeper(a: Corner, b: Corner, c: Corner) -> bool {
    u128::from(a.1 - b.1) * u128::from(c.0 - b.0) > u128::from(b.1 - c.1) * u128::from(b.0 - a.0)
}
