//! cuSPARSE, cuSPARSELt and cuSOLVER. Their workspaces are asked for and answered with zero: only a real library on a
//! real device knows them, so what they would take is not in the run.

use crate::entry::Library;

/// Answers with cuSPARSE's status.
pub(crate) const CUSPARSE: Library = Library::simple("cusparse", 3, 2, 10, 1);

/// Answers with cuSPARSELt's status, which is cuSPARSE's.
pub(crate) const CUSPARSELT: Library = Library::simple("cusparselt", 3, 2, 10, 1);

/// Answers with cuSOLVER's status.
pub(crate) const CUSOLVER: Library = Library::simple("cusolver", 3, 2, 9, 1);
