// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "client/src/batch.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(BatchPoolTest, AReleasedBatchIsReusedOnlyAfter255OthersWereReleased) {
  BatchPool& pool = BatchPool::Process();
  const auto take = [&](size_t count) {
    std::vector<Batch*> taken;
    while (taken.size() < count) taken.push_back(pool.Take(nullptr, {}));
    return taken;
  };
  size_t many = 500;
  for (const size_t others : {254U, 255U}) {
    many *= 2;  // more than the pool has
    const std::vector<Batch*> released = take(1 + others);
    for (Batch* const batch : released) pool.Return(batch);
    const std::vector<Batch*> held = take(many);
    EXPECT_EQ(std::set<Batch*>(held.begin(), held.end()).size(), held.size());
    EXPECT_EQ(std::count(held.begin(), held.end(), released.front()), others == 255 ? 1 : 0);
    for (Batch* const batch : held) pool.Return(batch);
  }
}

}  // namespace
}  // namespace pinfeed
