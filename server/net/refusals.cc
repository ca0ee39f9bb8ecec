// SPDX-License-Identifier: Apache-2.0
#include "server/net/refusals.h"

#include "common/base/log.h"
#include "common/base/quote.h"

namespace pinfeed {

std::string_view RefusalName(Refusal refusal) {
  static constexpr std::array<std::string_view, kRefusalKinds> kNames = {
      "uid", "request", "frame", "token", "expired", "descriptors", "http", "certificate", "http2"};
  return kNames.at(static_cast<size_t>(refusal));
}

void Refusals::Count(Refusal refusal, const std::string& text) {
  const auto index = static_cast<size_t>(refusal);
  counts_[index].fetch_add(1, std::memory_order_relaxed);
  uint64_t suppressed = 0;
  {
    const MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    Kind& kind = kinds_[index];
    if (now < kind.next_log) {
      ++kind.suppressed;
      return;
    }
    kind.next_log = now + std::chrono::seconds(1);
    suppressed = std::exchange(kind.suppressed, 0);
  }
  // Names in it may be the client's.
  std::string line = EscapeUnprintable(std::string_view(text).substr(0, kMaxQuotedBytes));
  if (text.size() > kMaxQuotedBytes) line += "...";
  if (suppressed == 0) {
    spdlog::warn("refused ({}): {}", RefusalName(refusal), line);
  } else {
    spdlog::warn("refused ({}, and {} more since the last such line): {}", RefusalName(refusal), suppressed,
                 line);
  }
}

size_t CodeIndex(Code code) {
  const auto index = static_cast<size_t>(code);
  return index < kCodes ? index : static_cast<size_t>(Code::kUnknown);
}

void Refusals::CountRequest(const std::string& who, const Status& error) {
  codes_[CodeIndex(error.code())].fetch_add(1, std::memory_order_relaxed);
  Count(Refusal::kRequest, who + ": " + error.ToString());
}

CodeCounts Refusals::codes() const {
  CodeCounts counts{};
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = codes_[i].load(std::memory_order_relaxed);
  return counts;
}

RefusalCounts Refusals::counts() const {
  RefusalCounts counts{};
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

}  // namespace pinfeed
