//! Private pools: `torch.cuda.MemPool` (facts/allocator.md section 12).
//!
//! A graph capture sends its requests to such a pool as well; that it also postpones events and forbids cache
//! releases is not simulated.

use thiserror::Error;

use super::block::State;
use super::caching::{Allocator, Request};
use super::pool::{LARGE_POOL, Pool, SMALL_POOL};

/// Identity of a private pool, as `torch.cuda.MemPool.id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

/// A call on a private pool that `PyTorch` refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PoolError {
    /// Requests already go to this pool.
    #[error("requests already go to private pool {0:?}")]
    AlreadyActive(PoolId),
    /// Requests do not go to this pool.
    #[error("requests do not go to private pool {0:?}")]
    NotActive(PoolId),
    /// There is no such pool, or nobody uses it any more.
    #[error("private pool {0:?} is not in use")]
    NotInUse(PoolId),
}

/// A pool of its own, with a small and a large half.
#[derive(Debug, Clone)]
pub(super) struct PrivatePool {
    id: PoolId,
    small: u32,
    large: u32,
    uses: u32,
    /// Driver allocations less driver frees; a pool at zero with no user is forgotten.
    pub(super) device_allocs: u64,
    forgotten: bool,
}

impl PrivatePool {
    pub(super) fn pool(&self, small: bool) -> u32 {
        if small { self.small } else { self.large }
    }
}

impl Allocator {
    /// Sends the requests that follow to a private pool, created if need be, until [`Self::end_pool`].
    ///
    /// # Errors
    /// [`PoolError`] when requests go there already, or when the pool has been released but still holds memory.
    pub fn begin_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        let index = self.enter_pool(id)?;
        if self.redirections.contains(&index) {
            self.private_pools[index].uses -= 1;
            return Err(PoolError::AlreadyActive(id));
        }
        self.redirections.push(index);
        Ok(())
    }

    /// Ends what [`Self::begin_pool`] began. The pool keeps its use until [`Self::release_pool`].
    ///
    /// # Errors
    /// [`PoolError::NotActive`] when requests do not go to this pool.
    pub fn end_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        let private_pools = &self.private_pools;
        let at = self.redirections.iter().position(|&index| private_pools[index].id == id);
        let at = at.ok_or(PoolError::NotActive(id))?;
        self.redirections.remove(at);
        Ok(())
    }

    /// Gives up one use of a pool. When none is left, its cached segments go back at the next cache release.
    ///
    /// # Errors
    /// [`PoolError::NotInUse`] when the pool has no use to give up.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        let index = self.find_pool(id).filter(|&index| self.private_pools[index].uses > 0);
        self.private_pools[index.ok_or(PoolError::NotInUse(id))?].uses -= 1;
        Ok(())
    }

    /// Hands out the blocks of a pool whole.
    ///
    /// # Errors
    /// [`PoolError::NotInUse`] when there is no such pool.
    pub fn set_no_split(&mut self, id: PoolId) -> Result<(), PoolError> {
        let index = self.find_pool(id).ok_or(PoolError::NotInUse(id))?;
        for pool in [self.private_pools[index].small, self.private_pools[index].large] {
            self.pools[pool as usize].no_split = true;
        }
        Ok(())
    }

    /// Lets the free blocks of a pool serve requests that would otherwise be out of memory.
    pub fn set_use_on_oom(&mut self, id: PoolId, enabled: bool) {
        self.overflow_pools.retain(|&other| other != id);
        if enabled {
            self.overflow_pools.push(id);
        }
    }

    fn find_pool(&self, id: PoolId) -> Option<usize> {
        self.private_pools.iter().position(|pool| pool.id == id && !pool.forgotten)
    }

    /// One more use of a pool.
    fn enter_pool(&mut self, id: PoolId) -> Result<usize, PoolError> {
        if let Some(index) = self.find_pool(id) {
            let pool = &mut self.private_pools[index];
            if pool.uses == 0 {
                return Err(PoolError::NotInUse(id));
            }
            pool.uses += 1;
            return Ok(index);
        }
        let index = self.private_pools.len();
        let small = u32::try_from(self.pools.len()).map_err(|_| PoolError::NotInUse(id))?;
        self.pools.push(Pool::new(true, Some(index)));
        self.pools.push(Pool::new(false, Some(index)));
        self.private_pools.push(PrivatePool {
            id,
            small,
            large: small + 1,
            uses: 1,
            device_allocs: 0,
            forgotten: false,
        });
        Ok(index)
    }

    /// Step 1 of the failure chain: a free block of an overflow pool, for a request of the default pools. Torch 2.14.1
    /// passes over expandable blocks here, whether or not the option is on (measured on its `libc10_cuda`).
    pub(super) fn take_overflow(&mut self, request: &Request) -> Option<u32> {
        if request.pool != SMALL_POOL && request.pool != LARGE_POOL {
            return None;
        }
        let small = request.pool == SMALL_POOL;
        let pools: Vec<u32> = self
            .overflow_pools
            .iter()
            .filter_map(|&id| self.find_pool(id))
            .map(|index| self.private_pools[index].pool(small))
            .collect();
        pools.into_iter().find_map(|pool| self.take_free(pool, request.stream, request.size, false))
    }

    /// The part of a cache release that concerns private pools nobody uses.
    pub(super) fn release_private_pools(&mut self) {
        for index in 0..self.private_pools.len() {
            if self.private_pools[index].uses > 0 || self.private_pools[index].forgotten {
                continue;
            }
            self.release_pool_blocks(self.private_pools[index].small);
            self.release_pool_blocks(self.private_pools[index].large);
            let pool = &mut self.private_pools[index];
            pool.forgotten = pool.device_allocs == 0;
        }
    }

    /// A segment or mapping of a pool went back to the driver.
    pub(super) fn count_device_free(&mut self, pool: usize) {
        if let Some(owner) = self.pools[pool].owner {
            let device_allocs = &mut self.private_pools[owner].device_allocs;
            *device_allocs = device_allocs.saturating_sub(1);
        }
    }

    /// Bytes of the free blocks in private pools.
    pub(super) fn private_pool_free_bytes(&self) -> u64 {
        let is_private = |pool: u32| self.pools[pool as usize].owner.is_some();
        let free = self.blocks.iter().filter(|(_, block)| block.state == State::Free && is_private(block.pool));
        free.map(|(_, block)| block.size).sum()
    }
}
