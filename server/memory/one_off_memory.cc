// SPDX-License-Identifier: Apache-2.0
#include "server/memory/one_off_memory.h"

#include <string>
#include <utility>

#include "common/base/raise_to.h"
#include "common/os/memfd.h"

namespace pinfeed {
namespace {

constexpr uint64_t kPageBytes = 4096;

// What the kernel allocates for that many bytes.
uint64_t RoundedUpToPages(uint64_t bytes) {
  const uint64_t rest = bytes % kPageBytes;
  if (rest == 0 || bytes > UINT64_MAX - kPageBytes) return bytes;
  return bytes + kPageBytes - rest;
}

}  // namespace

struct OneOffMemory::Use {
  Use(std::shared_ptr<InUse> all_uses, std::shared_ptr<const void> released_after)
      : until_free(std::move(released_after)), all(std::move(all_uses)), others(all->grants.fetch_add(1)) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    all->bytes.fetch_sub(bytes);
    all->grants.fetch_sub(1);
  }

  const std::shared_ptr<const void> until_free;
  const std::shared_ptr<InUse> all;
  const uint32_t others;
  uint64_t bytes = 0;
};

Result<UniqueFd> OneOffMemory::Grant(uint64_t bytes, std::shared_ptr<const void> until_free) {
  const uint64_t charged = RoundedUpToPages(bytes);
  auto use = std::make_shared<Use>(in_use_, std::move(until_free));
  if (use->others >= kMaxGrants) {
    return ResourceExhausted("processes have the memory of " + std::to_string(use->others) +
                             " such batches of the feed, which is the limit");
  }
  Result<BudgetLease> lease = pool_.Reserve(charged, owner_);
  if (!lease.ok()) return lease.status().WithoutAdvice();  // which is about feeds
  // The kernel does not count the descriptor of the creation as a user.
  ASSIGN_OR_RETURN(const UniqueFd made, CreateEmptyMemfd("pinfeed-batch", bytes));
  RETURN_IF_ERROR(SealAgainstSeals(made.get()));
  ASSIGN_OR_RETURN(UniqueFd kept, ReopenMemfd(made.get(), Access::kReadWrite));
  ASSIGN_OR_RETURN(UniqueFd given, ReopenMemfd(made.get(), Access::kReadWrite));
  use->bytes = charged;
  RaiseTo(in_use_->bytes.fetch_add(charged) + charged, peak_bytes_, std::memory_order_seq_cst);
  granted_.fetch_add(1);
  users_.Add(std::move(kept), *std::move(lease), std::move(use));
  return given;
}

OneOffMemory::Counts OneOffMemory::counts() const {
  return {granted_.load(), in_use_->bytes.load(), peak_bytes_.load()};
}

}  // namespace pinfeed
