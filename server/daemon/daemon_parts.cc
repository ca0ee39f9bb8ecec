// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon_parts.h"

#include <utility>

#include "server/loading/producer_group.h"

namespace pinfeed {

std::vector<OngoingOperation> DaemonParts::Operations() const {
  std::vector<OngoingOperation> all;
  if (auto reaper = feeds.CurrentOperation()) all.push_back(*std::move(reaper));
  if (auto freeing = residents.CurrentOperation()) all.push_back(*std::move(freeing));
  for (DatasetOpener::Operation& operation : datasets->opener.RunningOperations())
    all.push_back(
        {DatasetOpener::kThreadName, std::move(operation.what), operation.since, WaitsFor::kStorage});
  for (const std::shared_ptr<Feed>& feed : feeds.All()) {
    const std::shared_ptr<ProducerGroup> processes = feed->producer().processes();
    if (processes == nullptr) continue;
    for (OngoingOperation& operation : processes->Operations()) all.push_back(std::move(operation));
  }
  if (devices == nullptr) return all;
  if (auto freeing = devices->CurrentOperation()) all.push_back(*std::move(freeing));
  return all;
}

std::string DaemonParts::SampleName(uint64_t feed_id, uint64_t sample) {
  for (const std::shared_ptr<Feed>& feed : feeds.All()) {
    if (feed->id() != feed_id || sample >= feed->dataset().samples) continue;
    return feed->producer().Describe(sample);
  }
  return {};
}

}  // namespace pinfeed
