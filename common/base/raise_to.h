// SPDX-License-Identifier: Apache-2.0
// The maximum of what several threads have seen.
#pragma once

#include <atomic>

namespace pinfeed {

// Sets `to` to `value` unless it is larger already. Returns what it was. `order` is that of the write; the
// read has what compare_exchange_weak derives from it.
template <typename T>
T RaiseTo(std::type_identity_t<T> value, std::atomic<T>& to, std::memory_order order) {
  constexpr auto kRead = [](std::memory_order write) {
    if (write == std::memory_order_acq_rel) return std::memory_order_acquire;
    return write == std::memory_order_release ? std::memory_order_relaxed : write;
  };
  T before = to.load(kRead(order));
  while (before < value && !to.compare_exchange_weak(before, value, order)) {
  }
  return before;
}

}  // namespace pinfeed
