//! The target's software: which `PyTorch` with which CUDA and cuDNN.

use std::fmt;

use super::TargetError;

/// `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The number before the first point.
    pub major: u32,
    /// The number after it.
    pub minor: u32,
}

impl Version {
    /// `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

/// `PyTorch`'s version that sets `CUDA_MODULE_LOADING=LAZY` itself (P #86509; facts/workspaces.md section 1).
const TORCH_SETS_LAZY_LOADING: Version = Version::new(1, 13);
/// CUDA on Linux loads lazily by default from here (NVIDIA's guide; facts/workspaces.md section 1).
const CUDA_LAZY_BY_DEFAULT: Version = Version::new(12, 2);

/// The oldest `PyTorch` that the tables say anything about: its context on a Titan RTX is reported
/// (`reports_lie_within_the_ends`).
const OLDEST_TORCH: Version = Version::new(1, 3);
/// The newest `PyTorch` whose requests were compared with the virtual GPU (`benchmarks/results/versions.md`).
const NEWEST_TORCH: Version = Version::new(2, 15);
/// CUDA releases that `PyTorch` 1.3 to 2.15 are built with.
const CUDA_RELEASES: std::ops::RangeInclusive<u32> = 10..=13;

/// A software stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// `PyTorch`.
    pub torch: Version,
    /// CUDA toolkit of the build, when known.
    pub cuda: Option<Version>,
    /// cuDNN, when known.
    pub cudnn: Option<Version>,
}

impl Stack {
    /// The stack whose behaviour was measured: torch 2.14.1+cu130 with cuDNN 9.24 (facts/workspaces.md section 0).
    pub const MEASURED: Self =
        Self { torch: Version::new(2, 14), cuda: Some(Version::new(13, 0)), cudnn: Some(Version::new(9, 24)) };

    /// Reads `torch-2.14+cu130`, `torch-2.14.1+cu130`, `2.4`, `2.4.0+cu121`, `2.9.0a0+git123`.
    ///
    /// The cuDNN version is not part of the text; set [`Self::cudnn`] when it is known.
    ///
    /// # Errors
    /// [`TargetError::InvalidStack`] for anything else, [`TargetError::UnknownStack`] for versions that no table knows.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let invalid = || TargetError::InvalidStack { text: text.to_owned() };
        let lower = text.trim().to_lowercase();
        let rest = lower.strip_prefix("torch").map_or(lower.as_str(), |r| r.trim_start_matches(['-', ' ', '=', '_']));
        let (version, local) = rest.split_once('+').map_or((rest, None), |(v, l)| (v, Some(l)));
        let mut parts = version.split('.');
        let major = parts.next().and_then(leading_number).ok_or_else(invalid)?;
        let minor = parts.next().and_then(leading_number).ok_or_else(invalid)?;
        if parts.any(|part| leading_number(part).is_none()) {
            return Err(invalid());
        }
        let cuda = match local.and_then(|l| l.strip_prefix("cu")) {
            Some(digits) => Some(cuda_version(digits).ok_or_else(invalid)?),
            None => None,
        };
        Self { torch: Version::new(major, minor), cuda, cudnn: None }.known()
    }

    /// The stack of a torch that a loop was traced with, as its `__version__` says; the measured one where it says too
    /// little or nothing that is known.
    #[must_use]
    pub fn traced(version: &str) -> Self {
        let stack = Self::parse(version).unwrap_or(Self::MEASURED);
        let says_less =
            stack.torch == Self::MEASURED.torch && stack.cuda.is_none_or(|cuda| Some(cuda) == Self::MEASURED.cuda);
        if says_less { Self::MEASURED } else { stack }
    }

    /// This stack, if the tables say anything about it.
    fn known(self) -> Result<Self, TargetError> {
        let torch = self.torch.clamp(OLDEST_TORCH, NEWEST_TORCH);
        let cuda = self.cuda.filter(|cuda| CUDA_RELEASES.contains(&cuda.major));
        if (torch, cuda) == (self.torch, self.cuda) {
            return Ok(self);
        }
        let nearest = Self { torch, cuda: if cuda == self.cuda { cuda } else { Self::MEASURED.cuda }, cudnn: None };
        Err(TargetError::UnknownStack { stack: self.to_string(), nearest: nearest.to_string() })
    }

    /// Whether kernels are loaded at first use, so that the context starts small and grows.
    ///
    /// An unknown CUDA version counts as recent.
    #[must_use]
    pub fn lazy_loading(&self) -> bool {
        self.torch >= TORCH_SETS_LAZY_LOADING || self.cuda.is_some_and(|cuda| cuda >= CUDA_LAZY_BY_DEFAULT)
    }
}

/// The text [`Stack::parse`] reads back, without the cuDNN version.
impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "torch-{}.{}", self.torch.major, self.torch.minor)?;
        match self.cuda {
            Some(cuda) => write!(f, "+cu{}{}", cuda.major, cuda.minor),
            None => Ok(()),
        }
    }
}

/// The number `text` starts with; `None` when it does not start with a digit.
fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `130` is 13.0, `121` is 12.1, `92` is 9.2: the last digit is the minor version.
fn cuda_version(digits: &str) -> Option<Version> {
    if digits.len() < 2 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (major, minor) = digits.split_at(digits.len() - 1);
    Some(Version::new(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for (text, torch, cuda) in [
            ("torch-2.14+cu130", (2, 14), Some((13, 0))),
            ("torch-2.14.1+cu130", (2, 14), Some((13, 0))),
            ("2.4", (2, 4), None),
            ("torch 2.4.0+cu121", (2, 4), Some((12, 1))),
            ("torch==1.12.1+cu113", (1, 12), Some((11, 3))),
            ("2.9.0a0+git1234", (2, 9), None),
            ("2.6.0+cpu", (2, 6), None),
        ] {
            let stack = Stack::parse(text).unwrap();
            assert_eq!((stack.torch.major, stack.torch.minor), torch, "{text}");
            assert_eq!(stack.cuda.map(|v| (v.major, v.minor)), cuda, "{text}");
        }
    }

    #[test]
    fn display_reads_back() {
        for text in ["torch-2.14+cu130", "torch-2.4"] {
            assert_eq!(Stack::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in ["", "torch", "latest", "2", "torch-x.y", "2.4+cu", "2.4+cuab", "2.4.x"] {
            assert_eq!(Stack::parse(text), Err(TargetError::InvalidStack { text: text.to_owned() }), "{text}");
        }
    }

    #[test]
    fn versions_that_no_table_knows_are_refused_with_the_nearest() {
        for (text, nearest) in [
            ("torch-1.2", "torch-1.3"),
            ("1.0.1+cu100", "torch-1.3+cu100"),
            ("torch-2.16+cu130", "torch-2.15+cu130"),
            ("3.0", "torch-2.15"),
            ("2.6+cu92", "torch-2.6+cu130"),
            ("2.14+cu999", "torch-2.14+cu130"),
        ] {
            match Stack::parse(text) {
                Err(TargetError::UnknownStack { nearest: found, .. }) => assert_eq!(found, nearest, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in ["1.3", "1.7.1+cu110", "1.8+cu102", "1.12", "2.15+cu132", "2.13+cu126"] {
            assert!(Stack::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_trace_says_its_stack() {
        for (version, stack) in [
            ("2.14.1+cu130", "torch-2.14+cu130"),
            ("2.14.1+cpu", "torch-2.14+cu130"),
            ("2.14.1+cu126", "torch-2.14+cu126"),
            ("2.8.0+cu128", "torch-2.8+cu128"),
            ("2.6.0", "torch-2.6"),
            ("2.99.0", "torch-2.14+cu130"),
            ("", "torch-2.14+cu130"),
        ] {
            assert_eq!(Stack::traced(version).to_string(), stack, "{version}");
        }
        assert_eq!(Stack::traced("2.14.1+cpu"), Stack::MEASURED);
    }

    #[test]
    fn lazy_loading_since_1_13() {
        assert!(!Stack::parse("1.12.1+cu113").unwrap().lazy_loading());
        assert!(Stack::parse("1.13").unwrap().lazy_loading());
        assert!(Stack::MEASURED.lazy_loading());
    }
}
