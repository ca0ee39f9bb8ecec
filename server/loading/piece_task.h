// SPDX-License-Identifier: Apache-2.0
// Samples of a piece that workers load together. In: the piece. Out: their end, with the error of a load if
// there was one.
#pragma once

#include <cstdint>

#include "common/base/first_error.h"
#include "common/base/status.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// Purpose: loads samples of one piece, and says when all of them are loaded. Threads: Load runs on several
// workers at once. Errors: the first of Load is that of the task.
class PieceTask : public FillTask {
 public:
  using FillTask::FillTask;

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) final {
    error_.Set(Load(begin, end, scratch));
  }
  void Done() final { End(error_.Get()); }

 protected:
  // Loads [begin, end) of the task's samples.
  virtual Status Load(uint32_t begin, uint32_t end, SampleScratch& scratch) = 0;
  // All of them are loaded. Called once.
  virtual void End(Status status) = 0;

 private:
  FirstError error_;
};

}  // namespace pinfeed
