//! Polynomials in the batch size, of degree two or less: what every size of a traced step is.

use serde::{Deserialize, Serialize};

/// `(c[0] + c[1] b + c[2] b^2) / 2`, always an integer at integer `b`; kept doubled so that `b (b + 1) / 2` is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Poly {
    doubled: [i64; 3],
}

impl Poly {
    /// The same value at every batch; `None` beyond 62 bits.
    #[must_use]
    pub const fn constant(value: i64) -> Option<Self> {
        match value.checked_mul(2) {
            Some(doubled) => Some(Self { doubled: [doubled, 0, 0] }),
            None => None,
        }
    }

    /// The polynomial of lowest degree through `(batch, value)` points with distinct batches; `None` if the last point
    /// beyond those needed contradicts it, or no coefficient fits.
    ///
    /// Two points give an affine polynomial, a third one checks it; if it contradicts, the quadratic through three is
    /// taken, which a fourth point must confirm when there is one.
    #[must_use]
    pub fn fit(batches: &[u64], values: &[i64]) -> Option<Self> {
        let (&first, rest) = values.split_first()?;
        if rest.iter().all(|&value| value == first) {
            return Self::constant(first);
        }
        let points: Vec<(i128, i128)> = batches.iter().zip(values).map(|(&b, &v)| (b.into(), v.into())).collect();
        (2..=3.min(points.len())).find_map(|count| {
            let candidate = Self::through(&points[..count])?;
            points.iter().all(|&(b, v)| candidate.doubled_at(b) == Some(2 * v)).then_some(candidate)
        })
    }

    /// Newton's interpolation through two or three points.
    fn through(points: &[(i128, i128)]) -> Option<Self> {
        let (x0, y0) = points[0];
        let (x1, y1) = points[1];
        let slope_num = 2 * (y1 - y0);
        let (quadratic, linear) = match points.get(2) {
            None => (0, exact_div(slope_num, x1 - x0)?),
            Some(&(x2, y2)) => {
                // Second divided difference, doubled: must be an integer.
                let numerator = 2 * ((y2 - y1) * (x1 - x0) - (y1 - y0) * (x2 - x1));
                let quadratic = exact_div(numerator, (x2 - x1) * (x1 - x0) * (x2 - x0))?;
                (quadratic, exact_div(slope_num - quadratic * (x1 * x1 - x0 * x0), x1 - x0)?)
            }
        };
        let constant = 2 * y0 - linear * x0 - quadratic * x0 * x0;
        Some(Self { doubled: [constant.try_into().ok()?, linear.try_into().ok()?, quadratic.try_into().ok()?] })
    }

    fn doubled_at(&self, batch: i128) -> Option<i128> {
        let [c0, c1, c2] = self.doubled.map(i128::from);
        c2.checked_mul(batch)?.checked_add(c1)?.checked_mul(batch)?.checked_add(c0)
    }

    /// The value at this batch; `None` when it does not fit 64 bits.
    #[must_use]
    pub fn at(&self, batch: u64) -> Option<i64> {
        let [c0, c1, c2] = self.doubled;
        if c1 == 0 && c2 == 0 {
            return Some(c0 / 2);
        }
        i64::try_from(self.doubled_at(batch.into())? / 2).ok()
    }
}

fn exact_div(numerator: i128, denominator: i128) -> Option<i128> {
    (denominator != 0 && numerator % denominator == 0).then(|| numerator / denominator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_sizes_are_recovered_and_checked() {
        let poly = Poly::fit(&[2, 3, 5], &[2 * 602_112 + 8, 3 * 602_112 + 8, 5 * 602_112 + 8]).unwrap();
        assert_eq!(poly.at(64), Some(64 * 602_112 + 8));
    }

    #[test]
    fn a_contrastive_loss_is_quadratic() {
        let square = |b: i64| 4 * b * b + 12;
        let poly = Poly::fit(&[2, 3, 5, 7], &[square(2), square(3), square(5), square(7)]).unwrap();
        assert_eq!(poly.at(100), Some(square(100)));
    }

    #[test]
    fn triangular_numbers_are_exact() {
        let triangle = |b: i64| b * (b - 1) / 2;
        let poly = Poly::fit(&[2, 3, 5], &[triangle(2), triangle(3), triangle(5)]).unwrap();
        assert_eq!(poly.at(8), Some(28));
    }

    #[test]
    fn what_is_no_polynomial_is_refused() {
        assert_eq!(Poly::fit(&[2, 3, 5, 7], &[4, 8, 32, 128]), None);
        assert_eq!(Poly::fit(&[2, 3, 5], &[512, 512, 1024]).and_then(|p| p.at(2)), None);
    }

    #[test]
    fn overflow_is_none() {
        let poly = Poly::fit(&[2, 3], &[2 << 40, 3 << 40]).unwrap();
        assert_eq!(poly.at(1 << 30), None);
    }
}
