//! All checkpoint plans of one loop.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::regions::cut::Variant;
use crate::regions::holds::Holders;
use crate::regions::matching::Matching;
use crate::spec::About;

/// Regions and the variants they can choose from; variant 0 has every region keep what autograd saves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct RegionSpace {
    pub(super) paths: Vec<String>,
    pub(super) variants: Vec<Variant>,
    pub(super) matching: Matching,
    pub(super) holders: Holders,
}

/// What is stored: the matching follows from it.
#[derive(Serialize, Deserialize)]
struct Parts {
    paths: Vec<String>,
    variants: Vec<Variant>,
}

impl TryFrom<Parts> for RegionSpace {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self, Error> {
        Self::new(parts.paths, parts.variants)
    }
}

impl From<RegionSpace> for Parts {
    fn from(space: RegionSpace) -> Self {
        Self { paths: space.paths, variants: space.variants }
    }
}

impl RegionSpace {
    /// Matches the variants.
    ///
    /// # Errors
    /// [`Error::Regions`] when a variant runs its regions in another order or does other things outside them;
    /// [`Error::InvalidSpec`] when there is none, or one whose runs and events contradict each other.
    pub fn new(paths: Vec<String>, variants: Vec<Variant>) -> Result<Self, Error> {
        if variants.is_empty() {
            return Err(Error::InvalidSpec { reason: "no variant".to_owned() });
        }
        for variant in &variants {
            variant.check(paths.len())?;
        }
        let matching = Matching::new(paths.len(), &variants)
            .map_err(|(variant, reason)| Error::Regions { variant, reason: reason.to_owned() })?;
        let holders = Holders::new(&variants, &matching)?;
        Ok(Self { paths, variants, matching, holders })
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] for what cannot be read, otherwise as [`RegionSpace::new`].
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let parts: Parts =
            serde_json::from_str(text).map_err(|error| Error::InvalidSpec { reason: error.to_string() })?;
        parts.try_into()
    }

    /// The JSON form: paths and variants, from which the matching follows.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] if the serializer refuses (it does not).
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::InvalidSpec { reason: error.to_string() })
    }

    /// Module paths of the regions.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// What the loop is; the same in all variants.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.variants[0].spec.about
    }

    /// The traced variants.
    #[must_use]
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// Whether `region` can run as in `variant`.
    #[must_use]
    pub fn is_allowed(&self, region: usize, variant: usize) -> bool {
        self.matching.allowed.get(region).and_then(|allowed| allowed.get(variant)).copied().unwrap_or(false)
    }
}
